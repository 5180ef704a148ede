"""Commands on a real (pseudo) terminal: what users see, where pipes hide it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

from tests.cli.forked import run_main

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = 90.0


def run(*line: str, columns: int = 80, **environment: str) -> tuple[int, str]:
    """The exit code of a command in a forked child whose stdin, stdout and stderr are a terminal,
    and all that it wrote there."""
    child, ours = pty.fork()
    if child == 0:
        os._exit(_in_child(list(line), columns, environment))
    try:
        raw = _read_to_end(ours)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
        os.close(ours)
    return os.waitstatus_to_exitcode(status), raw.decode(errors="replace").replace("\r\n", "\n")


def _in_child(line: list[str], columns: int, environment: dict[str, str]) -> int:
    """The exit code of a command on a terminal of this width."""
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    for name in ("COLUMNS", "NO_COLOR", "COLORTERM", "FORCE_COLOR"):
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm-256color", **environment})
    return run_main(line)


def _read_to_end(ours: int) -> bytes:
    raw = b""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if select.select([ours], [], [], 1.0)[0]:
            try:
                raw += os.read(ours, 65536)
            except OSError:  # what Linux has for the end of a terminal
                return raw
    raise AssertionError(f"it does not leave: {raw!r}")


def visible(raw: str) -> str:
    """Without the escape sequences of styles and bars."""
    return ESCAPE.sub("", raw)


class Terminal:
    """The real command with a terminal of its own, so that Ctrl-C and Ctrl-D are what they are."""

    def __init__(self, *line: str, **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.raw, self.screen, self.place = b"", "", 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sightline.cli.main", *line],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={
                **os.environ,
                "TERM": "xterm",
                "COLUMNS": "200",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def wait(self, text: str, *, nudge: bool = False) -> str:
        """Read until this is on the screen; what came since the last time, up to it."""
        until = time.monotonic() + PATIENCE
        while (at := self.screen.find(text, self.place)) < 0:
            assert time.monotonic() < until, f"{text!r} never came: {self.screen[self.place :]!r}"
            assert self.read(nudge=nudge), f"left before {text!r}: {self.screen[self.place :]!r}"
        seen, self.place = self.screen[self.place : at + len(text)], at + len(text)
        return seen.replace("\r\n", "\n")

    def read(self, *, nudge: bool = False) -> bool:
        """What there is more on the screen, without escapes; whether the other side is still there.

        Python sees a Ctrl-C that comes just before readline begins to wait only with the next
        signal: a nudge is one that does nothing.
        """
        if not select.select([self.ours], [], [], 1.0)[0]:
            if nudge and self.process.poll() is None:
                self.process.send_signal(signal.SIGWINCH)
            return True
        with suppress(OSError):  # what Linux has for the end of a terminal
            if new := os.read(self.ours, 65536):
                self.raw += new
                self.screen = ESCAPE.sub("", self.raw.decode(errors="replace"))
                return True
        return False

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def say(self, line: str, answer: str = "\r\n> ") -> str:
        """Type a line at the prompt; what comes after it, up to the next prompt."""
        self.type(line + "\n")
        self.wait(line + "\r\n")
        return self.wait(answer)

    def end(self) -> int:
        """The exit code."""
        until = time.monotonic() + PATIENCE
        while self.read(nudge=True):
            assert time.monotonic() < until, f"it does not leave: {self.screen[self.place :]!r}"
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Whatever happened, nothing stays behind."""
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
