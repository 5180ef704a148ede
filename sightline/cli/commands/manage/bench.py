"""`sightline bench`: how fast this machine is with Sightline, beside its peers. The measuring lives
in `bench/` of the source tree."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Literal

from sightline.cli.ui.arguments import Count
from sightline.errors import InputError

ROOT = Path(__file__).parents[4]
Work = Literal[
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
    work: Work = "all",
    /,
    *,
    rounds: Count = None,
    threads: Count = None,
    large: bool = False,
    install: bool = False,
) -> None:
    """Measure in turns with llama.cpp, CTranslate2 and others, as ratios with their ranges. Needs
    the repository, not the package alone.

    Parameters
    ----------
    work
        decode, prefill, streams or serve (8 and 32 at once), lookup (guessing from the text),
        encode, translate, quality (perplexity by precision), train, or all.
    rounds
        How often each contestant has its turn; 7 by default.
    threads
        Threads of each contestant; 2 by default.
    large
        A model of one billion parameters too: 10 GB of memory, 15 GB of disk.
    install
        Install the peers first, into build/peers: some twenty minutes once.
    """
    for name, number in (("rounds", rounds), ("threads", threads)):
        if number is not None and number < 1:
            raise InputError(f"--{name} {number}", expected="a whole number above 0")
    check_tree()
    if install:
        importlib.import_module("bench.peers").install()
    if work != "train":
        counts = [
            word
            for name, n in (("rounds", rounds), ("threads", threads))
            if n
            for word in (f"--{name}", str(n))
        ]
        importlib.import_module("bench.native.__main__").main(
            [
                *([] if work == "all" else ["streams" if work == "serve" else work]),
                *counts,
                *(["--large"] if large else []),
            ]
        )
    if work in ("train", "all"):
        importlib.import_module("bench.training").main(rounds or 5)


def check_tree() -> None:
    """The measuring code must be beside the package."""
    if not (ROOT / "bench" / "native" / "__main__.py").is_file():
        raise InputError(
            "bench without its source tree",
            expected="a checkout of the repository",
            fix="run it there: make bench",
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
