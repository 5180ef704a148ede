"""A process with limits, for what strangers send: chat templates are programs, and a line of a
grammar can ask for hours or all memory.

    asked = Limited("renderer.py", seconds=2.0, memory=1 << 29, first={…})
    asked.ask({…})      what `answer(request)` in that file returns, or None: too slow, too large,
                        too deep

The file runs by itself (`python -P limited.py renderer.py …`, nothing of sightline imported). The
process is started when it is first needed, kept between calls, and killed when it takes too long.
Messages are JSON behind their length in four bytes.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

START_SECONDS = 30.0  # for the first answer, on a machine with much else to do
KEPT_NAMES = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")


def read_message(stream: IO[bytes]) -> Any:
    """The next message, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(struct.unpack(">I", head)[0])
    return json.loads(body)


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send a message."""
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


# -------------------------------------------------------------------------------------- the asker


class Limited:
    """A file with a function `answer`, run with so much time for each answer and so much memory.
    Threads take turns."""

    def __init__(
        self, script: str, *, seconds: float, memory: int, first: Any, stack: int = 0
    ) -> None:
        self.script = script
        self.seconds = seconds
        self.memory = memory
        self.first = first
        self.stack = stack
        self.process: Process | None = None
        self.lock = threading.Lock()

    def ask(self, request: Any) -> Any:
        """The answer, or None if there was none within the limits; then the process is gone, and
        the next call starts another."""
        with self.lock:
            if self.process is None or self.process.owner != os.getpid():
                self.process = Process(
                    self.script,
                    memory=self.memory,
                    alarm=int(2 * self.seconds) + 1,
                    stack=self.stack,
                )
                atexit.register(self.process.stop)
                self.process.ask(self.first, START_SECONDS)
            process = self.process
            self.process = None
            reply = process.ask(request, self.seconds)
            if reply is None:
                atexit.unregister(process.stop)
            else:
                self.process = process
            return reply


class Process:
    """The running process, asked by one thread at a time."""

    def __init__(self, script: str, *, memory: int, alarm: int, stack: int = 0) -> None:
        self.owner = os.getpid()
        kept = {name: value for name, value in os.environ.items() if name in KEPT_NAMES}
        limits = [str(memory), str(alarm), str(stack)]
        command = [
            sys.executable,
            "-P",
            os.path.abspath(__file__),
            os.path.abspath(script),
            *limits,
        ]
        self.running = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept,
            cwd=os.path.abspath(os.sep),
        )

    def ask(self, request: Any, seconds: float) -> Any:
        """Ask, with somebody beside who ends the process and so the waiting."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        guard = threading.Timer(seconds, self.running.kill)
        guard.daemon = True
        guard.start()
        reply = None
        try:
            with suppress(OSError, ValueError):
                write_message(self.running.stdin, request)
                reply = read_message(self.running.stdout)
        finally:
            guard.cancel()
            if reply is None:  # also after Ctrl-C: half an answer may be on its way
                self.stop()
        return reply

    def stop(self) -> None:
        """End it."""
        if self.owner != os.getpid():
            return
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


# ----------------------------------------------------------------------------------- the answerer


def limit_memory(memory: int) -> None:
    """Where the system has limits."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(answer: Callable[[Any], Any], alarm: int) -> None:
    """Answer until there is nobody to ask. The alarm is for the case that whoever started this is
    no more."""
    ring: Callable[[int], Any] = getattr(signal, "alarm", lambda seconds: None)
    while (request := read_message(sys.stdin.buffer)) is not None:
        ring(alarm)
        reply = answer(request)
        ring(0)
        write_message(sys.stdout.buffer, reply)


def main(script: str, memory: str, alarm: str, stack: str) -> None:
    """Serve; on a stack of that size, if one is given: what overflows it ends this process and no
    other."""
    import runpy

    limit_memory(int(memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = runpy.run_path(script)["answer"]
    threading.stack_size(int(stack))
    thread = threading.Thread(target=serve, args=(answer, int(alarm)))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
