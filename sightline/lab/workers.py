"""Parts side by side: a process for each core, with one thread. A part is found by its name, so nothing but names and numbers travels."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.pool import Pool
from typing import Any

from sightline.lab.experiment import Experiment, Part, Tier
from sightline.lab.results import plain

Wanted = tuple[str, Tier, int, str]  # experiment, tier, first seed, part
Measured = tuple[str, Any, float]  # a part's name, what it measured, its seconds


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measured(part: Part) -> Measured:
    start = time.perf_counter()
    numbers = plain(part.measure())
    return part.name, numbers, round(time.perf_counter() - start, 3)


def side_by_side(experiment: Experiment, parts: Sequence[Part], tier: Tier, seed: int) -> Iterator[Measured]:
    """Parts as they are done; those that must be alone come first, one by one."""
    for part in parts:
        if part.alone or cores() == 1:
            yield measured(part)
    rest: list[Wanted] = [(experiment.name, tier, seed, part.name) for part in parts if not part.alone and cores() > 1]
    if rest:
        yield from pool().imap_unordered(by_name, rest)


@functools.cache
def pool() -> Pool:
    """Made once; it ends with this process."""
    made = get_context("spawn").Pool(cores(), initializer=begin)
    atexit.register(made.terminate)
    return made


def begin() -> None:
    """Ctrl-C is the parent's; small models are quickest on one thread. Numbers below 1e-38 are 0: with them, where softmax is saturated,
    some processors are forty times slower."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def by_name(wanted: Wanted) -> Measured:
    from sightline.lab.catalogue import EXPERIMENTS

    experiment, tier, seed, name = wanted
    return measured(next(part for part in EXPERIMENTS[experiment].parts(tier, seed) if part.name == name))
