"""Which sample comes when: a pure function of (seed, place in the sequence). Nothing is consumed,
so nothing can be lost or repeated.

    epoch e is the permutation of 0 … n − 1 that Philox gives for (seed, e);  sample i is number i
    mod n of epoch ⌊i / n⌋

Workers, ranks and interruptions see the same sequence: they ask for other parts of it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def random(seed: int, *place: int) -> np.random.Generator:
    """Random numbers that belong to this seed and place, and to no other."""
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=place))
    )


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The order of an epoch."""
    order = random(seed, 0, epoch).permutation(count)
    order.setflags(write=False)  # whoever asks next gets the same array
    return order


def samples(seed: int, start: int, many: int, count: int) -> list[tuple[int, int]]:
    """Samples number start … start + many − 1 of the endless sequence, as (epoch, which of
    `count`)."""
    found: list[tuple[int, int]] = []
    for place in range(start, start + many):
        epoch, at = divmod(place, count)
        found.append((epoch, int(permutation(seed, epoch, count)[at])))
    return found
