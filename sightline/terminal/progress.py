"""Progress of downloads and preparation on stderr: a bar on a terminal, one line in a pipe. A
caller can pass its own `Report` instead. `waiting` shows a line while something takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sightline.escapes import escape_line

if TYPE_CHECKING:
    from rich.progress import TaskID

Report = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, and bytes in total (0: unknown)."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def megabytes(size: int) -> str:
    """`98.4 MB`, `7.1 kB`, `105 B`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


@contextmanager
def reporting(report: Report | None) -> Generator[Report]:
    """The caller's own report, or a transient one on stderr."""
    if report is not None:
        yield report
        return
    bar = ProgressReport()
    try:
        yield bar
    finally:
        bar.stop()


class ProgressReport:
    """A `Report` on stderr. It draws nothing before it is first called."""

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
        self._has_written = False

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            self._write_once(what, total)
            return
        if what not in self._tasks:
            self._bar.start()
            self._tasks[what] = self._bar.add_task(what, total=total or None)
        self._bar.update(self._tasks[what], completed=done)

    def _write_once(self, what: str, total: int) -> None:
        if not self._has_written:
            size = f" ({megabytes(total)})" if total else ""
            sys.stderr.write(f"{escape_line(what)}{size}\n")
        self._has_written = True

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def waiting(text: str, *, after: float = 0.3) -> Generator[None]:
    """A line on stderr while something takes longer than `after` seconds; nothing in a pipe."""
    from sightline.terminal.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(escape_line(text))
    lock = threading.Lock()
    is_done = False

    def show() -> None:
        with lock:
            if not is_done:
                status.start()

    timer = threading.Timer(after, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_done = True
        timer.cancel()
        status.stop()
        timer.join()
