"""Checkpoints of a run: complete on disk, or not there at all.

    run/checkpoints/step-00000500/    model.safetensors  optimizer.safetensors  ema.safetensors
                                      manifest.json (sha256 of each file)

A checkpoint is written under a temporary name, flushed to disk, read back and compared, and only
then renamed; then LATEST is written, and the oldest are removed. A process that is killed at any
moment leaves at least the previous checkpoint. Nothing is pickled. When `save_checkpoint` returns,
the checkpoint is on disk: nothing is written in the background.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.checkpoints.formats.writing import save_safetensors
from sightline.errors import CheckpointError
from sightline.files.atomic import replace_folder, sibling, sync_folder, write_text
from sightline.files.checkpoint_files import file_sha256
from sightline.files.regular import read_text_file
from sightline.training.distributed.process_group import is_sharded, shard_like
from sightline.training.loop import TrainState

FOLDER = "checkpoints"
LATEST = "LATEST"
MANIFEST = "manifest.json"
VERSION = 1
LEFTOVER = re.compile(r"\..+\.([0-9a-f]{8}\.(partial|old)|[0-9a-f]{16}\.part)")


def library_versions() -> dict[str, str]:
    """The versions of the libraries that compute; others may differ in the last bits."""
    return {"sightline": version("sightline"), "torch": torch.__version__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The manifest of a checkpoint. `run` is the description of the run (see `run.py`), `best` the
    lowest validation loss so far."""

    step: int
    seconds: float
    run: dict[str, Any]
    skip: list[int] = field(default_factory=list[int])
    validation: float | None = None
    best: float | None = None
    random: str = "step n draws from Philox(seed, n, rank): there is no state"
    versions: dict[str, str] = field(default_factory=lambda: library_versions())
    sha256: dict[str, str] = field(default_factory=dict[str, str])
    version: int = VERSION


def save_checkpoint(
    state: TrainState,
    folder: Path,
    run: dict[str, Any],
    *,
    validation: float | None,
    keep: int,
    best: float | None = None,
) -> Path:
    """Write a checkpoint, then remove old ones beyond `keep`, but never the best. All processes
    gather the tensors, the first one writes."""
    place = folder / FOLDER / f"step-{state.step:08d}"
    files = checkpoint_tensors(state)
    if not state.group.is_main:
        return place
    manifest = Manifest(
        step=state.step,
        seconds=state.seconds,
        run=run,
        skip=sorted(state.skip),
        validation=finite_number_or_none(validation),
        best=finite_number_or_none(best),
    )
    try:
        if not place.parent.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(folder)
        write_checkpoint(place, files, manifest)
    except (OSError, CheckpointError) as error:
        why = error.seen if isinstance(error, CheckpointError) else error.strerror or error
        raise CheckpointError(
            f"{place.name} could not be written ({why}); the checkpoints before it are untouched",
            fix="free some space; --resume auto continues from the last one",
        ) from None
    with suppress(
        OSError
    ):  # the checkpoint is complete; LATEST is for people, and pruning can wait
        write_text(place.parent / LATEST, place.name, durable=True)
        prune(folder, keep, complete=place)
    return place


def finite_number_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def write_checkpoint(
    place: Path, files: Mapping[str, Mapping[str, Tensor]], manifest: Manifest
) -> None:
    """Write a checkpoint folder atomically; nothing is left behind if that fails."""
    temporary = sibling(place, "partial")
    try:
        temporary.mkdir()
        for name, tensors in files.items():
            save_safetensors(temporary / f"{name}.safetensors", tensors)
            manifest.sha256[f"{name}.safetensors"] = file_sha256(temporary / f"{name}.safetensors")
        fields = {name: getattr(manifest, name) for name in Manifest.__slots__}
        text = json.dumps({**fields, "manifest": manifest_digest(fields)}, indent=1)
        write_text(temporary / MANIFEST, text, durable=True)
        replace_folder(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def manifest_digest(fields: dict[str, Any]) -> str:
    """The digest of a manifest's fields, so that a change in them is detected, too."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def checkpoint_tensors(state: TrainState) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint, by file."""
    weights = {name: p.detach() for name, p in state.transformer.named_parameters()}
    tensors_by_file = {"model": weights, "optimizer": state.optimizers.tensors(), "ema": state.ema}
    return {
        name: state.group.gather(tensors) for name, tensors in tensors_by_file.items() if tensors
    }


def find_not_finite(state: TrainState) -> str:
    """The name of a weight or moment that is NaN or infinite, or an empty string."""
    tensors = {**dict(state.transformer.named_parameters()), **state.optimizers.tensors()}
    local = {
        name: cast(Any, tensor).to_local() if is_sharded(tensor) else tensor
        for name, tensor in tensors.items()
    }
    return next((name for name, tensor in local.items() if not bool(tensor.isfinite().all())), "")


# ---------------------------------------------------------------------------------------- on disk


def prune(folder: Path, keep: int, *, complete: Path | None = None) -> None:
    """Keep the newest `keep` complete checkpoints and the best by validation; with fewer than that,
    remove none. `complete` is known to be whole."""
    paths = checkpoints(folder)
    newest = list[Path]()
    for path in reversed(paths):
        if len(newest) < keep and (path == complete or not find_damage(path)):
            newest.append(path)
    if len(newest) == keep:
        best = best_checkpoint(paths)
        for path in paths:
            if path not in newest and path != best:
                removed = sibling(path, "old")
                # Renamed first, so that there is never a checkpoint with missing files.
                os.rename(path, removed)
                shutil.rmtree(removed, ignore_errors=True)
    remove_leftovers(folder / FOLDER)


def best_checkpoint(paths: list[Path]) -> Path | None:
    """The checkpoint with the lowest validation loss, if any has one."""
    manifests = {path: read_manifest(path) for path in paths}
    losses = {
        path: m.validation
        for path, m in manifests.items()
        if m is not None and m.validation is not None
    }
    return min(losses, key=lambda path: losses[path]) if losses else None


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed save has left behind, recognised by its name."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if LEFTOVER.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


# ------------------------------------------------------------------------------------------ reading


def checkpoints(folder: Path) -> list[Path]:
    """The named checkpoints, oldest first."""
    paths = (folder / FOLDER).glob("step-*") if (folder / FOLDER).is_dir() else ()
    return sorted(
        (path for path in paths if path.name[5:].isdecimal()), key=lambda path: int(path.name[5:])
    )


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint, or None if it is missing, unreadable or changed."""
    try:
        fields = json.loads(read_text_file(path / MANIFEST))
        digest = fields.pop("manifest")
        return (
            Manifest(**fields)
            if manifest_digest(fields) == digest and fields["step"] == int(path.name[5:])
            else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def find_damage(path: Path) -> str:
    """What is wrong with a checkpoint, or an empty string."""
    manifest = read_manifest(path)
    if manifest is None:
        return "its manifest is missing or broken"
    if manifest.version != VERSION:
        return f"it is of version {manifest.version}"
    for name, digest in manifest.sha256.items():
        try:
            if file_sha256(path / name) != digest:
                return f"{name} was changed or truncated"
        except (OSError, CheckpointError):
            return f"{name} cannot be read"
    return ""


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and notes on newer ones that are damaged."""
    notes: list[str] = []
    for path in reversed(checkpoints(folder)):
        damage = find_damage(path)
        if not damage:
            return path, notes
        notes.append(f"{path.name} is skipped: {damage}")
    return None, notes


def restore_checkpoint(state: TrainState, path: Path) -> Manifest:
    """Restore a saved state. Averages that were not saved start from the weights."""
    manifest = read_manifest(path)
    assert manifest is not None
    files = {
        name: {key: entry.read() for key, entry in open_safetensors(path / name).items()}
        for name in manifest.sha256
    }
    weights = files["model.safetensors"]
    averages = files.get("ema.safetensors", weights)
    own = dict(state.transformer.named_parameters())
    mismatched = [
        name
        for name in own.keys() | weights.keys()
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    ]
    if mismatched:
        raise CheckpointError(
            f"{path}: the checkpoint is of another model ({min(mismatched)})",
            fix="the same settings as before, or another --out",
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(shard_like(weights[name], parameter))
        for name, average in state.ema.items():
            average.copy_(shard_like(averages[name], average))
    state.optimizers.restore(files.get("optimizer.safetensors", {}))
    state.step = manifest.step
    state.seconds = manifest.seconds
    state.skip = set(manifest.skip)
    return manifest
