"""Writing weights so that whoever reads the name gets the old file or the new one, whole.

Each write goes to a temporary sibling, is forced to the disk, opened again and compared, and only
then takes the name. A full disk, a read-only one or a Ctrl-C leaves what was there before, to the
bit, and removes the sibling.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
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
from sightline.files.checkpoint_files import file_sha256, printable_name

NAMES = {dtype: name for name, dtype in DTYPES.items()}
MANIFEST = "sightline.json"
VERSION = 1
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000


def save_safetensors(
    path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """One safetensors file. Every name is written in full, so tensors that share memory come back
    as separate ones."""
    path = Path(path)
    ordered = _ordered(path, tensors)
    with _replacing(path) as (temporary, file):
        file.write(_header(ordered, metadata or {}))
        for tensor in ordered.values():
            file.write(_bytes(tensor).numpy().data)
        _force(file)
        _compare(path, ordered, temporary)


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
    """A model folder: config.json from `keys`, the weights (in shards if they are larger than one),
    `files`, and their checksums."""
    folder = Path(os.path.abspath(folder))
    _check_target(folder, overwrite)
    _check_names(folder, files or {})
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.mkdir(parents=True)
        _save_weights(temporary, tensors, metadata or {"format": "pt"}, max_shard_bytes)
        for name, data in {"config.json": _json(keys), **(files or {})}.items():
            _save_bytes(temporary / name, data)
        sums = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
        _save_bytes(temporary / MANIFEST, _json({"version": VERSION, "sha256": sums}))
        _take_the_name(temporary, folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _ordered(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Checked, and wide numbers first, so that every tensor lies aligned."""
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
            or tensor.dtype not in NAMES
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


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    said: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.dtype.itemsize
        said[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    data = json.dumps(said, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.cpu().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _compare(path: Path, tensors: Mapping[str, Tensor], written: Path) -> None:
    """What is on the disk is what was given, bit for bit."""
    found = open_safetensors(written)
    for name, tensor in tensors.items():
        entry = found.get(name)
        if (
            entry is None
            or entry.shape != tuple(tensor.shape)
            or not torch.equal(_bytes(entry.read()), _bytes(tensor))
        ):
            raise CheckpointError(
                f"{printable_name(path)}: tensor {name} did not come back from the disk as"
                " it was written",
                fix="check the disk",
            )


@contextmanager
def _replacing(path: Path) -> Generator[tuple[Path, BinaryIO]]:
    """A new file beside `path` that takes its name at the end, or is removed if anything goes
    wrong."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(temporary, "xb") as file:
            yield temporary, file
        os.replace(temporary, path)
        _confirm(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _save_bytes(path: Path, data: bytes) -> None:
    with _replacing(path) as (_, file):
        file.write(data)
        _force(file)


def _force(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _force_folder(folder: Path) -> None:
    """A new name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _confirm(path: Path) -> None:
    try:
        _force_folder(path.parent)
    except OSError as error:
        seen = (
            f"{printable_name(path)} was written, but the disk does not confirm its name:"
            f" {error.strerror}"
        )
        raise CheckpointError(seen, fix="check the disk, then save again") from None


def _save_weights(
    folder: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], max_shard_bytes: int
) -> None:
    shards = _shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        save_safetensors(folder / "model.safetensors", shards[0], metadata)
        return
    homes: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_safetensors(folder / name, shard, metadata)
        homes |= dict.fromkeys(shard, name)
    total = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors.values())
    _save_bytes(folder / INDEX, _json({"metadata": {"total_size": total}, "weight_map": homes}))
    open_shards(folder, folder / INDEX)


def _shards(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """The tensors in their order, cut before each one that would make a shard larger than
    `most`."""
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


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the configuration cannot be written as JSON: {error}",
            fix="use finite numbers, text, lists and dicts",
        ) from None


def _check_target(folder: Path, overwrite: bool) -> None:
    try:
        taken = os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _unwritable(folder, error) from None
    if taken and not overwrite:
        raise CheckpointError(
            f"{printable_name(folder)} exists",
            expected="a new name",
            fix="choose another, or pass overwrite=True",
        )
    if taken and not (folder / MANIFEST).is_file():
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


def _take_the_name(temporary: Path, folder: Path) -> None:
    """The old folder steps aside until the new one is on the disk under its name; if that fails, it
    steps back."""
    _force_folder(temporary)
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    if os.path.lexists(folder):
        os.rename(folder, old)
    try:
        os.rename(temporary, folder)
        _force_folder(folder.parent)
    except BaseException:
        if not temporary.exists() and folder.exists():
            os.rename(folder, temporary)
        if old.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


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
