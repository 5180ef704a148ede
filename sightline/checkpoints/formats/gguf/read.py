"""Read a GGUF file (llama.cpp's checkpoints, quantized or not) as Hugging Face's keys and
tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from sightline.checkpoints.formats.gguf.header import GGUFHeader, StoredTensor, parse_gguf_header
from sightline.checkpoints.formats.gguf.keys import GGUFMetadata, config_keys
from sightline.checkpoints.formats.gguf.layout import layout_of, shape_after
from sightline.checkpoints.formats.gguf.names import ARCHITECTURES, block_index, to_hugging_face
from sightline.checkpoints.source import Entry, Source
from sightline.errors import CheckpointError
from sightline.files.mapped import MappedFile
from sightline.text.vocabulary.gguf import from_metadata

UNQUANTIZED = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
DUPLICATED = ("gpt2", *(name for name, known in ARCHITECTURES.items() if known.needs_output))
ROTARY_TABLE = re.compile(r"blk\.\d{1,6}\.attn_rot_embd(\.weight)?")
COMPUTED = "its factors are read as rope_scaling"


def read_gguf(path: Path) -> Source:
    """Open a GGUF file; tensors are decoded lazily."""
    file = MappedFile(Path(path))
    header = parse_gguf_header(file)
    if not header.tensors and "tokenizer.ggml.tokens" in header.metadata:
        raise CheckpointError(
            f"{file.where} is a GGUF file with a vocabulary only: it has no tensors",
            expected="a model's weights",
            fix="give the model's own GGUF, not the one that was made to test its tokenizer",
        )
    metadata = GGUFMetadata(file.where, header.metadata)
    stored, notes = _rename_tensors(file, header, metadata)
    keys = _gguf_keys(file, header, metadata, stored)
    tensors = {name: _gguf_entry(file, name, tensor, keys) for name, tensor in stored.items()}
    if metadata.architecture == "bert":
        tensors |= _token_types(tensors, keys)
    return Source(
        file.where, "gguf", keys, tensors, from_metadata(file.where, header.metadata), notes
    )


def _rename_tensors(
    file: MappedFile, header: GGUFHeader, metadata: GGUFMetadata
) -> tuple[dict[str, StoredTensor], list[str]]:
    """The stored tensors under Hugging Face's names; unknown tensors are refused."""
    kind = metadata.architecture
    layers = metadata.size("block_count")
    counts = {
        "blk": layers,
        "enc.blk": layers,
        "dec.blk": metadata.size("decoder_block_count", default=layers),
    }
    gated = any(name.endswith(".ffn_gate.weight") for name in header.tensors)
    stored: dict[str, StoredTensor] = {}
    notes: list[str] = []
    for tensor in header.tensors.values():
        if reason := _reason_to_skip(file, tensor):
            notes += [] if reason == COMPUTED else [f"{tensor.name} is left out: {reason}"]
            continue
        name = to_hugging_face(kind, tensor.name, gated=gated)
        stack, number = block_index(tensor.name) or ("blk", 0)
        if name is None or number >= counts[stack]:
            expected = f"a tensor of a {kind} with {layers} layers"
            raise CheckpointError(
                f"{file.where}: tensor {tensor.name!r} is not known", expected=expected
            )
        stored[name] = tensor
    notes += _untie(file, header, stored) if kind in DUPLICATED else []
    if kind == "bert":
        notes.append("GGUF keeps no pooler: the model ends with its last hidden states")
    return stored, notes


def _reason_to_skip(file: MappedFile, tensor: StoredTensor) -> str:
    """Why a tensor is not a parameter, or an empty string. LongRoPE's factors are refused unless
    they are all 1."""
    if tensor.name == "rope_freqs.weight":
        return COMPUTED
    if ROTARY_TABLE.fullmatch(tensor.name):
        return "rotary tables are computed"
    if tensor.name not in ("rope_factors_long.weight", "rope_factors_short.weight"):
        return ""
    if not bool((_tensor_reader(file, tensor)() == 1).all()):
        raise CheckpointError(
            f"{file.where}: tensor {tensor.name!r} holds LongRoPE's factors, which are not"
            " supported",
            expected="a model without rope scaling, as the 4k checkpoints are",
            fix="use a checkpoint such as Phi-3-mini-4k-instruct or phi-4",
        )
    return "its factors are all 1"


def _untie(file: MappedFile, header: GGUFHeader, stored: dict[str, StoredTensor]) -> list[str]:
    """Drop the output layer of a tied model, which some converters write as a copy of the token
    embedding."""
    head = header.tensors.get("output.weight")
    embedding = header.tensors.get("token_embd.weight")
    if (
        head is None
        or embedding is None
        or (head.kind, head.shape) != (embedding.kind, embedding.shape)
    ):
        return []
    for length in (min(head.length, 4096), head.length):
        if not np.array_equal(file.part(head.start, length), file.part(embedding.start, length)):
            return []
    del stored[next(name for name, tensor in stored.items() if tensor is head)]
    return ["output.weight is a copy of token_embd.weight: read as tied"]


def _gguf_keys(
    file: MappedFile, header: GGUFHeader, metadata: GGUFMetadata, stored: dict[str, StoredTensor]
) -> dict[str, Any]:
    """config.json's keys, from the metadata and the tensors."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{file.where}: tensor 'token_embd.weight' is missing or not a matrix",
            expected="an embedding",
        )
    dtype = str(UNQUANTIZED.get(embedding.kind, torch.float32)).removeprefix("torch.")
    names = {tensor.name for tensor in stored.values()}
    keys = config_keys(metadata, vocab_size=embedding.shape[0], dtype=dtype, tensors=names)
    if "rope_freqs.weight" in header.tensors:
        keys["rope_scaling"] = _llama3_scaling(file, header.tensors["rope_freqs.weight"], keys)
    return keys


def _token_types(tensors: dict[str, Entry], keys: dict[str, Any]) -> dict[str, Entry]:
    """BERT's token-type embedding. DistilBERT has none, which equals one row of zeros."""
    name = "embeddings.token_type_embeddings.weight"
    width = keys["hidden_size"]
    entry = tensors.get(name) or Entry(
        name, (1, width), torch.float32, lambda: torch.zeros(1, width)
    )
    keys["type_vocab_size"] = entry.shape[0]
    return {name: entry}


def llama3_factors(keys: dict[str, Any], scaling: dict[str, Any]) -> Tensor:
    """What Llama 3 divides each rotary frequency by: 1 for short waves, `factor` for long ones, a
    blend between."""
    half = torch.arange(0, keys["head_dim"], 2, dtype=torch.float64) / keys["head_dim"]
    waves = 2 * math.pi * keys["rope_theta"] ** half
    low = scaling["low_freq_factor"]
    high = scaling["high_freq_factor"]
    length = scaling["original_max_position_embeddings"]
    smooth = ((length / waves - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).float()


def _llama3_scaling(file: MappedFile, tensor: StoredTensor, keys: dict[str, Any]) -> dict[str, Any]:
    """The scaling whose factors the file stores as rope_freqs; other factors are refused."""
    factors = _tensor_reader(file, tensor)()
    if "head_dim" not in keys or factors.shape != (keys["head_dim"] // 2,):
        expected = (
            "one factor for each pair of a head in a model that rotates whole heads, not shape"
            f" {list(tensor.shape)}"
        )
        raise CheckpointError(
            f"{file.where}: tensor 'rope_freqs.weight' does not fit the model", expected=expected
        )
    for length in (8192, keys["max_position_embeddings"]):
        scaling = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": length,
        }
        expected = llama3_factors(keys, scaling)
        if torch.allclose(factors, expected, rtol=1e-4):
            return scaling
    raise CheckpointError(
        f"{file.where}: tensor 'rope_freqs.weight' holds other factors",
        expected="those of Llama 3's rope scaling",
    )


def _gguf_entry(file: MappedFile, name: str, tensor: StoredTensor, keys: dict[str, Any]) -> Entry:
    """One lazy tensor in Hugging Face's layout."""
    heads = keys.get("num_attention_heads") or keys.get("n_head") or keys["num_heads"]
    kv_heads = keys.get("num_key_value_heads", heads)
    layout = layout_of(keys["model_type"], tensor.name, heads=heads, kv_heads=kv_heads)
    read = _tensor_reader(file, tensor)
    shape = tensor.shape
    if layout is not None:
        try:
            shape = shape_after(layout.to_hugging_face, shape)
        except RuntimeError:
            expected = f"rows for {heads} heads, {kv_heads} of them for keys and values"
            raise CheckpointError(
                f"{file.where}: tensor {tensor.name!r} has shape {list(shape)}", expected=expected
            ) from None
        read = _compose(read, layout.to_hugging_face)
    return Entry(name, shape, UNQUANTIZED.get(tensor.kind, torch.float32), read, tensor.kind.name)


def _compose(
    read: Callable[[], Tensor], change: Callable[[Tensor], Tensor]
) -> Callable[[], Tensor]:
    """A function that reads and then converts."""
    return lambda: change(read())


def _tensor_reader(file: MappedFile, tensor: StoredTensor) -> Callable[[], Tensor]:
    """A function that reads one tensor; quantized blocks are decoded to float32."""

    def read() -> Tensor:
        if tensor.kind in UNQUANTIZED:
            return file.tensor(tensor.start, tensor.shape, UNQUANTIZED[tensor.kind])
        block, size = GGML_QUANT_SIZES[tensor.kind]
        rows = file.part(tensor.start, tensor.length).reshape(
            *tensor.shape[:-1], tensor.shape[-1] // block * size
        )
        return torch.from_numpy(
            np.ascontiguousarray(dequantize(rows, tensor.kind), dtype=np.float32)
        )

    return read
