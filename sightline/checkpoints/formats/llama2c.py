"""Read llama2.c's files: seven integers, then float32 tensors; and its tokenizer.bin.

The file has neither tensor names nor a magic number, so its length must match its header exactly.
Rotary rows are stored as pairs and converted to halves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sightline.checkpoints.formats.rotary_order import pairs_to_halves
from sightline.checkpoints.source import Entry, ReadTensor, Source
from sightline.errors import CheckpointError
from sightline.files.mapped import MappedFile
from sightline.text.vocabulary.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, Vocabulary

HEADER = struct.Struct("<7i")
MAGIC = 0x616B3432  # "ak42": version 1 and later
LARGEST = 2**24
MOST_LAYERS = 10_000
LONGEST_PIECE = 1024


@dataclass(frozen=True, slots=True)
class Llama2cHeader:
    """The seven integers; a negative vocabulary size means that the output layer is not tied."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    positions: int
    tied: bool

    @property
    def head_dim(self) -> int:
        """Numbers per head."""
        return self.width // self.heads


def read_llama2c(path: Path, tokenizer_path: Path | None = None) -> Source:
    """Open a version 0 file, with the given tokenizer.bin or the one in its folder."""
    file = MappedFile(Path(path))
    beside = file.where.parent / "tokenizer.bin"
    tokenizer_path = tokenizer_path or (beside if beside.is_file() else None)
    header = _read_llama2c_header(file)
    places = _tensor_places(header)
    end = places["lm_head.weight" if not header.tied else "freq_cis_imag"]
    if len(file) != end[0] + _float32_bytes(end[1]):
        seen = f"{file.where}: is {len(file)} bytes long"
        raise CheckpointError(
            seen,
            expected=f"the {end[0] + _float32_bytes(end[1])} bytes of its header {header}",
            fix="fetch the file again",
        )
    tensors = {
        name: _llama2c_entry(file, name, place, header)
        for name, place in places.items()
        if not name.startswith("freq_cis")
    }
    vocabulary = (
        read_vocabulary(Path(tokenizer_path), header.vocab_size) if tokenizer_path else None
    )
    notes = [
        "llama2.c files do not store the norm's epsilon and the RoPE base: 1e-05 and 10000 are"
        " used, as in its code"
    ]
    return Source(file.where, "llama2.c", _llama2c_keys(header), tensors, vocabulary, notes)


def _read_llama2c_header(file: MappedFile) -> Llama2cHeader:
    """The seven integers, checked against each other."""
    if len(file) < HEADER.size:
        raise CheckpointError(
            f"{file.where}: is {len(file)} bytes long",
            expected=f"at least the header's {HEADER.size}",
        )
    values = HEADER.unpack(file.part(0, HEADER.size).tobytes())
    if values[0] == MAGIC:
        raise CheckpointError(
            f"{file.where}: is a llama2.c file of version {values[1]}",
            expected="version 0",
            fix="export it with --version 0",
        )
    width, hidden, layers, heads, kv_heads, vocab_size, positions = values
    header = Llama2cHeader(
        width, hidden, layers, heads, kv_heads, abs(vocab_size), positions, vocab_size > 0
    )
    sizes = (width, hidden, layers, heads, kv_heads, header.vocab_size, positions)
    fits = (
        all(0 < size < LARGEST for size in sizes)
        and layers <= MOST_LAYERS
        and width % heads == 0
        and heads % kv_heads == 0
        and (width // heads) % 2 == 0
    )
    if not fits:
        raise CheckpointError(
            f"{file.where}: the header has {values}",
            expected="the seven sizes of a llama2.c model",
        )
    return header


def _float32_bytes(shape: tuple[int, ...]) -> int:
    """Bytes of a float32 tensor."""
    length = 4
    for size in shape:
        length *= size
    return length


def _tensor_places(header: Llama2cHeader) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The offset and shape of each tensor, in file order: each kind for all layers, then the next
    kind."""
    width = header.width
    hidden = header.hidden
    key_width = header.kv_heads * header.head_dim
    kinds = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (key_width, width),
        "self_attn.v_proj": (key_width, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
        "mlp.up_proj": (hidden, width),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (header.vocab_size, width)}
    shapes |= {
        f"model.layers.{layer}.{kind}.weight": shape
        for kind, shape in kinds.items()
        for layer in range(header.layers)
    }
    table = (header.positions, header.head_dim // 2)
    shapes |= {"model.norm.weight": (width,), "freq_cis_real": table, "freq_cis_imag": table}
    shapes |= {} if header.tied else {"lm_head.weight": (header.vocab_size, width)}
    places = {}
    at = HEADER.size
    for name, shape in shapes.items():
        places[name] = (at, shape)
        at += _float32_bytes(shape)
    return places


def _llama2c_entry(
    file: MappedFile, name: str, place: tuple[int, tuple[int, ...]], header: Llama2cHeader
) -> Entry:
    """One lazy tensor; query and key rows are reordered from pairs to halves."""
    start, shape = place
    read_rows: ReadTensor = lambda: file.tensor(start, shape, torch.float32)  # noqa: E731
    heads = header.heads if name.endswith("q_proj.weight") else header.kv_heads
    read_rotary_rows: ReadTensor = lambda: pairs_to_halves(read_rows(), heads)  # noqa: E731
    return Entry(
        name,
        shape,
        torch.float32,
        read_rotary_rows if name.endswith(("q_proj.weight", "k_proj.weight")) else read_rows,
    )


def _llama2c_keys(header: Llama2cHeader) -> dict[str, Any]:
    """config.json's keys."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": header.width,
        "intermediate_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "head_dim": header.head_dim,
        "vocab_size": header.vocab_size,
        "max_position_embeddings": header.positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": header.tied,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def read_vocabulary(path: Path, count: int) -> Vocabulary:
    """tokenizer.bin: the longest piece's length, then score, length and bytes of each piece."""
    file = MappedFile(path)
    data = file.part(0, len(file)).tobytes()
    pieces = []
    scores = []
    at = 4
    for id in range(count):
        if at + 8 > len(data):
            raise CheckpointError(
                f"{path}: ends after {id} pieces",
                expected=f"the model's {count}",
                fix="use the model's own tokenizer.bin",
            )
        score, length = struct.unpack_from("<fi", data, at)
        if not 0 <= length <= LONGEST_PIECE or at + 8 + length > len(data):
            raise CheckpointError(
                f"{path}: piece {id} declares a length of {length} bytes",
                expected="a length inside the file",
            )
        pieces.append(_decode_piece(path, id, data[at + 8 : at + 8 + length]))
        scores.append(score)
        at += 8 + length
    if at != len(data):
        raise CheckpointError(
            f"{path}: has {len(data) - at} bytes after {count} pieces",
            expected="the model's own tokenizer.bin",
        )
    return _llama2c_vocabulary(path, pieces, scores)


def _decode_piece(path: Path, id: int, raw: bytes) -> str:
    """A piece in SentencePiece's spelling: llama2.c writes ▁ as a space, line feeds around <s> and
    </s>, and (in older files) bytes as letters."""
    if id in (1, 2):
        return "<s>" if id == 1 else "</s>"
    byte = f"<0x{id - 3:02X}>" if 3 <= id < 259 else ""
    if byte and raw in (byte.encode(), chr(id - 3).encode(), bytes([id - 3])):
        return byte
    try:
        return raw.decode("utf-8").replace(" ", "▁")
    except UnicodeDecodeError:
        raise CheckpointError(
            f"{path}: piece {id} is not UTF-8", fix="fetch the file again"
        ) from None


def _llama2c_vocabulary(path: Path, pieces: list[str], scores: list[float]) -> Vocabulary:
    """Llama's layout: unknown, begin, end, 256 bytes, then pieces."""
    special = [UNKNOWN, CONTROL, CONTROL]
    kinds = [
        BYTE if id < 259 and piece == f"<0x{id - 3:02X}>" else NORMAL
        for id, piece in enumerate(pieces)
    ]
    kinds[:3] = special[: len(kinds)]
    return Vocabulary(
        where=path,
        kind="sentencepiece",
        pieces=pieces,
        kinds=kinds,
        scores=scores,
        unknown=0,
        bos=1,
        eos=2,
        before=(1,),
        prefix_space=True,
    )
