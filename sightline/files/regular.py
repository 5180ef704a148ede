"""Open untrusted files: regular files only, bounded in size, without blocking.

A FIFO would block, and a link to a device could be read without end. Both raise an OSError at once,
like a missing file.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

MAX_BYTES = 100_000_000
NOT_REGULAR = "not a regular file"


def open_regular_file(path: Path | str, *, max_bytes: int | None = None) -> io.BufferedReader:
    """The file, open for reading. OSError if it is a folder, FIFO or device, or is larger than
    `max_bytes`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        status = os.fstat(descriptor)
        _check_regular(path, status)
        if max_bytes is not None and status.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def append_to_regular_file(path: Path | str) -> io.BufferedWriter:
    """The file, open for appending, created if missing. OSError if it is not a regular
    file."""
    return open(path, "ab", opener=_open_to_write)


def _open_to_write(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _check_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular_file(path: Path | str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """All bytes of a regular file that has at most `max_bytes`, even if it grows during the
    read."""
    with open_regular_file(path, max_bytes=max_bytes) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def read_text_file(
    path: Path | str,
    *,
    max_bytes: int = MAX_BYTES,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> str:
    """The text of a regular file. OSError as above, UnicodeDecodeError for bytes that are not in
    the encoding."""
    text = read_regular_file(path, max_bytes=max_bytes).decode(encoding, errors)
    return io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)


def _check_regular(path: Path | str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))


def _too_large(path: Path | str, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
