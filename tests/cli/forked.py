"""Commands in a forked child: a process with its own signals and pipes, but without the seconds in
which a new interpreter imports torch."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from sightline.cli.main import main

CRASHED = 70


class Forked:
    """A command whose stderr is a pipe and whose stdout is thrown away."""

    def __init__(self, line: list[str]) -> None:
        ours, theirs = os.pipe()
        self.stderr = os.fdopen(ours, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(in_child(line, theirs))
        os.close(theirs)

    def poll(self) -> int | None:
        if self.returncode is None:
            child, status = os.waitpid(self.pid, os.WNOHANG)
            if child:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def end(self, timeout: float = 120) -> str:
        """All that it says, once it has ended."""
        wait(lambda: self.poll() is not None, timeout)
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise AssertionError(f"it does not end in {timeout:g} seconds")
        with self.stderr:
            return self.stderr.read()


def wait(done: Callable[[], bool], timeout: float) -> None:
    until = time.monotonic() + timeout
    while not done() and time.monotonic() < until:
        time.sleep(0.02)


def in_child(line: list[str], stderr: int) -> int:
    """The exit code of a command with default signal handlers and its stderr in a pipe."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    os.dup2(stderr, 2)
    return run_main(line)


def run_main(line: list[str]) -> int:
    """The exit code of a command on this process's own descriptors 0, 1 and 2, which pytest replaced."""
    with (
        open(0, encoding="utf-8") as sys.stdin,
        open(1, "w", encoding="utf-8") as sys.stdout,
        open(2, "w", encoding="utf-8") as sys.stderr,
    ):
        try:
            return main(line)
        except SystemExit as left:
            return left.code if isinstance(left.code, int) else 1
        except BaseException:
            traceback.print_exc()
            return CRASHED
