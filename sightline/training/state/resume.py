"""Starting and resuming a run: one trainer per folder, and no resume with other settings or data
unnoticed."""

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
from sightline.training.distributed.process_group import ProcessGroup
from sightline.training.state import checkpoint
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
def lock_run(folder: Path, group: ProcessGroup) -> Generator[None]:
    """Lock the folder for this trainer. The lock is released when the process ends, however that
    happens."""
    if not group.is_main:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{folder}: another trainer is using this folder",
            expected="one at a time",
            fix="wait for it, or --out another folder",
        ) from None
    except OSError as error:
        raise unwritable_error(folder, error) from None
    try:
        yield
    finally:
        lock.release()


def unwritable_error(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"{folder}: cannot be written to ({error.strerror})",
        expected="a folder for the run",
        fix="--out another folder",
    )


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write run.json, and remove what a killed process left half-written."""
    try:
        for place in (folder, folder / checkpoint.FOLDER):
            checkpoint.remove_leftovers(place)
        write_text(folder / RUN, json.dumps(description, indent=1), durable=True)
        sync_folder(folder.resolve().parent)
    except OSError as error:
        raise unwritable_error(folder, error) from None


def clear_run(folder: Path) -> None:
    """Remove an old run; other files in the folder are left alone. run.json, which marks the folder
    as a run, is removed last."""
    if not (folder / RUN).exists():
        refuse_foreign_files(folder)
        return
    for name in (checkpoint.FOLDER, MODEL, ADAPTER):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (METRICS, RUN):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def refuse_foreign_files(folder: Path) -> None:
    """Refuse a folder that has files with a run's names but no run.json."""
    for name in (checkpoint.FOLDER, MODEL, METRICS):
        if (folder / name).exists():
            raise InputError(
                f"{folder}: has a {name} that is of no run (there is no {RUN})",
                expected="a new folder, or that of a run",
                fix="--out another folder, or move it away yourself",
            )


def check_description(
    folder: Path, description: dict[str, Any], accept: frozenset[str]
) -> list[str]:
    """Notes on what differs from the run in the folder; differences must be accepted."""
    before = read_description(folder)
    after = json.loads(json.dumps(description))
    differences = changes(before, after)
    rounding = [d for d in differences if d.startswith(ROUNDING)]
    data = [d for d in differences if d.startswith("data:")]
    settings = [d for d in differences if d.startswith("settings.")]
    others = [d for d in differences if d not in (*rounding, *data, *settings)]
    needs = {
        "data": "--accept-data-change" if data else "",
        "settings": "--accept-changes" if others else "",
    }
    flags = [flag for name, flag in needs.items() if flag and name not in accept]
    if flags:
        raise changed_run_error(folder, data, [*others, *(settings if data else [])], flags)
    return [
        *(f"changed: {d}" for d in (*data, *others)),
        *(f"changed: {d}; results may differ in the last bits" for d in rounding),
    ]


def read_description(folder: Path) -> dict[str, Any]:
    """The description in run.json."""
    try:
        description = json.loads(read_text_file(folder / RUN))
    except (OSError, ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise InputError(
            f"{folder / RUN}: cannot be read",
            expected="the description of a run",
            fix="--overwrite, or another --out",
        )
    return description


def changed_run_error(
    folder: Path, data: list[str], settings: list[str], flags: list[str]
) -> InputError:
    """The error that names the differences and the options that accept them."""
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
        fix=f"{' '.join(flags)} to resume anyway, --overwrite to start again, or another --out",
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
