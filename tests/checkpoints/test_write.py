"""Writing: what is read back is what was given, and a write that fails changes nothing."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sightline.checkpoints.formats import folder
from sightline.checkpoints.formats import writing as write
from sightline.checkpoints.formats.safetensors import DTYPES, open_safetensors
from sightline.errors import CheckpointError


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {f"weight.{name}": (torch.randn(3, 5) * 50).to(dtype) for name, dtype in DTYPES.items()}
    return made | {
        "scalar": torch.tensor(float("nan")),
        "nothing": torch.empty(0, 4),
        "turned": torch.randn(4, 6).T,
    }


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def contents(where: Path) -> dict[str, bytes]:
    """Every file below, hidden ones too."""
    return {
        str(path.relative_to(where)): path.read_bytes()
        for path in sorted(where.rglob("*"))
        if path.is_file()
    }


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    write.save_safetensors(tmp_path / "m.safetensors", sample(), {"format": "pt"})
    theirs, ours = (
        load_file(tmp_path / "m.safetensors"),
        open_safetensors(tmp_path / "m.safetensors"),
    )
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    for name, tensor in sample().items():
        assert theirs[name].dtype == ours[name].dtype == tensor.dtype
        assert bits(theirs[name]) == bits(ours[name].read()) == bits(tensor)
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_every_tensor_is_aligned_in_the_file(tmp_path: Path) -> None:
    write.save_safetensors(
        tmp_path / "m.safetensors",
        {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(3), "c": torch.ones(1).double()},
    )
    result = open_safetensors(tmp_path / "m.safetensors")
    assert all(result[name].read().data_ptr() % result[name].dtype.itemsize == 0 for name in result)
    assert all(result[name].read().data_ptr() == result[name].read().data_ptr() for name in result)


def test_shared_memory_is_written_under_each_name(tmp_path: Path) -> None:
    tied = torch.nn.Parameter(torch.randn(4, 4))
    write.save_safetensors(
        tmp_path / "m.safetensors", {"embedding": tied, "head": tied, "row": tied[1]}
    )
    result = {
        name: entry.read() for name, entry in open_safetensors(tmp_path / "m.safetensors").items()
    }
    result["embedding"].zero_()
    assert torch.equal(result["head"], tied)
    assert torch.equal(result["row"], tied[1])


@pytest.mark.parametrize("name", ["", "../x", "a\nb", "n" * 513, "__metadata__"])
def test_names_that_we_would_not_read_are_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        write.save_safetensors(tmp_path / "m.safetensors", {name: torch.ones(1)})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64), torch.empty(2, device="meta")],
)
def test_only_dense_tensors_are_written(tmp_path: Path, tensor: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"tensor a .* cannot be written"):
        write.save_safetensors(tmp_path / "m.safetensors", {"a": tensor})
    assert not os.listdir(tmp_path)


@contextmanager
def small_disk(most: int) -> Iterator[None]:
    """The kernel refuses to let any file grow beyond `most` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("most", [0, 1, 100, 5000])
def test_a_file_that_cannot_grow_leaves_the_old_one(tmp_path: Path, most: int) -> None:
    write.save_safetensors(tmp_path / "m.safetensors", {"a": torch.ones(10)})
    before = contents(tmp_path)
    with small_disk(most), pytest.raises(CheckpointError, match="unchanged"):
        write.save_safetensors(tmp_path / "m.safetensors", {"a": torch.zeros(5000)})
    assert contents(tmp_path) == before


def failing(code: int) -> Any:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


FAULTS = [
    (call, code)
    for call in ("fsync", "replace", "rename", "open")
    for code in (errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE)
]


@pytest.mark.parametrize(
    ("call", "code"), FAULTS, ids=[f"{call} {errno.errorcode[code]}" for call, code in FAULTS]
)
def test_a_fault_at_each_call_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    target = tmp_path / "model"
    write.save_folder(target, {"a": torch.ones(10)}, keys={"n": 1})
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(code))
        with pytest.raises(CheckpointError) as caught:
            write.save_folder(target, {"a": torch.zeros(10)}, keys={"n": 2}, overwrite=True)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    assert folder.read_folder(target, verify=True).keys == {"n": 1}


@pytest.mark.parametrize("call", ["fsync", "replace", "rename", "open", "close"])
@pytest.mark.parametrize("exists", [True, False])
def test_one_fault_at_the_nth_call_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, exists: bool
) -> None:
    target, real = tmp_path / "model", getattr(os, call)
    if exists:
        write.save_folder(target, {"a": torch.ones(10)}, keys={"n": 1})
    before = contents(tmp_path)
    for nth in range(100):
        left = [nth]

        def once(*arguments: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, once)
            try:
                write.save_folder(target, {"a": torch.zeros(10)}, keys={"n": 2}, overwrite=True)
            except CheckpointError:
                assert contents(tmp_path) == before
            else:
                break
    assert nth > 0
    assert folder.read_folder(target, verify=True).keys == {"n": 2}
    left_over = [name for name in os.listdir(tmp_path) if name != "model"]
    assert all(
        name.endswith(".old") for name in left_over
    )  # only where the fault hit the removal of the old folder
    assert not left_over or (call in ("open", "close") and exists)


def test_the_second_rename_failing_undoes_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real, calls = tmp_path / "model", os.rename, []
    write.save_folder(target, {"a": torch.ones(10)}, keys={"n": 1})
    before = contents(tmp_path)

    def rename(*names: Any) -> None:
        calls.append(names)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*names)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        write.save_folder(target, {"a": torch.zeros(10)}, keys={"n": 2}, overwrite=True)
    assert len(calls) == 3
    assert contents(tmp_path) == before


def test_what_the_disk_changes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(file: Any) -> None:
        file.flush()
        data = bytearray(Path(file.name).read_bytes())
        data[-1] ^= 1
        Path(file.name).write_bytes(data)

    monkeypatch.setattr(write, "_force", flip)
    with pytest.raises(CheckpointError, match="tensor a did not come back"):
        write.save_safetensors(tmp_path / "m.safetensors", {"a": torch.ones(10)})
    assert not os.listdir(tmp_path)


def test_a_folder_in_shards(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((10,), float(n)) for n in range(5)}
    write.save_folder(
        tmp_path / "model",
        tensors,
        keys={"model_type": "gpt2"},
        files={"tokenizer.json": b"{}"},
        max_shard_bytes=80,
    )
    source = folder.read_folder(tmp_path / "model", verify=True)
    assert list(source.tensors) == list(tensors)
    assert all(torch.equal(source.tensors[name].read(), tensor) for name, tensor in tensors.items())
    shards = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert shards == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert (
        json.loads((tmp_path / "model" / write.INDEX).read_text())["metadata"]["total_size"] == 200
    )
    assert os.listdir(tmp_path) == ["model"]


def test_a_tensor_larger_than_a_shard_has_its_own(tmp_path: Path) -> None:
    write.save_folder(
        tmp_path / "m",
        {"a": torch.ones(1), "b": torch.ones(99), "c": torch.ones(1)},
        keys={},
        max_shard_bytes=8,
    )
    assert len(list((tmp_path / "m").glob("*.safetensors"))) == 3


def test_a_folder_that_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(CheckpointError, match="exists"):
        write.save_folder(tmp_path / "photos", {"a": torch.ones(1)}, keys={})
    with pytest.raises(CheckpointError, match="not written by Sightline"):
        write.save_folder(tmp_path / "photos", {"a": torch.ones(1)}, keys={}, overwrite=True)
    assert contents(tmp_path) == {"photos/cat.jpg": b"cat"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.ones(1), {1, 2}, "\ud800"])
def test_a_configuration_that_is_not_json(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        write.save_folder(tmp_path / "m", {"a": torch.ones(1)}, keys={"a": value})
    assert not os.listdir(tmp_path)


def test_an_empty_folder_may_be_filled_and_ours_replaced(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    write.save_folder(tmp_path / "m", {"a": torch.ones(1)}, keys={"n": 1})
    write.save_folder(tmp_path / "m", {"a": torch.ones(1)}, keys={"n": 2}, overwrite=True)
    assert folder.read_folder(tmp_path / "m", verify=True).keys == {"n": 2}
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "", "..", "config.json", "model.safetensors", "sightline.json", "new\nline"],
)
def test_other_files_have_plain_names_of_their_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be called"):
        write.save_folder(tmp_path / "m", {"a": torch.ones(1)}, keys={}, files={name: b""})
    assert not os.listdir(tmp_path)
