"""What a run has learned so far, on the disk: whole or not at all.

    run/checkpoints/step-00000500/    model.safetensors  optimizer.safetensors  ema.safetensors
                                      manifest.json (sha256 of each file)

A checkpoint is written beside its place, forced to the disk, read back and compared, and only then
takes its name; LATEST follows; then the oldest go. Whoever is killed at any instant finds at least
the checkpoint before. Nothing is pickled. A save is over when `save` returns: nothing goes on in
the background that the end of the process could cut off.
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
from sightline.training.distributed.process_group import held_like, in_parts
from sightline.training.loop import Trainee

FOLDER = "checkpoints"
LATEST = "LATEST"
MANIFEST = "manifest.json"
VERSION = 1
LEFTOVER = re.compile(r"\..+\.([0-9a-f]{8}\.(partial|old)|[0-9a-f]{16}\.part)")


def versions() -> dict[str, str]:
    """Of what computes: others may round otherwise."""
    return {"sightline": version("sightline"), "torch": torch.__version__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint says of itself. `run` is everything that decides the run (see `run.py`),
    `best` the least validation so far."""

    step: int
    seconds: float
    run: dict[str, Any]
    skip: list[int] = field(default_factory=list[int])
    validation: float | None = None
    best: float | None = None
    random: str = "step n draws from Philox(seed, n, rank): there is no state"
    versions: dict[str, str] = field(default_factory=lambda: versions())
    sha256: dict[str, str] = field(default_factory=dict[str, str])
    version: int = VERSION


def save(
    trainee: Trainee,
    folder: Path,
    run: dict[str, Any],
    *,
    validation: float | None,
    keep: int,
    best: float | None = None,
) -> Path:
    """A new checkpoint; then the old ones beyond `keep` go, but never the best. Everyone helps to
    put it together, the first writes."""
    place = folder / FOLDER / f"step-{trainee.step:08d}"
    files = parts(trainee)
    if not trainee.crew.leads:
        return place
    said = Manifest(
        step=trainee.step,
        seconds=trainee.seconds,
        run=run,
        skip=sorted(trainee.skip),
        validation=finite(validation),
        best=finite(best),
    )
    try:
        if not place.parent.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(folder)
        write_checkpoint(place, files, said)
    except (OSError, CheckpointError) as error:
        why = error.seen if isinstance(error, CheckpointError) else error.strerror or error
        raise CheckpointError(
            f"{place.name} could not be written ({why}); the checkpoints before it are untouched",
            fix="free some space; --resume auto goes on from the last one",
        ) from None
    with suppress(
        OSError
    ):  # the checkpoint is there; LATEST is for people, and what is too much goes next time
        write_text(place.parent / LATEST, place.name, durable=True)
        prune(folder, keep, whole=place)
    return place


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def write_checkpoint(
    place: Path, files: Mapping[str, Mapping[str, Tensor]], said: Manifest
) -> None:
    """A folder that takes its name once all of it is on the disk, and leaves nothing behind if that
    fails."""
    temporary = sibling(place, "partial")
    try:
        temporary.mkdir()
        for name, tensors in files.items():
            save_safetensors(temporary / f"{name}.safetensors", tensors)
            said.sha256[f"{name}.safetensors"] = file_sha256(temporary / f"{name}.safetensors")
        fields = {name: getattr(said, name) for name in Manifest.__slots__}
        text = json.dumps({**fields, "manifest": manifest_digest(fields)}, indent=1)
        write_text(temporary / MANIFEST, text, durable=True)
        replace_folder(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def manifest_digest(said: dict[str, Any]) -> str:
    """Of what a manifest says, so that a changed number is found there, too."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def parts(trainee: Trainee) -> dict[str, dict[str, Tensor]]:
    """The files of a checkpoint."""
    weights = {name: p.detach() for name, p in trainee.transformer.named_parameters()}
    found = {"model": weights, "optimizer": trainee.optimizers.tensors(), "ema": trainee.ema}
    return {name: trainee.crew.full(tensors) for name, tensors in found.items() if tensors}


def not_finite(trainee: Trainee) -> str:
    """The name of a weight or moment that is NaN or infinite, if there is one: such a state is no
    checkpoint."""
    found = {**dict(trainee.transformer.named_parameters()), **trainee.optimizers.tensors()}
    own = {
        name: cast(Any, tensor).to_local() if in_parts(tensor) else tensor
        for name, tensor in found.items()
    }
    return next((name for name, tensor in own.items() if not bool(tensor.isfinite().all())), "")


# ---------------------------------------------------------------------------------------- on disk


def prune(folder: Path, keep: int, *, whole: Path | None = None) -> None:
    """The newest `keep` that are whole stay, and the best by validation; unless there are as many,
    nothing goes. `whole` needs no proof."""
    found = checkpoints(folder)
    staying = list[Path]()
    for path in reversed(found):
        if len(staying) < keep and (path == whole or not verify(path)):
            staying.append(path)
    if len(staying) == keep:
        best = best_of(found)
        for path in found:
            if path not in staying and path != best:
                gone = sibling(path, "old")
                # First it is no checkpoint any more, then its files go: never a checkpoint that
                # lacks some of them.
                os.rename(path, gone)
                shutil.rmtree(gone, ignore_errors=True)
    remove_leftovers(folder / FOLDER)


def best_of(found: list[Path]) -> Path | None:
    """The one with the least validation loss, if any has one."""
    said = {path: manifest_of(path) for path in found}
    losses = {
        path: m.validation for path, m in said.items() if m is not None and m.validation is not None
    }
    return min(losses, key=lambda path: losses[path]) if losses else None


def remove_leftovers(folder: Path) -> None:
    """What a save that was killed has left behind. Only names that `beside` gives are ours."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if LEFTOVER.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


# ------------------------------------------------------------------------------------------- back


def checkpoints(folder: Path) -> list[Path]:
    """Those that bear a name, oldest first."""
    found = (folder / FOLDER).glob("step-*") if (folder / FOLDER).is_dir() else ()
    return sorted(
        (path for path in found if path.name[5:].isdecimal()), key=lambda path: int(path.name[5:])
    )


def manifest_of(path: Path) -> Manifest | None:
    """What a checkpoint says of itself, if that can be read and is as it was written."""
    try:
        said = json.loads(read_text_file(path / MANIFEST))
        kept = said.pop("manifest")
        return (
            Manifest(**said)
            if manifest_digest(said) == kept and said["step"] == int(path.name[5:])
            else None
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def verify(path: Path) -> str:
    """What is wrong with a checkpoint; nothing if nothing is."""
    said = manifest_of(path)
    if said is None:
        return "its manifest is missing or broken"
    if said.version != VERSION:
        return f"it is of version {said.version}"
    for name, kept in said.sha256.items():
        try:
            if file_sha256(path / name) != kept:
                return f"{name} was changed or cut short"
        except (OSError, CheckpointError):
            return f"{name} cannot be read"
    return ""


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what is to be said of newer ones that are not."""
    notes: list[str] = []
    for path in reversed(checkpoints(folder)):
        wrong = verify(path)
        if not wrong:
            return path, notes
        notes.append(f"{path.name} is passed over: {wrong}")
    return None, notes


def restore(trainee: Trainee, path: Path) -> Manifest:
    """The state as it was saved. An average that was not kept then begins with the weights."""
    said = manifest_of(path)
    assert said is not None
    files = {
        name: {key: entry.read() for key, entry in open_safetensors(path / name).items()}
        for name in said.sha256
    }
    weights = files["model.safetensors"]
    averages = files.get("ema.safetensors", weights)
    own = dict(trainee.transformer.named_parameters())
    odd = [
        name
        for name in own.keys() | weights.keys()
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    ]
    if odd:
        raise CheckpointError(
            f"{path}: the checkpoint is of another model ({min(odd)})",
            fix="the same settings as before, or another --out",
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(held_like(weights[name], parameter))
        for name, average in trainee.ema.items():
            average.copy_(held_like(averages[name], average))
    trainee.optimizers.restore(files.get("optimizer.safetensors", {}))
    trainee.step = said.step
    trainee.seconds = said.seconds
    trainee.skip = set(said.skip)
    return said
