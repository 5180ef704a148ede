"""Length bucketing: batches of rows of similar length, each with a similar number of tokens.

    epoch e: all rows in random order → pools → sort by length within a pool → batches of at most
    `tokens` → shuffle

The batches of an epoch are a function of (seed, epoch), so the batch of any step can be computed
without those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.training.data.order import permutation, random

# Batches per pool: large enough for little padding, small enough that batches stay random.
POOL = 100
CACHED_PLANS = 4  # epochs whose batches stay cached


@dataclass(slots=True)
class Buckets:
    """`sizes` are the lengths of all rows, `kept` the indices of the rows in use."""

    sizes: NDArray[np.int64]
    kept: NDArray[np.int64]
    tokens: int
    seed: int
    _plans: dict[int, list[NDArray[np.int64]]] = field(
        default_factory=dict[int, list[NDArray[np.int64]]], init=False
    )
    _starts: list[int] = field(default_factory=lambda: [0], init=False)

    def __post_init__(self) -> None:
        longest = int(self.sizes[self.kept].max())
        if self.tokens < longest:
            raise InputError(
                f"batches of {self.tokens} tokens",
                expected=f"at least {longest}, the longest row",
                fix=f"batch={longest}",
            )

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch, as row indices."""
        if epoch not in self._plans:
            if len(self._plans) >= CACHED_PLANS:
                self._plans.clear()
            order = self.kept[permutation(self.seed, epoch, len(self.kept))]
            pool = POOL * max(1, self.tokens // max(1, int(self.sizes[self.kept].mean())))
            batches = [
                batch
                for at in range(0, len(order), pool)
                for batch in self._cut(order[at : at + pool])
            ]
            shuffled = random(self.seed, 2, epoch).permutation(len(batches))
            self._plans[epoch] = [batches[n] for n in shuffled]
        return self._plans[epoch]

    def _cut(self, pool: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Sort a pool by length and split it into batches where rows × longest row ≤ `tokens`."""
        pool = pool[np.argsort(self.sizes[pool], kind="stable")]
        start = 0
        for at in range(1, len(pool) + 1):
            if at == len(pool) or self.sizes[pool[at]] * (at - start + 1) > self.tokens:
                yield pool[start:at]
                start = at

    def batch(self, step: int) -> NDArray[np.int64]:
        """The row indices of a step's batch."""
        while step >= self._starts[-1]:
            self._starts.append(self._starts[-1] + len(self.plan(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return self.plan(epoch)[step - self._starts[epoch]]

    @property
    def epoch_batches(self) -> int:
        """Batches in the first epoch (later epochs may have a few more or fewer)."""
        return len(self.plan(0))


def batches_by_length(sizes: NDArray[np.int64], rows: int) -> Iterator[NDArray[np.int64]]:
    """Validation batches of `rows` row indices, shortest rows first, each row once."""
    order = np.argsort(sizes, kind="stable")
    for at in range(0, len(order), rows):
        yield order[at : at + rows]
