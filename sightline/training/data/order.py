"""The order of samples: a pure function of (seed, sample index), without iterator state that an
interruption could lose.

    epoch e is the permutation of 0 … n − 1 that Philox gives for (seed, e)
    sample i is element i mod n of epoch ⌊i / n⌋

All ranks and resumed runs index the same sequence.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def random(seed: int, *key: int) -> np.random.Generator:
    """An independent random generator for each (seed, key)."""
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=key))
    )


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The order of an epoch."""
    order = random(seed, 0, epoch).permutation(count)
    order.setflags(write=False)  # the cache returns the same array to every caller
    return order


def samples(seed: int, start: int, length: int, count: int) -> list[tuple[int, int]]:
    """Samples start … start + length − 1 of the infinite sequence over `count` items, as (epoch,
    item)."""
    pairs: list[tuple[int, int]] = []
    for index in range(start, start + length):
        epoch, at = divmod(index, count)
        pairs.append((epoch, int(permutation(seed, epoch, count)[at])))
    return pairs
