"""Pickled weights: converted only on request, by a sandboxed process that runs nothing from the
file and is stopped in time."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.checkpoints.formats import folder, legacy
from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.errors import CheckpointError

WEIGHTS = {
    "a": torch.arange(6.0).reshape(2, 3).T,
    "b": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
}
SOURCE = Path(legacy.__file__).parents[1]


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def saved(path: Path, value: Any, *, old: bool = False) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        legacy.convert(path, **options)
    line = str(caught.value)
    assert "\n" not in line
    assert path.name in line
    assert "Fix: " in line
    assert "weights_only" not in line
    return line


def test_converted_once_and_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "model"
    where.mkdir()
    (where / "config.json").write_text("{}")
    saved(where / "pytorch_model.bin", WEIGHTS)
    source = folder.read_folder(where, allow_pickle_weights=True)
    assert source.format == "torch"
    assert all(torch.equal(source.tensors[name].read(), tensor) for name, tensor in WEIGHTS.items())
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(subprocess, "Popen", None)
    folder.read_folder(where, allow_pickle_weights=True)


@pytest.mark.parametrize(
    "old",
    [
        pytest.param(True, id="plain pickle"),
        pytest.param(False, marks=pytest.mark.long, id="in a zip"),
    ],
)
def test_a_hostile_pickle_does_not_run(tmp_path: Path, cache: Path, old: bool) -> None:
    path = saved(tmp_path / "pytorch_model.bin", {"a": Evil(tmp_path / "canary")}, old=old)
    assert re.search(r"it calls (posix|nt|os)\.system", refusal(path))
    assert not (tmp_path / "canary").exists()
    assert not list(cache.iterdir())


def test_a_child_that_takes_too_long_is_killed(tmp_path: Path, cache: Path) -> None:
    started = time.perf_counter()
    assert "was stopped" in refusal(saved(tmp_path / "m.bin", WEIGHTS), seconds=0.2)
    assert time.perf_counter() - started < 5
    assert not list(cache.iterdir())


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def bad_rows() -> torch.Tensor:
    with torch.sparse.check_sparse_tensor_invariants(False):
        return torch.sparse_csr_tensor(
            torch.tensor([0, 9, -4]), torch.tensor([70, 80]), torch.ones(2), (2, 2)
        )


NOT_DENSE = {
    "sparse": lambda: {"a": torch.eye(3).to_sparse()},
    "sparse rows": lambda: {"a": torch.eye(3).to_sparse_csr()},
    "sparse rows out of range": lambda: {"a": bad_rows()},
    "quantised": lambda: {"a": torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)},
    "nested": lambda: {"a": nested()},
    "no data": lambda: {"a": torch.empty(3, device="meta")},
    "complex": lambda: {"a": torch.ones(3, dtype=torch.complex64)},
    "a wrapper": lambda: {
        "a": torch.nn.Buffer(torch.ones(2)).as_subclass(torch.nn.parameter.UninitializedBuffer)
    },
    "one number repeated 10^12 times": lambda: {"a": torch.zeros(1).expand(10**12)},
    "one tensor under many names": lambda: dict.fromkeys(map(str, range(500)), torch.ones(1000)),
    "a list": lambda: [torch.ones(1)],
    "a number": lambda: {"a": 3},
    "inside another dictionary": lambda: {"state_dict": {"a": torch.ones(1)}},
    "numbered": lambda: {0: torch.ones(1)},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", NOT_DENSE.values(), ids=NOT_DENSE)
def test_only_dense_tensors_under_names(tmp_path: Path, make: Any) -> None:
    """What the child decides, asked here without a child; the long tier asks the child."""
    path = saved(tmp_path / "m.bin", make())
    with pytest.raises((CheckpointError, RuntimeError, pickle.UnpicklingError, ValueError)):
        legacy._dense(legacy._load(path), path.stat().st_size)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", NOT_DENSE.values(), ids=NOT_DENSE)
def test_the_child_refuses_the_same(tmp_path: Path, cache: Path, make: Any) -> None:
    refusal(saved(tmp_path / "m.bin", make()))
    assert not list(cache.iterdir())


@pytest.mark.parametrize("old", [False, True])
def test_both_of_torchs_formats_are_read(tmp_path: Path, old: bool) -> None:
    path = saved(tmp_path / "m.bin", WEIGHTS, old=old)
    result = legacy._dense(legacy._load(path), 10**6)
    assert all(torch.equal(result[name], tensor) for name, tensor in WEIGHTS.items())


Records = list[tuple[zipfile.ZipInfo, bytes]]


def rezipped(path: Path, change: Callable[[Records], Records]) -> Path:
    """The archive with other records."""
    with zipfile.ZipFile(path) as archive:
        records = [(info, archive.read(info)) for info in archive.infolist()]
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        warnings.simplefilter("ignore")  # a name that comes twice
        for info, data in change(records):
            archive.writestr(info.filename, data)
    return path


def shortened(records: Records) -> Records:
    return [
        (info, data[:4] if info.filename.endswith("data/0") else data) for info, data in records
    ]


def lengthened(records: Records) -> Records:
    return [
        (info, data + bytes(4) if info.filename.endswith("data/0") else data)
        for info, data in records
    ]


def without_a_record(records: Records) -> Records:
    return [(info, data) for info, data in records if not info.filename.endswith("data/0")]


def with_a_record_twice(records: Records) -> Records:
    return [*records, *((info, data) for info, data in records if info.filename.endswith("data/0"))]


@pytest.mark.parametrize("change", [shortened, lengthened, without_a_record, with_a_record_twice])
def test_a_record_that_does_not_fit_its_storage_is_refused(
    change: Callable[[Records], Records], tmp_path: Path
) -> None:
    """torch maps the file and fills 4,799 of 4,800 numbers with the bytes that follow a record cut
    to 4."""
    path = rezipped(
        saved(tmp_path / "m.bin", {"a": torch.randn(60, 80), "b": torch.ones(5000)}), change
    )
    with pytest.raises((CheckpointError, RuntimeError)):
        legacy._tensors(path, 10**6)


def test_the_sizes_of_records_are_checked_whatever_torch_does(tmp_path: Path) -> None:
    """Older versions of torch read beyond a record that is too short."""
    tensors = {"a": torch.randn(60, 80), "b": torch.ones(5000), "empty": torch.ones(0)}
    tensors["view"] = tensors["b"][10:20]
    path = saved(tmp_path / "m.bin", tensors)
    legacy._check_records(path, tensors)
    for change in (shortened, lengthened, without_a_record):
        with pytest.raises(
            CheckpointError, match=r"its tensors need 39,200 bytes in 2 records, it holds"
        ):
            legacy._check_records(rezipped(saved(path, tensors), change), tensors)


def test_compressed_records_are_unpacked_not_taken_for_weights(tmp_path: Path) -> None:
    weights = {"a": torch.arange(4800.0), "b": torch.ones(5000)}
    path = saved(tmp_path / "m.bin", weights)
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    result = legacy._tensors(path, 10**6)
    assert all(torch.equal(result[name], tensor) for name, tensor in weights.items())


def test_a_size_that_the_directory_lies_about_is_refused(tmp_path: Path) -> None:
    path = rezipped(
        saved(tmp_path / "m.bin", {"a": torch.randn(60, 80), "b": torch.ones(5000)}), shortened
    )
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
    data = bytearray(path.read_bytes())
    at = (
        data.index(b"data/0", directory) - len("m/") - 46
    )  # the record's entry in the central directory
    assert data[at : at + 4] == b"PK\1\2"
    data[at + 20 : at + 28] = struct.pack("<II", 19200, 19200)
    path.write_bytes(data)
    with pytest.raises((CheckpointError, RuntimeError), match="reaches into the next one"):
        legacy._tensors(path, 10**6)


def test_the_converter_refuses_a_record_that_is_too_short(tmp_path: Path, cache: Path) -> None:
    path = rezipped(
        saved(tmp_path / "m.bin", {"a": torch.randn(60, 80), "b": torch.ones(5000)}), shortened
    )
    assert re.search(r"record size \(4 bytes\)|its tensors need 39,200 bytes", refusal(path))
    assert not list(cache.iterdir())


def test_older_files_with_a_storage_that_is_too_short_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.bin", {"a": torch.randn(60, 80)}, old=True)
    data = path.read_bytes()
    at = data.rindex(struct.pack("<q", 4800))
    for changed in (
        data[:-400],
        data[:at] + struct.pack("<q", 1) + data[at + 8 : at + 12],
        data[:at] + struct.pack("<q", 1) + data[at + 8 :],
    ):
        path.write_bytes(changed)
        with pytest.raises((CheckpointError, RuntimeError, EOFError)):
            legacy._tensors(path, 10**6)


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\3\4" + bytes(99), b"GGUF" + bytes(99), b"{}"])
def test_what_is_no_torch_file_starts_no_child(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    (tmp_path / "m.bin").write_bytes(data)
    assert "expected weights written by torch.save" in refusal(tmp_path / "m.bin")


LIMITS = """
import resource
from sightline.checkpoints.formats import legacy
before = legacy._mapped()
legacy._limit(10, 7)
most, hard = resource.getrlimit(resource.RLIMIT_AS)
print(most == hard, 0 <= most - before - 2**30 - 30 < 2**21, resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE))
"""


def test_limits_are_set_in_a_separate_process() -> None:
    """A file of 10 bytes may take a gibibyte and 30 bytes more than torch itself has taken."""
    output = subprocess.run(
        [sys.executable, "-c", LIMITS], capture_output=True, text=True, check=True
    ).stdout
    assert output == "True True (7, 7) (0, 0)\n"


@pytest.mark.long
def test_a_pickle_that_asks_for_memory_is_stopped(tmp_path: Path) -> None:
    """64 GiB of storage promised by a file of a kilobyte."""
    path = saved(tmp_path / "m.bin", {"a": torch.ones(3)}, old=True)
    data = path.read_bytes().replace(b"K\x03N", b"\x8a\x05\x00\x00\x00\x00\x04N")
    assert data != path.read_bytes()
    path.write_bytes(data)
    refusal(path)


@pytest.mark.long
def test_truncated_pickles_and_shards(tmp_path: Path) -> None:
    data = saved(tmp_path / "m.bin", WEIGHTS).read_bytes()
    for part in range(1, 8):
        (tmp_path / "cut.bin").write_bytes(data[: len(data) * part // 8])
        refusal(tmp_path / "cut.bin")


@pytest.mark.long
def test_shards_of_pickles(tmp_path: Path) -> None:
    where = tmp_path / "model"
    where.mkdir()
    (where / "config.json").write_text("{}")
    saved(where / "one.bin", {"a": torch.ones(2)})
    saved(where / "two.bin", {"b": torch.ones(3)}, old=True)
    index = {"metadata": {"total_size": 20}, "weight_map": {"a": "one.bin", "b": "two.bin"}}
    (where / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="--from-pickle"):
        folder.read_folder(where)
    assert folder.read_folder(where, allow_pickle_weights=True).tensors["b"].read().sum() == 3
    index["weight_map"]["b"] = "../two.bin"
    (where / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="plain name"):
        folder.read_folder(where, allow_pickle_weights=True)


def test_a_damaged_cache_is_made_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "m.bin", WEIGHTS)
    made = tmp_path / "made"
    legacy.save_safetensors(made, legacy._dense(legacy._load(path), 10**6))
    monkeypatch.setattr(
        legacy, "_run_child", lambda _, out, *rest: out.write_bytes(made.read_bytes())
    )
    kept = legacy.convert(path)
    os.truncate(kept, 50)
    assert open_safetensors(legacy.convert(path)).keys() == WEIGHTS.keys()


def test_what_the_child_writes_is_not_trusted(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legacy, "_run_child", lambda _, out, *rest: out.write_bytes(b"\x80\x02}."))
    with pytest.raises(CheckpointError, match="is a pickle, not safetensors"):
        legacy.convert(saved(tmp_path / "m.bin", WEIGHTS))
    assert not list(cache.iterdir())


def test_no_unsafe_load_exists() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"weights_only\s*=\s*(False|0|None)|pickle\.loads?\(|joblib\.|allow_pickle\s*=\s*True|extractall\(",
            text,
        ), path
        for call in re.findall(r"torch\.load\((.*)", text):
            assert "weights_only=True" in call, path
