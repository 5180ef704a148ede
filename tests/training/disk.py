"""The calls that change the disk, watched: a test may note them, fail at one, or die there."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGES = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir", "truncate")
Before = Callable[[str, Path, Callable[[], Any]], None]


@contextmanager
def watching(before: Before) -> Iterator[None]:
    """`before(call, path, half)` runs before each call; for a write, `half()` does half of it."""
    real, real_open, real_os_open = (
        {name: getattr(os, name) for name in CHANGES},
        builtins.open,
        os.open,
    )

    def watched(name: str) -> Callable[..., Any]:
        def call(first: Any, *args: Any, **named: Any) -> Any:
            before(name, where(first), lambda: None)
            return real[name](first, *args, **named)

        return call

    class Written(io.FileIO):
        def write(self, data: Any) -> int:
            data = bytes(data)
            before(
                "write",
                Path(str(self.name)),
                lambda: super(Written, self).write(data[: len(data) // 2]),
            )
            return super().write(data)

    def opened(
        path: Any, mode: str = "r", *args: Any, encoding: str | None = None, **named: Any
    ) -> Any:
        if not set(mode) & set("wxa"):
            return real_open(path, mode, *args, encoding=encoding, **named)
        before("open", Path(path), lambda: None)
        file = io.BufferedWriter(Written(path, mode.replace("b", "").replace("t", "")))
        return file if "b" in mode else io.TextIOWrapper(file, encoding=encoding)

    def os_opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC):
            before("open", Path(path), lambda: None)
        return real_os_open(path, flags, *args, **named)

    for name in CHANGES:
        setattr(os, name, watched(name))
    os.open, builtins.open = os_opened, opened
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)
        os.open, builtins.open = real_os_open, real_open


def where(subject: Any) -> Path:
    """The path that a call is about, also if it is given a descriptor."""
    return Path(os.readlink(f"/proc/self/fd/{subject}") if isinstance(subject, int) else subject)


def failing_at(
    number: int, code: int, *, only: Callable[[str, Path], bool] = lambda call, path: True
) -> Before:
    """The `number`-th call that `only` names fails with this error, after half of it if it is a
    write, and so do all calls that need room on the disk from then on; to remove and to rename is
    possible even on a full one."""
    left = [number]

    def before(call: str, path: Path, half: Callable[[], Any]) -> None:
        left[0] -= only(call, path)
        if (left[0] == 0 and only(call, path)) or (
            left[0] < 0 and call in ("open", "write", "mkdir")
        ):
            half()
            raise OSError(code, os.strerror(code), str(path))

    return before
