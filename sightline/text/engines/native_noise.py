"""What native code prints before it fails: a panic in Rust writes a backtrace to file descriptor 2,
and then becomes an exception."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

STDERR = 2


@contextmanager
def without_noise() -> Generator[None]:
    """What is written to stderr meanwhile comes out afterwards, unless the call fails: then the
    exception says it.

    The descriptor belongs to the whole process, so nothing is held back where another thread might
    be writing.
    """
    if threading.active_count() > 1:
        yield
        return
    try:
        real = os.dup(STDERR)
    except OSError:  # stderr is closed
        yield
        return
    with temporary_file() as held:
        os.dup2(held.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(real, STDERR)
            os.close(real)
        if held.tell():
            held.seek(0)
            os.write(STDERR, held.read())


def temporary_file() -> IO[bytes]:
    """In memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("stderr"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
