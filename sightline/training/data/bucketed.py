"""Rows of different lengths in batches of about equal work, each of rows of about equal length.

    epoch e: all rows in random order → pools → sorted by length within a pool → cut into batches of
    at most `tokens` → shuffled

Everything is a function of (seed, epoch), so the batch of a step is known without having seen those
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.training.data.order import permutation, random

# Batches that are sorted by length together: enough for little padding, few enough to stay random.
POOL = 100
PLANS = 4  # epochs whose batches are remembered


@dataclass(slots=True)
class Buckets:
    """`sizes` are the lengths of all rows, `kept` the numbers of those that take part."""

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
        """The batches of an epoch, as numbers of rows."""
        if epoch not in self._plans:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            order = self.kept[permutation(self.seed, epoch, len(self.kept))]
            pool = POOL * max(1, self.tokens // max(1, int(self.sizes[self.kept].mean())))
            batches = [
                batch
                for at in range(0, len(order), pool)
                for batch in self._cut(order[at : at + pool])
            ]
            mixed = random(self.seed, 2, epoch).permutation(len(batches))
            self._plans[epoch] = [batches[n] for n in mixed]
        return self._plans[epoch]

    def _cut(self, pool: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """By length, then into batches in which the longest, times their number, is at most
        `tokens`."""
        pool = pool[np.argsort(self.sizes[pool], kind="stable")]
        start = 0
        for at in range(1, len(pool) + 1):
            if at == len(pool) or self.sizes[pool[at]] * (at - start + 1) > self.tokens:
                yield pool[start:at]
                start = at

    def batch(self, step: int) -> NDArray[np.int64]:
        """The rows of a step's batch."""
        while step >= self._starts[-1]:
            self._starts.append(self._starts[-1] + len(self.plan(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return self.plan(epoch)[step - self._starts[epoch]]

    @property
    def epoch_batches(self) -> int:
        """How many batches all rows make (it varies a little from epoch to epoch)."""
        return len(self.plan(0))


def by_length(sizes: NDArray[np.int64], rows: int) -> Iterator[NDArray[np.int64]]:
    """All rows once, the shortest first, so many at a time: for validation."""
    order = np.argsort(sizes, kind="stable")
    for at in range(0, len(order), rows):
        yield order[at : at + rows]
