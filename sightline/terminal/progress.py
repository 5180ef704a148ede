"""How far a download is, on stderr: a bar on a terminal, one line in a pipe. Whoever wants it
elsewhere gives a `Report`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sightline.escapes import escape_line

if TYPE_CHECKING:
    from rich.progress import TaskID

Report = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all (0: not known)."""


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


def megabytes(size: int) -> str:
    """`98.4 MB`, `7.1 kB`, `105 B`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


@contextmanager
def shown(report: Report | None) -> Generator[Report]:
    """The caller's own report, or one on stderr that is gone when the work is."""
    if report is not None:
        yield report
        return
    painter = Painter()
    try:
        yield painter
    finally:
        painter.stop()


class Painter:
    """Draws when it is first told something, so that no work means no output."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        from sightline.terminal.console import Console

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        self._bar = (
            Progress(*columns, console=console, transient=True) if console.is_terminal else None
        )
        self._tasks: dict[str, TaskID] = {}
        self._said = False

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            self._say_once(what, total)
            return
        if what not in self._tasks:
            self._bar.start()
            self._tasks[what] = self._bar.add_task(what, total=total or None)
        self._bar.update(self._tasks[what], completed=done)

    def _say_once(self, what: str, total: int) -> None:
        if not self._said:
            size = f" ({megabytes(total)})" if total else ""
            sys.stderr.write(f"{escape_line(what)}{size}\n")
        self._said = True

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
