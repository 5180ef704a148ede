"""A run's folder, before the first step: one trainer at a time, and no run goes on with other
settings or data unnoticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sightline.errors import InputError
from sightline.files.atomic import sync_folder, write_text
from sightline.files.regular import read_text_file
from sightline.training.distributed.process_group import Crew
from sightline.training.state import checkpoint as state
from sightline.training.state.export import ADAPTER

RUN = "run.json"
METRICS = "metrics.jsonl"
MODEL = "model"
LOCK = ".lock"
ROUNDING = (
    "threads",
    "training.accumulate",
    "training.checkpoint_activations",
    "training.compile",
)  # change the last bits only
SHOWN = 6  # differences


@contextmanager
def locked(folder: Path, crew: Crew) -> Generator[None]:
    """The folder, for this trainer alone. The lock ends with the process, however that ends."""
    if not crew.leads:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{folder}: another trainer is at work here",
            expected="one at a time",
            fix="wait for it, or --out another folder",
        ) from None
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        yield
    finally:
        lock.release()


def unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"{folder}: cannot be written to ({error.strerror})",
        expected="a folder for the run",
        fix="--out another folder",
    )


def describe(folder: Path, described: dict[str, Any]) -> None:
    """run.json, and what a killed process left half-written goes."""
    try:
        for place in (folder, folder / state.FOLDER):
            state.remove_leftovers(place)
        write_text(folder / RUN, json.dumps(described, indent=1), durable=True)
        sync_folder(folder.resolve().parent)
    except OSError as error:
        raise unwritable(folder, error) from None


def clear(folder: Path) -> None:
    """An old run makes room for a new one; whatever else lies in the folder is left alone.
    run.json, which marks it as ours, goes last."""
    if not (folder / RUN).exists():
        refuse_strangers(folder)
        return
    for name in (state.FOLDER, MODEL, ADAPTER):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (METRICS, RUN):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def refuse_strangers(folder: Path) -> None:
    """Files that have the names of ours, where no run has been."""
    for name in (state.FOLDER, MODEL, METRICS):
        if (folder / name).exists():
            raise InputError(
                f"{folder}: has a {name} that is of no run (there is no {RUN})",
                expected="a new folder, or that of a run",
                fix="--out another folder, or move it away yourself",
            )


def compare(folder: Path, described: dict[str, Any], accept: frozenset[str]) -> list[str]:
    """What differs from the run in the folder, to be said; refused unless it was accepted."""
    before = read(folder)
    after = json.loads(json.dumps(described))
    found = changes(before, after)
    rounding = [d for d in found if d.startswith(ROUNDING)]
    data = [d for d in found if d.startswith("data:")]
    told = [d for d in found if d.startswith("settings.")]
    others = [d for d in found if d not in (*rounding, *data, *told)]
    needs = {
        "data": "--accept-data-change" if data else "",
        "settings": "--accept-changes" if others else "",
    }
    flags = [flag for name, flag in needs.items() if flag and name not in accept]
    if flags:
        raise refusal(folder, data, [*others, *(told if data else [])], flags)
    return [
        *(f"changed: {d}" for d in (*data, *others)),
        *(f"changed: {d}; sums may round otherwise" for d in rounding),
    ]


def read(folder: Path) -> dict[str, Any]:
    """run.json."""
    try:
        said = json.loads(read_text_file(folder / RUN))
    except (OSError, ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise InputError(
            f"{folder / RUN}: cannot be read",
            expected="the description of a run",
            fix="--overwrite, or another --out",
        )
    return said


def refusal(folder: Path, data: list[str], settings: list[str], flags: list[str]) -> InputError:
    """One line that names the differences and what would accept them."""
    shown = "; ".join(settings[:SHOWN]) + (
        f"; and {len(settings) - SHOWN} more" if len(settings) > SHOWN else ""
    )
    only = (
        "the data has changed since this run began" if data else "holds a run with other settings"
    )
    both = "the data and settings have changed since this run began"
    seen = f"{folder}: {both if data and settings else only}" + (f": {shown}" if shown else "")
    return InputError(
        seen,
        expected="the same",
        fix=f"{' '.join(flags)} to go on with it, --overwrite to begin again, or another --out",
    )


def changes(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two descriptions differ: `training.optimizer.lr: 0.001 → 0.002`."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        return [
            d
            for name in names
            for d in changes(before.get(name), after.get(name), f"{path}.{name}" if path else name)
        ]
    return [] if before == after else [f"{path}: {before} → {after}"]
