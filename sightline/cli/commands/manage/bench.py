"""`sightline bench`: benchmark this machine against peers. The benchmarks live in `bench/` of the
repository."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sightline.cli.ui.options.values import Count
from sightline.errors import InputError

ROOT = Path(__file__).parents[4]
Benchmark = Literal[
    "decode",
    "prefill",
    "streams",
    "serve",
    "lookup",
    "encode",
    "translate",
    "quality",
    "train",
    "all",
]


def bench(
    work: Benchmark = "all",
    /,
    *,
    rounds: Annotated[Count, Parameter(show_default="7")] = None,
    threads: Annotated[Count, Parameter(show_default="2")] = None,
    large: bool = False,
    install: bool = False,
) -> None:
    """Benchmark against llama.cpp, CTranslate2 and others, alternating, as ratios with ranges.

    Needs a checkout of the repository.

    Parameters
    ----------
    work
        What to measure. streams and serve: 8 and 32 sequences in a batch; lookup: prompt-lookup
        decoding; quality: perplexity by precision.
    rounds
        Number of rounds; each contestant runs once per round.
    threads
        Threads per contestant.
    large
        Also measure a model of one billion parameters: 10 GB of memory, 15 GB of disk.
    install
        First install the peers into build/peers, about twenty minutes, once.
    """
    for name, number in (("rounds", rounds), ("threads", threads)):
        if number is not None and number < 1:
            raise InputError(f"--{name} {number}", expected="an integer above 0")
    check_tree()
    if install:
        importlib.import_module("bench.peers").install()
    if work != "train":
        line = engine_arguments(work, rounds=rounds, threads=threads, large=large)
        importlib.import_module("bench.native.__main__").main(line)
    if work in ("train", "all"):
        importlib.import_module("bench.training").main(rounds or 5)


def engine_arguments(
    work: Benchmark, *, rounds: int | None, threads: int | None, large: bool
) -> list[str]:
    """The arguments of `python -m bench.native`."""
    line = [] if work == "all" else ["streams" if work == "serve" else work]
    if rounds:
        line += ["--rounds", str(rounds)]
    if threads:
        line += ["--threads", str(threads)]
    return [*line, "--large"] if large else line


def check_tree() -> None:
    """Refuse to run without the repository, and make it importable."""
    if not (ROOT / "bench" / "native" / "__main__.py").is_file():
        raise InputError(
            "bench without the repository",
            expected="a checkout of the repository",
            fix="run it there: make bench",
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
