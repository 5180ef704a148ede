"""CPU seconds on one thread: comparable while other processes run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

REPEATS = 5


def least_seconds(
    work: Mapping[str, Callable[[], object]], *, repeats: int = REPEATS
) -> dict[str, float]:
    """The least CPU seconds of each; they alternate, so that a busy moment hits all of them."""
    samples: dict[str, list[float]] = {name: [] for name in work}
    with single_thread():
        for _ in range(repeats):
            for name, run in work.items():
                samples[name].append(cpu_seconds(run))
    return {name: min(seconds) for name, seconds in samples.items()}


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


@contextmanager
def single_thread() -> Generator[None]:
    """Threads that wait for each other count as CPU time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
