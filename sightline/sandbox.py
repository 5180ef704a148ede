"""A process with limits on time and memory, for untrusted input: chat templates are programs, and a
short grammar can take hours or all memory.

    renderer = Sandbox("renderer.py", seconds=2.0, memory=1 << 29, first={…})
    renderer.ask({…})   the result of `answer(request)` in that file, or None if it took too much
                        time, memory or recursion

The file runs in its own interpreter (`python -P sandbox.py renderer.py …`) without importing
sightline. The process is started on first use, reused between calls, and killed when it takes too
long. Messages are JSON after their length in four bytes.
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

START_SECONDS = 30.0  # for the first answer, on a busy machine
PASSED_VARIABLES = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")


def receive(stream: IO[bytes]) -> Any:
    """The next message, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(struct.unpack(">I", head)[0])
    return json.loads(body)


def send(stream: IO[bytes], message: Any) -> None:
    """Send a message."""
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


# ------------------------------------------------------------------------------ the parent process


class Sandbox:
    """Runs the function `answer` of a file with limits on time per call and on memory. Calls of
    several threads are serialised."""

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
        """The answer, or None if there was none within the limits; then the process is killed, and
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
    """The running process, used by one thread at a time."""

    def __init__(self, script: str, *, memory: int, alarm: int, stack: int = 0) -> None:
        self.owner = os.getpid()
        environment = {
            name: value for name, value in os.environ.items() if name in PASSED_VARIABLES
        }
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
            env=environment,
            cwd=os.path.abspath(os.sep),
        )

    def ask(self, request: Any, seconds: float) -> Any:
        """Send a request and wait; a timer kills the process, which ends the wait."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        timer = threading.Timer(seconds, self.running.kill)
        timer.daemon = True
        timer.start()
        reply = None
        try:
            with suppress(OSError, ValueError):
                send(self.running.stdin, request)
                reply = receive(self.running.stdout)
        finally:
            timer.cancel()
            timer.join()
            if reply is None:  # also after Ctrl-C: half an answer may be in the pipe
                self.stop()
        return reply

    def stop(self) -> None:
        """Kill the process."""
        if self.owner != os.getpid():
            return
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


# ------------------------------------------------------------------------------- the child process


def limit_memory(memory: int) -> None:
    """Limit the address space where the system supports it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve_requests(answer: Callable[[Any], Any], alarm: int) -> None:
    """Answer requests until stdin is closed. The alarm ends this process if its parent has died."""
    set_alarm: Callable[[int], Any] = getattr(signal, "alarm", lambda seconds: None)
    while (request := receive(sys.stdin.buffer)) is not None:
        set_alarm(alarm)
        reply = answer(request)
        set_alarm(0)
        send(sys.stdout.buffer, reply)


def main(script: str, memory: str, alarm: str, stack: str) -> None:
    """Serve, in a thread with the given stack size: an overflow ends only this process."""
    import runpy

    limit_memory(int(memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = runpy.run_path(script)["answer"]
    threading.stack_size(int(stack))
    thread = threading.Thread(target=serve_requests, args=(answer, int(alarm)))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
