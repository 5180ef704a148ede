"""The process in which a grammar is tried first: grammars come with requests, and a line of one can ask for hours or for all memory.

It runs by itself (`python -P grammar_trial.py`, nothing of sightline imported) and answers one line of JSON with another. `tried` starts
it when it is first needed, keeps it, and kills it when a grammar takes too long. A grammar that passes is then made here, under the
same limits: those of llguidance bound each mask, the process bounds what they leave out (time to build, memory, depth of the stack).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import llguidance

SECONDS = 3.0
START_SECONDS = 30.0  # for the first answer, on a machine with much else to do
MEMORY = 1024**3
STACK = 1024**2  # no more than a thread of the asker has, on any system
TOO_MUCH = f"it is too large or too deep to be prepared in {SECONDS:g} s and {MEMORY // 1024**2} MB"


def limits() -> llguidance.LLParserLimits:
    """What one mask may cost: some hundredths of a second, and some 40 MB of lexer states in all."""
    return llguidance.LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class Table:
    """A list of bytes as llguidance wants its tokenizers. Nothing is ever cut with it: every grammar has `no_forcing`."""

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens, self.eos_token_id = tokens, end
        self.bos_token_id: int | None = None
        self.special_token_ids: list[int] = []
        self.is_tokenizer_wrapper = True

    def __call__(self, text: bytes) -> list[int]:
        return [self.tokens.index(bytes([byte])) for byte in text]


def byte_table(size: int, names: dict[str, int]) -> Table:
    """The special tokens where they are, nothing else below `size`, then all bytes and an end."""
    special = {id: b"\xff" + name.encode() for name, id in names.items()}
    tokens = [special.get(id, b"") for id in range(size)]
    return Table([*tokens, *(bytes([byte]) for byte in range(256)), b"\xff<end>"], size + 256)


def answer(request: dict[str, Any]) -> str:
    """What llguidance has against a grammar, or nothing."""
    tokenizer = llguidance.LLTokenizer(byte_table(request["size"], request["names"]), slices=[])  # pyright: ignore[reportArgumentType]
    matcher = llguidance.LLMatcher(tokenizer, request["grammar"], log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error()


def limit_memory() -> None:
    """Where the system has limits."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve() -> None:
    """Answer until there is nobody to ask."""
    alarm: Callable[[int], Any] = getattr(signal, "alarm", lambda seconds: None)
    for line in sys.stdin:
        alarm(int(2 * SECONDS))  # for the case that whoever started this is no more
        reply = answer(json.loads(line))
        alarm(0)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Serve on a small stack: what overflows it ends this process and no other."""
    limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.stack_size(STACK)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()


class Process:
    """The other side: one running process, asked by one thread at a time."""

    def __init__(self) -> None:
        self.owner, self.seconds = os.getpid(), START_SECONDS
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")}
        command = [sys.executable, "-P", os.path.abspath(__file__)]
        self._running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=kept, cwd=os.path.abspath(os.sep)
        )
        self.ask({"grammar": 'start: "a"', "size": 0, "names": {}})
        self.seconds = SECONDS

    def ask(self, request: dict[str, Any]) -> str | None:
        """The answer, or None if there was none in time; then the process is gone."""
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        guard = threading.Timer(self.seconds, self._running.kill)
        guard.daemon = True
        guard.start()
        reply = b""
        try:
            with suppress(OSError, ValueError):
                self._running.stdin.write(json.dumps(request).encode() + b"\n")
                self._running.stdin.flush()
                reply = self._running.stdout.readline()
        finally:
            guard.cancel()
            if not reply.endswith(b"\n"):  # also after Ctrl-C: half an answer may be on its way
                self.stop()
        return json.loads(reply) if reply.endswith(b"\n") else None

    def stop(self) -> None:
        """End it."""
        if self.owner != os.getpid():
            return
        self._running.kill()
        self._running.wait()
        for pipe in (self._running.stdin, self._running.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class _Kept:
    """The process that is kept between two calls."""

    process: Process | None = None
    lock = threading.Lock()


@lru_cache(maxsize=256)
def tried(grammar: str, size: int, names: tuple[tuple[str, int], ...]) -> str:
    """What is wrong with a grammar for a vocabulary of this size with these special tokens, or nothing."""
    with _Kept.lock:
        if _Kept.process is None or _Kept.process.owner != os.getpid():
            _Kept.process = Process()
            atexit.register(_Kept.process.stop)
        process, _Kept.process = _Kept.process, None
        reply = process.ask({"grammar": grammar, "size": size, "names": dict(names)})
        if reply is not None:
            _Kept.process = process
            return reply
        atexit.unregister(process.stop)
    return TOO_MUCH


if __name__ == "__main__":
    main()
