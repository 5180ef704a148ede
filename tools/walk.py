"""The walk of one call: which files and functions of sightline run, in the order in which they are
first entered.

    python -m tools.walk generate stories15m "Once upon a time" --max-tokens 2 --engine native
    python -m tools.walk --depth 12 trace stories15m "Once upon a time"

Prints the number of files and functions, then the functions down to a depth of the call stack.
"""

from __future__ import annotations

import inspect
import io
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "sightline")


class Walk:
    """Functions in the order of their first call, with the depth of ours on the call stack."""

    def __init__(self) -> None:
        self.hops: dict[tuple[str, str], int] = {}
        self.depth = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if not is_function or not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            file = code.co_filename.removeprefix(f"{PACKAGE}/")
            self.hops.setdefault((file, code.co_qualname), self.depth)
            self.depth += 1
        elif event == "return":
            self.depth -= 1


def walk_command(arguments: list[str]) -> Walk:
    """Run a command of `sightline` and record its walk."""
    from sightline.cli.main import main

    walk = Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            code = main(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        raise SystemExit(f"sightline {' '.join(arguments)} ended with {code}")
    return walk


def main() -> None:
    arguments = sys.argv[1:]
    depth = 9
    if arguments[:1] == ["--depth"]:
        depth = int(arguments[1])
        arguments = arguments[2:]
    walk = walk_command(arguments)
    files = {file for file, _ in walk.hops}
    print(f"{len(files)} files, {len(walk.hops)} functions")
    for (file, function), level in walk.hops.items():
        if level <= depth:
            print(f"{'  ' * level}{file}: {function}")


if __name__ == "__main__":
    main()
