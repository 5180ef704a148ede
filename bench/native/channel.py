"""A contestant in its own process: one line of JSON per request, one line per answer. Between
requests it blocks.

    {"do": "load", "path": …, "kind": "int8"}     {"bytes": 143000000}
    {"do": "decode", "prompt": [1, 2, …]}         {"seconds": 0.31, "tokens": [5, 7, …]}
    any failure                                   {"error": "one line"}

Standard library only: the peers' environments import it too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATHS: tuple[Path, ...] = ()  # where modules are found besides
Handler = Callable[[dict[str, Any]], dict[str, Any]]


class ContestantError(Exception):
    """A contestant could not fulfil a request."""


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests until stdin is closed. Library output goes to stderr: stdout is for
    answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = handlers[question["do"]](question)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


class Contestant:
    """The parent's end of the channel."""

    def __init__(self, name: str, module: str, *, python: str, threads: int) -> None:
        self.name = name
        paths = os.pathsep.join(map(str, (ROOT, *PATHS)))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": paths,
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [python, "-m", module, str(threads)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._answer()

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ContestantError(f"{self.name} ended with code {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantError(answer["error"])
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
