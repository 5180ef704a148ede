"""Holds back what native code prints to stderr: a panic in Rust writes a backtrace there before it
becomes an exception."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

STDERR = 2


@contextmanager
def hold_stderr() -> Generator[None]:
    """Output to stderr is written after the block, or dropped if the block raises.

    The descriptor belongs to the whole process, so nothing is held back if other threads run.
    """
    if threading.active_count() > 1:
        yield
        return
    try:
        real = os.dup(STDERR)
    except OSError:  # stderr is closed
        yield
        return
    with temporary_file() as buffer:
        os.dup2(buffer.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(real, STDERR)
            os.close(real)
        if buffer.tell():
            buffer.seek(0)
            os.write(STDERR, buffer.read())


def temporary_file() -> IO[bytes]:
    """A temporary file, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("stderr"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
