"""GGUF: what is read is what was meant, what is written is read again, and what is broken is
refused in one line."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from sightline.checkpoints.formats.gguf import read as gguf_read
from sightline.checkpoints.formats.gguf import write as gguf_write
from sightline.checkpoints.formats.gguf.header import READABLE, gguf_header
from sightline.checkpoints.formats.rotary_order import halves_to_pairs, pairs_to_halves
from sightline.checkpoints.source import Entry
from sightline.errors import CheckpointError
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.vocabulary import CONTROL, NORMAL, Vocabulary
from tests.support.gguf_files import MODELS, finish, llama_writer, model_of


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_written_is_read_again_exactly(name: str, dtype: str, tmp_path: Path) -> None:
    _, keys, tensors = model_of(name)
    rounded = {name: entry.read().to(getattr(torch, dtype)) for name, entry in tensors.items()}
    entries = {
        name: Entry(name, tuple(x.shape), x.dtype, lambda x=x: x) for name, x in rounded.items()
    }
    notes = gguf_write.write_gguf(tmp_path / "model.gguf", keys, entries, None, dtype)
    source = gguf_read.read_gguf(tmp_path / "model.gguf")
    kept = {name for name in rounded if "pooler" not in name}
    assert set(source.tensors) == kept
    assert len(notes) == len(rounded) - len(kept)
    for name in kept:
        result = source.tensors[name].read()
        assert tuple(result.shape) == source.tensors[name].shape
        assert result.dtype == source.tensors[name].dtype
        assert torch.equal(result.float(), rounded[name].float()), name
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("name", MODELS)
def test_the_keys_are_config_jsons(name: str, tmp_path: Path) -> None:
    _, keys, tensors = model_of(name)
    gguf_write.write_gguf(tmp_path / "model.gguf", keys, tensors, None, "float32")
    result = gguf_read.read_gguf(tmp_path / "model.gguf").keys
    assert result["architectures"] == [MODELS[name][0]]
    for key, value in result.items():
        if key == "n_inner":
            assert value == 4 * result["n_embd"]
        elif key == "rope_theta":
            assert value == keys["rope_parameters"]["rope_theta"]
        elif (
            key not in ("architectures", "torch_dtype", "rope_scaling")
            and keys.get(key) is not None
        ):
            assert value == keys[key], key


@pytest.mark.parametrize("name", ["llama", "llama tied", "qwen2", "qwen3", "gpt2"])
def test_transformers_reads_the_same_tensors(name: str, tmp_path: Path) -> None:
    """Another reader of GGUF finds the same: the q/k rows, the turned matrices and the names are
    right."""
    model, keys, tensors = model_of(name)
    gguf_write.write_gguf(tmp_path / "model.gguf", keys, tensors, None, "float32")
    result = load_gguf_checkpoint(
        str(tmp_path / "model.gguf"), return_tensors=True, model_to_load=model
    )
    assert set(tensors) <= set(result["tensors"])
    for name, entry in tensors.items():
        assert torch.equal(result["tensors"][name], entry.read()), name
    assert result["config"].get("hidden_size", result["config"].get("n_embd")) == 32


def test_eight_bits_are_close_and_odd_rows_stay_plain(tmp_path: Path) -> None:
    _, keys, tensors = model_of("llama")
    gguf_write.write_gguf(tmp_path / "model.gguf", keys, tensors, None, "q8_0")
    header = gguf_header(tmp_path / "model.gguf")
    assert header.tensors["blk.0.attn_q.weight"].kind == gguf.GGMLQuantizationType.Q8_0
    assert header.tensors["blk.0.attn_norm.weight"].kind == gguf.GGMLQuantizationType.F32
    source = gguf_read.read_gguf(tmp_path / "model.gguf")
    for name, entry in tensors.items():
        assert (
            source.tensors[name].read() - entry.read()
        ).abs().max() <= entry.read().abs().max() / 127 + 1e-6


@pytest.mark.parametrize("kind", [kind for kind in READABLE if kind.name.startswith("Q")])
def test_every_block_type_is_decoded(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """Random bytes as blocks, decoded by us from the file and by the gguf package from memory."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (6, 256 // block * size), dtype=np.uint8)
    writer = llama_writer(tmp_path / "model.gguf")
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    finish(writer)
    result = gguf_read.read_gguf(tmp_path / "model.gguf").tensors[
        "model.layers.0.mlp.up_proj.weight"
    ]
    assert result.shape == (6, 256)
    assert torch.equal(result.read(), torch.from_numpy(gguf.dequantize(raw, kind)))


def test_rotary_orders_undo_each_other() -> None:
    rows = torch.randn(24, 5)
    assert torch.equal(pairs_to_halves(halves_to_pairs(rows, 3), 3), rows)
    assert pairs_to_halves(torch.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_llama_3_scaling_goes_through_its_tensor(tmp_path: Path) -> None:
    _, keys, tensors = model_of("llama")
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    keys = keys | {"rope_parameters": scaling | {"rope_theta": 500000.0}, "rope_theta": None}
    gguf_write.write_gguf(tmp_path / "model.gguf", keys, tensors, None, "float32")
    result = gguf_read.read_gguf(tmp_path / "model.gguf").keys
    assert result["rope_scaling"] == scaling
    assert result["rope_theta"] == 500000.0


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 30.0,
            "beta_slow": 2.0,
        },
    ],
)
def test_other_scalings_go_through_the_metadata(scaling: dict[str, Any], tmp_path: Path) -> None:
    _, keys, tensors = model_of("qwen2")
    gguf_write.write_gguf(
        tmp_path / "model.gguf",
        keys | {"rope_parameters": scaling | {"rope_theta": 1e6}},
        tensors,
        None,
        "float32",
    )
    result = gguf_read.read_gguf(tmp_path / "model.gguf").keys
    assert (result["rope_scaling"], result["rope_theta"]) == (scaling, 1e6)


def test_a_scaling_that_is_not_known_is_refused(tmp_path: Path) -> None:
    writer = llama_writer(tmp_path / "m.gguf")
    writer.add_string("llama.rope.scaling.type", "longrope")
    finish(writer)
    with pytest.raises(CheckpointError, match=r"llama\.rope\.scaling\.type is 'longrope'"):
        gguf_read.read_gguf(tmp_path / "m.gguf")


def test_the_tokenizer_and_template_go_along(tmp_path: Path) -> None:
    _, keys, tensors = model_of("llama")
    letters = [*"helo wrd".replace(" ", "Ġ"), "he", "ll", "hell", "hello", "<s>"]
    kinds = [NORMAL] * (len(letters) - 1) + [CONTROL]
    vocabulary = Vocabulary(
        where=tmp_path, kind="bytes", pieces=letters, kinds=kinds, merges=["h e", "l l", "he ll", "hell o"], split="gpt-2",
        bos=len(letters) - 1, before=(len(letters) - 1,), chat_template="{{ messages }}",
    )  # fmt: skip
    gguf_write.write_gguf(
        tmp_path / "model.gguf", keys, tensors, Tokenizer.from_vocabulary(vocabulary), "float32"
    )
    source = gguf_read.read_gguf(tmp_path / "model.gguf")
    tokenizer = Tokenizer.from_gguf(source.tokenizer)
    assert source.keys["vocab_size"] == tokenizer.vocab_size == 40
    assert tokenizer.encode("hello world", special=True) == Tokenizer.from_vocabulary(
        vocabulary
    ).encode("hello world", special=True)
    assert [tokenizer.token(id) for id in tokenizer.encode("hello", special=True)] == [
        "<s>",
        "hello",
    ]
    assert tokenizer.chat_template == "{{ messages }}"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    _, keys, tensors = model_of("llama")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")

    def broken() -> torch.Tensor:
        raise OSError("disk")

    tensors["model.norm.weight"] = Entry("model.norm.weight", (32,), torch.float32, broken)
    with pytest.raises(OSError, match="disk"):
        gguf_write.write_gguf(path, keys, tensors, None, "float32")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": {"model_type": "mamba"}}, "model_type 'mamba' has no GGUF form"),
        ({"dtype": "q4"}, "dtype 'q4'"),
        (
            {"tensor": "model.layers.0.mlp.extra.weight"},
            "'model.layers.0.mlp.extra.weight' has no name in GGUF's llama",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _, keys, tensors = model_of("llama")
    if "tensor" in changes:
        tensors[changes["tensor"]] = tensors["model.norm.weight"]
    with pytest.raises(CheckpointError, match=message):
        gguf_write.write_gguf(
            tmp_path / "m.gguf",
            keys | changes.get("keys", {}),
            tensors,
            None,
            changes.get("dtype", "float32"),
        )
    assert not list(tmp_path.iterdir())


# ── hostile files ──


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(
    name: bytes = b"a", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0
) -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(sizes))
        + struct.pack(f"<{len(sizes)}Q", *sizes)
        + struct.pack("<IQ", kind, offset)
    )


def head(version: int = 3, tensors: int = 0, keys: int = 0, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


PAD = bytes(256)
HOSTILE = {
    "empty": (b"", "the file is empty"),
    "vocabulary only": (
        head(keys=1) + pair(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 1) + text(b"a")) + PAD,
        "is a GGUF file with a vocabulary only: it has no tensors",
    ),
    "magic": (head(magic=b"GGML") + PAD, "begins with b'GGML' (at byte 4); expected b'GGUF'"),
    "pickle": (b"\x80\x04" + PAD, "begins with"),
    "version 1": (head(1) + PAD, "has GGUF version 1"),
    "version 99": (head(99) + PAD, "has GGUF version 99"),
    "big endian": (head(0x03000000) + PAD, "big-endian"),
    "many tensors": (head(tensors=2**63) + PAD, "declares 9223372036854775808 tensors"),
    "many keys": (head(keys=2**60) + PAD, "declares 1152921504606846976 keys"),
    "key length": (head(keys=1) + struct.pack("<Q", 2**60) + PAD, "a key is 1152921504606846976 bytes long"),
    "string length": (head(keys=1) + pair(b"k", 8, struct.pack("<Q", 2**60)) + PAD, "the value of 'k' needs 1152921504606846976 bytes"),
    "value type": (head(keys=1) + pair(b"k", 77, b"") + PAD, "'k' has the unknown type 77"),
    "array length": (head(keys=1) + pair(b"k", 9, struct.pack("<IQ", 4, 2**61)) + PAD, "'k' with 2305843009213693952 values needs"),
    "string array": (head(keys=1) + pair(b"k", 9, struct.pack("<IQ", 8, 2**61)) + PAD, "'k' declares 2305843009213693952 strings"),
    "nested array": (head(keys=1) + pair(b"k", 9, struct.pack("<IQ", 9, 1)) + PAD, "'k' has the unknown type 9"),
    "key twice": (head(keys=2) + 2 * pair(b"k", 4, b"\0\0\0\0") + PAD, "the key 'k' comes twice"),
    "not UTF-8": (head(keys=1) + pair(b"\xff\xfe", 4, b"\0\0\0\0") + PAD, "a key is not UTF-8"),
    "alignment 0": (head(keys=1) + pair(b"general.alignment", 4, struct.pack("<I", 0)) + PAD, "general.alignment is 0"),
    "alignment 3": (head(keys=1) + pair(b"general.alignment", 4, struct.pack("<I", 3)) + PAD, "general.alignment is 3"),
    "alignment huge": (head(keys=1) + pair(b"general.alignment", 4, struct.pack("<I", 2**31)) + PAD, "general.alignment is 2147483648"),
    "alignment text": (head(keys=1) + pair(b"general.alignment", 8, text(b"32")) + PAD, "general.alignment is '32'"),
    "dimensions": (head(tensors=1) + text(b"a") + struct.pack("<I", 2**32 - 1) + PAD, "tensor 'a' has 4294967295 dimensions"),
    "no dimension": (head(tensors=1) + info(sizes=()) + PAD, "tensor 'a' has 0 dimensions"),
    "overflow": (head(tensors=1) + info(sizes=(2**62, 2**62)) + PAD, "is larger than the file"),
    "tensor type": (head(tensors=1) + info(kind=999) + PAD, "tensor 'a' has type 999"),
    "type not read": (head(tensors=1) + info(kind=16, sizes=(256,)) + PAD, "tensor 'a' has type IQ2_XXS"),
    "block": (head(tensors=1) + info(kind=8, sizes=(33,)) + PAD, "a multiple of Q8_0's block of 32"),
    "offset": (head(tensors=1) + info(offset=2**40) + PAD, "tensor 'a' ends at byte"),
    "odd offset": (head(tensors=1) + info(offset=7) + PAD, "begins at offset 7"),
    "overlap": (head(tensors=2) + info() + info(b"b") + PAD, "tensors 'a' and 'b' overlap"),
    "tensor twice": (head(tensors=2) + info() + info(offset=32) + PAD, "tensor 'a' comes twice"),
    "no architecture": (head() + PAD, "general.architecture is missing"),
    "architecture": (head(keys=1) + pair(b"general.architecture", 8, text(b"mamba")) + PAD, "general.architecture is 'mamba'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, message = HOSTILE[name]
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        gguf_read.read_gguf(tmp_path / "bad.gguf")
    assert message in str(caught.value)
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    finish(llama_writer(tmp_path / "whole.gguf"))
    data = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            gguf_read.read_gguf(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"block_count": 2**31}, "llama.block_count is 2147483648"),
        ({"rope.dimension_count": 2}, "llama.rope.dimension_count is 2; expected the head's 4"),
        ({"expert_count": 8}, "llama.expert_count is set"),
    ],
)
def test_metadata_that_no_model_has_is_refused(
    changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    finish(llama_writer(tmp_path / "m.gguf", **changes))
    with pytest.raises(CheckpointError, match=message):
        gguf_read.read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "name", ["blk.1.attn_norm.weight", "blk.0.attn_nrm.weight", "v.patch.weight"]
)
def test_tensors_of_no_table_are_refused(name: str, tmp_path: Path) -> None:
    writer = llama_writer(tmp_path / "m.gguf")
    writer.add_tensor(name, np.zeros(8, dtype=np.float32))
    finish(writer)
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is not known"):
        gguf_read.read_gguf(tmp_path / "m.gguf")


def test_a_file_that_changes_is_not_read(tmp_path: Path) -> None:
    finish(llama_writer(tmp_path / "m.gguf"))
    source = gguf_read.read_gguf(tmp_path / "m.gguf")
    with (tmp_path / "m.gguf").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointError, match="changed after it was opened"):
        source.tensors["model.embed_tokens.weight"].read()


def test_a_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a regular file"):
        gguf_read.read_gguf(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        gguf_read.read_gguf(tmp_path / "none.gguf")
