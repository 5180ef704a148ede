"""Untrusted safetensors files: every kind of damage is a typed one-line error."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from sightline.checkpoints.formats.safetensors import DTYPES, open_safetensors
from sightline.errors import CheckpointError


def entry(begin: int = 0, end: int = 8, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": list(shape) if isinstance(shape, tuple) else shape,
        "data_offsets": [begin, end],
    }


def raw(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    """A safetensors file with whatever header: text and bytes as they are, anything else as
    JSON."""
    text = (
        header
        if isinstance(header, bytes)
        else header.encode()
        if isinstance(header, str)
        else json.dumps(header).encode()
    )
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def refusal(path: Path) -> str:
    """The one line that opening gives."""
    with pytest.raises(CheckpointError) as caught:
        open_safetensors(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.isprintable()
    assert path.name in line
    assert "Fix: " in line
    return line


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
TWICE = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'

BAD = {
    "pickle with os.system": (
        b"cos\nsystem\n(S'touch canary'\ntR.",
        "is a pickle, not safetensors",
    ),
    "pickle protocol 2": (
        b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01.",
        "is a pickle, not safetensors",
    ),
    "zip": (b"PK\x03\x04" + bytes(60), "is a zip archive, not safetensors"),
    "GGUF": (b"GGUF\x03\x00\x00\x00" + bytes(40), "is a GGUF file, not safetensors"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "is an HDF5 file"),
    "PDF": (b"%PDF-1.7\n" + bytes(40), "is a PDF"),
    "git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "git-lfs pointer",
    ),
    "web page": (b"<!DOCTYPE html><html>404</html>", "is a web page"),
    "length 0": (raw({}, length=0), "header of 0 bytes"),
    "length 7 of 7": ((7).to_bytes(8, "little") + b"1234567", "does not start with"),
    "length 7, file of 7 bytes": (b"\x07" + bytes(6), "7 bytes long"),
    "length 2^63": (raw({}, length=2**63), "9,223,372,036,854,775,808 bytes"),
    "length beyond the file": (raw({}, length=1000), "is cut short"),
    "length beyond 100 MB": (raw({}, length=100_000_001), "100,000,001 bytes"),
    "not UTF-8": (raw(b'{"\xff\xfe":1}'), "is not UTF-8 at byte 2"),
    "not an object": (raw("[1,2,3]"), "does not start with '{'"),
    "spaces first": (raw('   {"a":1}'), "does not start with '{'"),
    "trailing garbage": (raw('{"a":1} x'), "not JSON at character 8"),
    "deeply nested": (raw(DEEP), "nested deeper"),
    "integer of 100,000 digits": (raw('{"a":' + "9" * 100_000 + "}"), "100,000 digits"),
    "NaN": (raw('{"a":NaN}'), "NaN"),
    "infinity by size": (raw('{"a":1e999}'), "not finite"),
    "millions of values": (
        raw(b'{"a":[' + b"0," * 2_000_001 + b"0]}"),
        "more than 2,000,000 values",
    ),
    "duplicate names": (raw(TWICE), "key a twice"),
    "overlapping": (
        raw({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        "tensor b at offset 4 overlaps a",
    ),
    "the same bytes twice": (raw({"a": entry(0, 8), "b": entry(0, 8)}), "overlaps"),
    "hole": (
        raw({"a": entry(0, 8), "b": entry(12, 20)}, bytes(20)),
        "hole before tensor b: offsets 8 to 12",
    ),
    "not starting at 0": (
        raw({"a": entry(4, 12)}, bytes(12)),
        "hole before tensor a: offsets 0 to 4",
    ),
    "negative": (raw({"a": entry(-8, 0)}), "tensor a: data_offsets [-8, 0] are impossible"),
    "end before begin": (raw({"a": entry(8, 0)}), "tensor a"),
    "out of the file": (
        raw({"a": entry(0, 8)}, bytes(7)),
        "is cut short: tensor a ends at offset 8",
    ),
    "bytes after the end": (raw({"a": entry(0, 8)}, bytes(9)), "1 bytes after the last tensor"),
    "offsets are floats": (raw({"a": entry() | {"data_offsets": [0.0, 8.0]}}), "data_offsets"),
    "offsets are true": (raw({"a": entry() | {"data_offsets": [False, True]}}), "data_offsets"),
    "three offsets": (raw({"a": entry() | {"data_offsets": [0, 4, 8]}}), "data_offsets"),
    "shape and bytes differ": (
        raw({"a": entry(shape=(3,))}),
        "hold 8 bytes; expected 12 for F32 [3]",
    ),
    "product is 2^64 + 8": (raw({"a": entry(shape=(2**32, 2**32))}), "is impossible"),
    "dimension 10^18": (raw({"a": entry(shape=(10**18,))}), "tensor a"),
    "dimension beyond 2^63": (raw({"a": entry(shape=(2**63, 0))}), "is impossible"),
    "negative dimension": (raw({"a": entry(shape=(-1, -2))}), "is impossible"),
    "thousands of dimensions": (raw({"a": entry(shape=(1,) * 5000)}), "is impossible"),
    "shape is text": (raw({"a": entry(shape="2")}), "is impossible"),
    "unknown dtype": (raw({"a": entry(dtype="F33")}), "dtype F33 is not supported"),
    "dtype is a list": (raw({"a": entry(dtype=["F32"])}), "is not supported"),
    "eight-bit floats": (
        raw({"a": entry(shape=(8,), dtype="F8_E4M3")}),
        "BF16, F16 or F32 files",
    ),
    "below a byte": (raw({"a": entry(shape=(16,), dtype="F4")}), "BF16, F16 or F32 files"),
    "empty file": (b"", "0 bytes long"),
    "name with ..": (raw({"../../x": entry()}), "is unusable"),
    "name of 1 MB": (raw({"n" * 1_000_000: entry()}), "is unusable"),
    "control characters": (raw({"a\x1b[31m\n": entry()}), "is unusable"),
    "right-to-left override": (raw({"a\u202eb": entry()}), "is unusable"),
    "lone surrogate": (raw('{"\\ud800":1}'), "has half of a surrogate pair"),
    "empty name": (raw({"": entry()}), "is unusable"),
    "entry lacks its shape": (
        raw({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
        "tensor a: entry is not complete",
    ),
    "entry has more": (raw({"a": entry() | {"code": "x"}}), "entry is not complete"),
    "entry is a number": (raw({"a": 3}), "entry is not complete"),
    "metadata is a list": (raw({"__metadata__": [], "a": entry()}), "__metadata__ is not text"),
    "metadata holds a number": (
        raw({"__metadata__": {"a": 1}, "a": entry()}),
        "__metadata__ is not text",
    ),
}


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD)
def test_refused_in_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    started = time.perf_counter()
    line = refusal(path)
    assert words in line
    assert len(line) < 900
    assert time.perf_counter() - started < 5


GOOD = {
    "0-size tensors": (
        raw({"a": entry(0, 0, (0, 10**18)), "b": entry()}),
        {"a": (0, 10**18), "b": (2,)},
    ),
    "no tensors": (raw({}, b""), {}),
    "a scalar": (raw({"a": entry(0, 4, ())}, bytes(4)), {"a": ()}),
    "names like Python's": (raw({"__class__": entry()}), {"__class__": (2,)}),
    "padding after the header": (raw(json.dumps({"a": entry()}) + "   "), {"a": (2,)}),
    "header length like a pickle's magic": (
        raw(json.dumps({"a": entry()}).ljust(0x0280)),
        {"a": (2,)},
    ),
    "not aligned": (
        raw(json.dumps({"a": entry()}) + " " * (1 + len(json.dumps({"a": entry()})) % 2)),
        {"a": (2,)},
    ),
}


@pytest.mark.parametrize(("data", "shapes"), GOOD.values(), ids=GOOD)
def test_unusual_but_right(tmp_path: Path, data: bytes, shapes: dict[str, tuple[int, ...]]) -> None:
    path = tmp_path / "odd.name"
    path.write_bytes(data)
    result = open_safetensors(path)
    assert {name: tuple(result[name].read().shape) for name in result} == shapes
    assert all((result[name].read() == 0).all() for name in result)


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {
        name: (torch.randn(3, 5) * 50).to(dtype) for name, dtype in DTYPES.items() if name != "BOOL"
    }
    return made | {
        "BOOL": torch.tensor([True, False, True]),
        "scalar": torch.tensor(1.5),
        "nothing": torch.empty(0, 4),
    }


def test_every_dtype_as_the_library_writes_it(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "m.safetensors", {"format": "pt"})
    result = open_safetensors(str(tmp_path / "m.safetensors"))
    assert result.keys() == sample().keys()
    for name, tensor in sample().items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name].read(), tensor)


def test_a_thousand_tensors_open_in_20_ms(tmp_path: Path) -> None:
    save_file(
        {f"decoder.{n}.weight": torch.ones(3) for n in range(1000)}, tmp_path / "m.safetensors"
    )
    open_safetensors(tmp_path / "m.safetensors")
    times = []
    for _ in range(7):
        started = time.process_time()
        open_safetensors(tmp_path / "m.safetensors")
        times.append(time.process_time() - started)
    assert min(times) < 0.020


def test_reading_maps_and_never_writes_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    before = path.read_bytes()
    result = open_safetensors(path)["a"]
    first = result.read()
    assert first.data_ptr() == result.read().data_ptr()
    first.zero_()
    assert path.read_bytes() == before
    assert open_safetensors(path)["a"].read().sum() == 1000


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    data = save({"a": torch.ones(3), "b": torch.ones(2, dtype=torch.float16)}, {"format": "pt"})
    for length in range(len(data)):
        path = tmp_path / "cut.safetensors"
        path.write_bytes(data[:length])
        refusal(path)


CHANGES = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 4),
    "grown": lambda path: path.open("ab").write(b"x"),
    "rewritten later": lambda path: os.utime(path, ns=(0, 10**18)),
    "replaced": lambda path: (
        path.rename(path.with_suffix(".old")),
        path.write_bytes(path.with_suffix(".old").read_bytes()),
    ),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_file_that_changes_after_opening_is_refused(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    result = open_safetensors(path)["a"]
    change(path)
    with pytest.raises(CheckpointError, match="since it was opened"):
        result.read()


def test_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "circle.safetensors").symlink_to("circle.safetensors")
    for name in ("fifo", "folder", "circle", "missing", "line\nbreak", "n" * 300):
        with pytest.raises(CheckpointError) as caught:
            open_safetensors(tmp_path / f"{name}.safetensors")
        assert "\n" not in str(caught.value)
    for path in ("/dev/zero", "nul\0l"):
        with pytest.raises(CheckpointError):
            open_safetensors(path)
