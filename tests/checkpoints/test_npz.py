"""NumPy archives: BART's tensors and sizes, letters in and sounds out, no pickles and no bombs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from sightline.checkpoints.formats import npz
from sightline.errors import CheckpointError
from sightline.text.tokenizer import Tokenizer
from tests.support.npz_files import META, archive, bart


def test_the_tensors_and_keys_are_barts(tmp_path: Path) -> None:
    weights = bart()
    source = npz.read_npz(archive(tmp_path / "model.npz", weights, META))
    assert set(source.tensors) == set(weights)
    for name, entry in source.tensors.items():
        assert entry.shape == tuple(weights[name].shape)
        assert torch.equal(entry.read(), weights[name]), name
    config = transformers.BartConfig(**source.keys)
    assert (
        config.d_model,
        config.encoder_layers,
        config.decoder_layers,
        config.vocab_size,
        config.max_position_embeddings,
    ) == (
        16,
        1,
        2,
        9,
        12,
    )


def test_letters_in_sounds_out(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary(
        npz.read_npz(archive(tmp_path / "model.npz", bart(), META)).tokenizer
    )
    assert tokenizer.encode("cab?", special=True) == [1, 6, 4, 5, 3, 2]
    assert tokenizer.decode([1, 6, 4, 5, 7, 2]) == "zxyw"
    assert (tokenizer.token(6), tokenizer.token(6, source=True)) == ("z", "c")


def member(path: Path, name: str, data: bytes, **options: Any) -> Path:
    """The good archive with one more member."""
    archive(path, bart(), META)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, data, **options)
    return path


def array(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, **options)
    return stream.getvalue()


HOSTILE = {
    "escape": ("../x.npy", array(np.zeros(2, np.float32)), "member '../x.npy'"),
    "absolute": ("/etc/x.npy", array(np.zeros(2, np.float32)), "member '/etc/x.npy'"),
    "no array": ("readme.txt", b"hello", "member 'readme.txt'"),
    "pickle": (
        "evil.npy",
        array(np.array([{}], dtype=object), allow_pickle=True),
        "member 'evil.npy'",
    ),
    "bomb": ("zeros.npy", array(np.zeros(10**6, np.float32)), "would unpack from"),
    "integers": ("ids.npy", array(np.arange(3)), "member 'ids' holds int64"),
    "garbage": ("bad.npy", b"not an array", "is not an array"),
    "long head": ("long.npy", b"\x93NUMPY\x01\x00\xff\xff" + b" " * 100, "is not an array"),
    "lying shape": (
        "lie.npy",
        array(np.zeros(2, np.float32)).replace(b"(2,)", b"(9,)"),
        "expected [9] of plain float32",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_members_are_refused(name: str, tmp_path: Path) -> None:
    inside, data, message = HOSTILE[name]
    with pytest.raises(CheckpointError) as caught:
        npz.read_npz(member(tmp_path / "model.npz", inside, data))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": -1}, "meta_json's d_model is '-1'"),
        ({"num_heads": None}, "meta_json's num_heads is 'None'"),
        ({"position_offset": 0}, "position_offset is 0"),
        ({"grapheme_chars": "____" + "x" * 99}, "lists 103 and 8 characters"),
    ],
)
def test_a_meta_of_no_model_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        npz.read_npz(archive(tmp_path / "model.npz", bart(), META | changes))


def read_all(path: Path) -> None:
    for entry in npz.read_npz(path).tensors.values():
        entry.read()


def test_broken_archives_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.npz", bart(), META)
    data = path.read_bytes()
    for length in range(0, len(data) - 1, 997):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            npz.read_npz(path)
    spoiled = bytearray(data)
    spoiled[len(data) // 2] ^= 0xFF
    path.write_bytes(spoiled)
    with pytest.raises(CheckpointError, match=r"is broken|cannot be unpacked|is not an array"):
        read_all(path)


def test_no_meta_no_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", a=np.zeros(3, np.float32))
    with pytest.raises(CheckpointError, match="'meta_json' is missing"):
        npz.read_npz(tmp_path / "model.npz")


def test_an_archive_that_does_not_begin_with_a_member_is_refused_as_numpy_refuses_it(
    tmp_path: Path,
) -> None:
    path = archive(tmp_path / "model.npz", bart(), META)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="pickled"):
        np.load(path, allow_pickle=False)
    with pytest.raises(CheckpointError, match="does not have the magic bytes of an"):
        npz.read_npz(path)


def test_a_message_does_not_quote_a_damaged_archive_at_length(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.npz", bart(), META)
    with zipfile.ZipFile(path) as file:
        start = file.getinfo("meta_json.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 26 : start + 28] = (1200).to_bytes(2, "little")  # the length of the member's name
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is broken") as caught:
        npz.read_npz(path)
    assert len(str(caught.value)) < 400 + len(str(path))
