"""Pairs of sentences, for translation: batches of about equal work, each of pairs of about equal
length (see `bucketed.py`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.training.data.batch import IGNORED, Batch, padded
from sightline.training.data.bucketed import Buckets, by_length

Rows = Sequence[Sequence[int]]
TOGETHER = 64  # pairs that a validation reads at once


def sizes_of(sources: Rows, targets: Rows) -> NDArray[np.int64]:
    """The longer side of each pair, with the token that is added to it; 0 where a side is empty."""
    sizes = [
        max(len(a), len(b)) + 1 if a and b else 0 for a, b in zip(sources, targets, strict=True)
    ]
    return np.array(sizes, dtype=np.int64)


@dataclass(slots=True)
class Pairs:
    """Token ids of sources and targets, without what surrounds them: a source ends with `end`, a
    target begins with `start`.

    A batch has at most `tokens` on each side, padding included. Pairs with an empty side, or longer
    than `longest`, are left out."""

    sources: Rows
    targets: Rows
    start: int
    end: int
    pad: int
    tokens: int
    seed: int
    held_out: tuple[Rows, Rows] = ((), ())
    longest: int = 256
    _buckets: Buckets = field(init=False)

    def __post_init__(self) -> None:
        sizes = sizes_of(self.sources, self.targets)
        kept = np.flatnonzero((sizes > 0) & (sizes <= self.longest))
        if not len(kept):
            expected = f"pairs of at most {self.longest - 1} tokens"
            raise InputError(
                "no pair has two sides and fits",
                expected=expected,
                fix=f"context={max(2, int(sizes.max(initial=0)))}",
            )
        self._buckets = Buckets(sizes, kept, self.tokens, self.seed)

    @property
    def left_out(self) -> int:
        return len(self.sources) - len(self._buckets.kept)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(
            (
                f"pairs {self.tokens} {self.seed} {self.start} {self.end} {self.pad} {self.longest}"
            ).encode()
        )
        for side in (self.sources, self.targets):
            for row in side:
                digest.update(np.array([len(row), *row], dtype=np.int32).tobytes())
        return digest.hexdigest()

    def batch(self, step: int) -> Batch:
        return self._batch(self.sources, self.targets, self._buckets.batch(step))

    def validation(self) -> Iterator[Batch]:
        sources, targets = self.held_out
        sizes = sizes_of(sources, targets)
        fits = np.flatnonzero((sizes > 0) & (sizes <= self.longest))
        for which in by_length(
            np.array([len(targets[int(n)]) for n in fits], dtype=np.int64), TOGETHER
        ):
            yield self._batch(sources, targets, fits[which])

    def _batch(self, sources: Rows, targets: Rows, which: NDArray[np.int64]) -> Batch:
        """start t₁ t₂ … → t₁ t₂ … end, given s₁ s₂ … end."""
        source, source_padding = padded([[*sources[n], self.end] for n in which], self.pad)
        tokens, padding = padded([[self.start, *targets[n]] for n in which], self.pad)
        wanted, _ = padded([[*targets[n], self.end] for n in which], IGNORED)
        count = int((wanted != IGNORED).sum())
        return Batch(
            tokens=tokens,
            targets=wanted,
            count=count,
            padding=padding,
            source=source,
            source_padding=source_padding,
        )

    @property
    def epoch_batches(self) -> int:
        return self._buckets.epoch_batches
