"""Opens and hashes files of a checkpoint; a failure is a CheckpointError that names the file."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from sightline.errors import CheckpointError
from sightline.files.regular import NOT_REGULAR, open_regular_file


def printable_name(name: object) -> str:
    """A name for one line of output: shortened, and with unprintable characters escaped."""
    text = str(name)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else f"{text[:100]}…{text[-60:]}"


def open_checkpoint_file(path: Path) -> io.BufferedReader:
    """`open_regular_file`, with a CheckpointError where it fails."""
    try:
        return open_regular_file(path)
    except OSError as error:
        if isinstance(error, IsADirectoryError) or error.strerror == NOT_REGULAR:
            raise CheckpointError(
                f"{printable_name(path)} is not a regular file",
                expected="a file",
                fix="put the file itself there",
            ) from None
        raise CheckpointError(
            f"{printable_name(path)} cannot be opened: {error.strerror}",
            fix="check the path and its permissions",
        ) from None


def file_sha256(path: Path) -> str:
    """The file's digest, 64 hexadecimal digits."""
    try:
        with open_checkpoint_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(
            f"{printable_name(path)} cannot be read: {error.strerror}", fix="check the disk"
        ) from None
