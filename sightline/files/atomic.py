"""Atomic writes: a file is complete or absent.

A file is written next to its destination under a random name, so that no link can be planted there,
synced to the disk, and renamed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

ABANDONED = 3600.0  # seconds after which an unfinished file is abandoned


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Generator[BinaryIO]:
    """A new file that takes the name of `path` at the end of the block, or is removed if anything
    goes wrong.

    Its own name (`file.name`) is for writers that want a path. OSError is left to the caller, who
    knows the remedy. `durable` also flushes the folder, so that the new name survives a crash.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    try:
        with open(temporary, "x+b") as file:  # exclusive: never through a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    _remove_abandoned(path)


def write_text(path: Path, text: str, *, errors: str = "strict", durable: bool = False) -> None:
    """A small text file in UTF-8."""
    with atomic_write(path, durable=durable) as file:
        file.write(text.encode("utf-8", errors))


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk: a new name survives a crash only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sibling(path: Path, suffix: str) -> Path:
    """A hidden, random name in the same folder: `.NAME.0123abcd.SUFFIX`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{suffix}")


def replace_folder(temporary: Path, folder: Path) -> None:
    """Give a finished folder its name, durably. A folder that has the name is moved aside first,
    and moved back if anything fails."""
    sync_folder(temporary)
    old = sibling(folder, "old")
    if os.path.lexists(folder):
        os.rename(folder, old)
    try:
        os.rename(temporary, folder)
        sync_folder(folder.parent)
    except BaseException:
        if not temporary.exists() and folder.exists():
            os.rename(folder, temporary)
        if old.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes left of earlier writes to this path."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError):
        for entry in os.scandir(path.parent):
            if not name.fullmatch(entry.name):
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > ABANDONED:
                os.unlink(entry.path)
