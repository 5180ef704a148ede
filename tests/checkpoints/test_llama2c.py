"""llama2.c's files: the tensors in their order, the rotary rows in ours, and sizes that fit
exactly."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from sightline.checkpoints.formats import llama2c
from sightline.errors import CheckpointError
from sightline.text.tokenizer import Tokenizer
from tests.support.llama2c_files import SIZES, export, llama, pieces, table


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_comes_back(tied: bool, tmp_path: Path) -> None:
    model = llama(tied)
    export(tmp_path / "model.bin", model, tied=tied)
    source = llama2c.read_llama2c(tmp_path / "model.bin")
    assert source.keys["tie_word_embeddings"] is tied
    assert {name: source.keys[name] for name in SIZES} == SIZES
    expected = model.state_dict()
    assert set(source.tensors) == set(expected) - ({"lm_head.weight"} if tied else set())
    for name, entry in source.tensors.items():
        assert entry.shape == tuple(expected[name].shape)
        assert torch.equal(entry.read(), expected[name]), name


def test_rows_in_pairs_give_the_same_scores(tmp_path: Path) -> None:
    """Rotating neighbours in the file's order is rotating halves in ours: the definition, not the
    permutation's own code."""
    model = llama(True)
    export(tmp_path / "model.bin", model, tied=True)
    start = 28 + 4 * (263 * 16 + 2 * 16)
    stored = torch.frombuffer(
        bytearray((tmp_path / "model.bin").read_bytes()[start : start + 4 * 256]),
        dtype=torch.float32,
    ).reshape(16, 16)
    ours = (
        llama2c.read_llama2c(tmp_path / "model.bin")
        .tensors["model.layers.0.self_attn.q_proj.weight"]
        .read()
    )
    x, angles = torch.randn(16), torch.tensor([0.3, 1.1])
    pairs = (stored @ x).reshape(4, 2, 2)
    halves = (ours @ x).reshape(4, 2, 2).transpose(1, 2)
    rotation = torch.stack(
        [torch.stack([angles.cos(), -angles.sin()]), torch.stack([angles.sin(), angles.cos()])]
    )
    assert torch.allclose(
        torch.einsum("abj,hjb->hja", rotation, pairs),
        torch.einsum("abj,hjb->hja", rotation, halves),
    )


@pytest.mark.parametrize("change", [-4, 4, -1])
def test_a_length_that_does_not_fit_is_refused(change: int, tmp_path: Path) -> None:
    export(tmp_path / "model.bin", llama(True), tied=True)
    data = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(
        CheckpointError, match=r"model.bin: is \d+ bytes long; expected the \d+ bytes"
    ):
        llama2c.read_llama2c(tmp_path / "model.bin")


@pytest.mark.parametrize(
    "header",
    [
        (0,) * 7,
        (16, 24, 2, 3, 1, 8, 32),
        (16, 24, 2, 4, 3, 8, 32),
        (-16, 24, 2, 4, 2, 8, 32),
        (2**31 - 1,) * 7,
        (16, 24, 10**9, 4, 2, 8, 32),
    ],
)
def test_headers_of_no_model_are_refused(header: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(struct.pack("<7i", *header) + bytes(1000))
    with pytest.raises(CheckpointError, match=r"model.bin: (the header has|is)"):
        llama2c.read_llama2c(tmp_path / "model.bin")


def test_newer_versions_and_stumps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", 0x616B3432, 2, 0, 0, 0, 0, 0))
    with pytest.raises(CheckpointError, match=r"llama2\.c file of version 2"):
        llama2c.read_llama2c(path)
    path.write_bytes(b"12345")
    with pytest.raises(CheckpointError, match="is 5 bytes long"):
        llama2c.read_llama2c(path)


@pytest.mark.parametrize("style", ["old", "new"])
def test_the_tokenizer_beside_the_model_is_read(style: str, tmp_path: Path) -> None:
    export(tmp_path / "model.bin", llama(True), tied=True)
    (tmp_path / "tokenizer.bin").write_bytes(table(pieces(style)))
    tokenizer = Tokenizer.from_llama2c(llama2c.read_llama2c(tmp_path / "model.bin").tokenizer)
    assert tokenizer.encode("hi", special=True) == [1, 259, 262]
    assert tokenizer.encode("hié\n") == [259, 262, 3 + 0xC3, 3 + 0xA9, 3 + 10]
    assert tokenizer.decode([1, 259, 262, 3 + 0xC3, 3 + 0xA9]) == "hié"
    assert (tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (1, 2, 263)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (table(pieces("new"))[:-1], "piece 262 declares a length of 2 bytes"),
        (table(pieces("new")) + b"x", "has 1 bytes after 263 pieces"),
        (table(pieces("new")[:100]), "ends after 100 pieces"),
        (struct.pack("<ifi", 9, 0.0, -1), "piece 0 declares a length of -1 bytes"),
        (struct.pack("<ifi", 9, 0.0, 2**31 - 1), "piece 0 declares a length of 2147483647 bytes"),
        (table([(b"\xff\xff", 0.0)]), "piece 0 is not UTF-8"),
    ],
)
def test_broken_tables_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        llama2c.read_vocabulary(tmp_path / "tokenizer.bin", 263)
