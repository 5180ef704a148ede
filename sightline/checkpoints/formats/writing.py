"""Atomic writing of weights: a reader sees the old file or the new one, never a part.

Each file is written beside its place, flushed to disk, read back and compared, and only then
renamed. A full or read-only disk or a Ctrl-C leaves the old file unchanged.

Only the header is made here; the format is checked against the safetensors library in the tests.
The library's own `save_file` (0.8) does not fit: it writes another temporary file, readable by its
owner alone, and renames it over the one that is open here, so that our fsync would miss it and a
killed process would leave it behind; its errors carry no errno; and it needs every tensor of a
shard contiguous and in memory of its own, where this copies one at a time (1 GB of transposed
weights: +131 MB against +1,026 MB). `serialize` needs the whole shard in memory a second time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from sightline.checkpoints.formats.safetensors import (
    DTYPES,
    MOST_NAME,
    open_safetensors,
    open_shards,
)
from sightline.errors import CheckpointError
from sightline.files.atomic import atomic_write, replace_folder, sibling, sync_folder
from sightline.files.checkpoint_files import file_sha256, printable_name

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MANIFEST = "sightline.json"
VERSION = 1
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000


def save_safetensors(
    path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write one safetensors file. Tensors that share memory are written separately."""
    path = Path(path)
    ordered = _check_and_order(path, tensors)
    with _replacing(path) as file:
        file.write(_safetensors_header(ordered, metadata or {}))
        for tensor in ordered.values():
            file.write(_tensor_bytes(tensor).numpy().data)
        _force(file)
        _check_read_back(path, ordered, Path(file.name))


def save_folder(
    folder: Path | str,
    tensors: Mapping[str, Tensor],
    *,
    keys: Mapping[str, Any],
    files: Mapping[str, bytes] | None = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Write a model folder: config.json from `keys`, the weights (sharded above `max_shard_bytes`),
    `files`, and their checksums."""
    folder = Path(os.path.abspath(folder))
    _check_target(folder, overwrite)
    _check_names(folder, files or {})
    temporary = sibling(folder, "partial")
    try:
        temporary.mkdir(parents=True)
        _save_weights(temporary, tensors, metadata or {"format": "pt"}, max_shard_bytes)
        for name, data in {"config.json": _json_bytes(keys), **(files or {})}.items():
            _save_bytes(temporary / name, data)
        sums = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
        _save_bytes(temporary / MANIFEST, _json_bytes({"version": VERSION, "sha256": sums}))
        replace_folder(temporary, folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_and_order(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, checked, and ordered by item size so that each is aligned."""
    for name, tensor in tensors.items():
        if (
            not 0 < len(name) <= MOST_NAME
            or not name.isprintable()
            or ".." in name
            or name == "__metadata__"
        ):
            raise CheckpointError(
                f"{printable_name(path)}: tensor name {printable_name(name)!r} cannot be written",
                fix="use printable names without '..'",
            )
        if (
            tensor.layout != torch.strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_meta
            or tensor.dtype not in DTYPE_NAMES
        ):
            seen = (
                f"{printable_name(path)}: tensor {name} ({tensor.dtype}, {tensor.layout})"
                " cannot be written"
            )
            raise CheckpointError(
                seen,
                expected=f"a dense tensor of {' '.join(DTYPES)}",
                fix="convert it first: tensor.to_dense().float()",
            )
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    return {name: tensors[name].detach() for name in names}


def _safetensors_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def _tensor_bytes(tensor: Tensor) -> Tensor:
    return tensor.cpu().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _check_read_back(path: Path, tensors: Mapping[str, Tensor], written: Path) -> None:
    """Check that the file holds the tensors bit for bit."""
    entries = open_safetensors(written)
    for name, tensor in tensors.items():
        entry = entries.get(name)
        if (
            entry is None
            or entry.shape != tuple(tensor.shape)
            or not torch.equal(_tensor_bytes(entry.read()), _tensor_bytes(tensor))
        ):
            raise CheckpointError(
                f"{printable_name(path)}: tensor {name} did not come back from the disk as"
                " it was written",
                fix="check the disk",
            )


@contextmanager
def _replacing(path: Path) -> Generator[BinaryIO]:
    """`atomic_write`, with errors that name the path and state that the old file is unchanged."""
    try:
        with atomic_write(path) as file:
            yield file
        _confirm(path)
    except OSError as error:
        raise _unwritable(path, error) from None


def _save_bytes(path: Path, data: bytes) -> None:
    with _replacing(path) as file:
        file.write(data)
        _force(file)


def _force(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _confirm(path: Path) -> None:
    try:
        sync_folder(path.parent)
    except OSError as error:
        seen = (
            f"{printable_name(path)} was written, but its name is not on disk yet: {error.strerror}"
        )
        raise CheckpointError(seen, fix="check the disk, then save again") from None


def _save_weights(
    folder: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], max_shard_bytes: int
) -> None:
    shards = _split_into_shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        save_safetensors(folder / "model.safetensors", shards[0], metadata)
        return
    homes: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_safetensors(folder / name, shard, metadata)
        homes |= dict.fromkeys(shard, name)
    total = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors.values())
    _save_bytes(
        folder / INDEX, _json_bytes({"metadata": {"total_size": total}, "weight_map": homes})
    )
    open_shards(folder, folder / INDEX)


def _split_into_shards(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """The tensors in order, in shards of up to `most` bytes (a larger tensor is its own shard)."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        needs = tensor.numel() * tensor.dtype.itemsize
        if shards[-1] and size + needs > most:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += needs
    return shards


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the configuration cannot be written as JSON: {error}",
            fix="use finite numbers, text, lists and dicts",
        ) from None


def _check_target(folder: Path, overwrite: bool) -> None:
    try:
        exists = os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _unwritable(folder, error) from None
    if exists and not overwrite:
        raise CheckpointError(
            f"{printable_name(folder)} exists",
            expected="a new name",
            fix="choose another, or pass overwrite=True",
        )
    if exists and not (folder / MANIFEST).is_file():
        raise CheckpointError(
            f"{printable_name(folder)} was not written by Sightline (no {MANIFEST})",
            fix="choose another name, or remove it yourself",
        )


def _check_names(folder: Path, files: Mapping[str, bytes]) -> None:
    for name in files:
        ours = name in ("config.json", MANIFEST, INDEX) or name.endswith(".safetensors")
        if (
            ours
            or not name
            or name != os.path.basename(name)
            or name in (".", "..")
            or not name.isprintable()
        ):
            raise CheckpointError(
                f"{printable_name(folder)}: a file cannot be called {printable_name(name)!r} here",
                fix="give another plain file name",
            )


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    fix = (
        "free some space, then save again"
        if error.errno in (28, 122)
        else "choose a folder that can be written"
    )
    return CheckpointError(
        f"{printable_name(path)} cannot be written: {error.strerror}; what was there"
        " before is unchanged",
        fix=fix,
    )
