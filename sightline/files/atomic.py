"""Atomic writes: a file is complete or absent.

A file is written next to its destination under a random name, so that no link can be planted there,
synced to the disk, and renamed.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

ABANDONED = 3600.0  # seconds after which an unfinished file is abandoned


@contextmanager
def atomic_write(path: Path) -> Generator[BinaryIO]:
    """A new file that is renamed to `path` at the end of the block, or removed if anything fails.

    `file.name` is for writers that need a path. OSError is left to the caller.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    descriptor = os.open(
        temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666
    )
    try:
        with open(temporary, "r+b", opener=lambda *_: descriptor) as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    _remove_abandoned(path)


def write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a small text file in UTF-8, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", errors))


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
