"""Sentence pairs for translation, in batches bucketed by length (see `bucketed.py`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.training.data.batch import IGNORED, Batch, pad_rows
from sightline.training.data.bucketed import Buckets, batches_by_length

Rows = Sequence[Sequence[int]]
VALIDATION_ROWS = 64  # pairs per validation batch


def pair_sizes(sources: Rows, targets: Rows) -> NDArray[np.int64]:
    """The length of each pair's longer side, including its start or end token; 0 where a side is
    empty."""
    sizes = [
        max(len(a), len(b)) + 1 if a and b else 0 for a, b in zip(sources, targets, strict=True)
    ]
    return np.array(sizes, dtype=np.int64)


@dataclass(slots=True)
class Pairs:
    """Token ids of sources and targets, without special tokens. Batches append `end` to a source
    and prepend `start` to a target.

    A batch has at most `tokens` tokens on each side, padding included. Pairs with an empty side, or
    longer than `longest`, are left out."""

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
        sizes = pair_sizes(self.sources, self.targets)
        usable = np.flatnonzero((sizes > 0) & (sizes <= self.longest))
        if not len(usable):
            expected = f"pairs of at most {self.longest - 1} tokens"
            raise InputError(
                "no pair has two non-empty sides and fits",
                expected=expected,
                fix=f"context={max(2, int(sizes.max(initial=0)))}",
            )
        self._buckets = Buckets(sizes, usable, self.tokens, self.seed)

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
        sizes = pair_sizes(sources, targets)
        fits = np.flatnonzero((sizes > 0) & (sizes <= self.longest))
        target_sizes = np.array([len(targets[int(n)]) for n in fits], dtype=np.int64)
        for indices in batches_by_length(target_sizes, VALIDATION_ROWS):
            yield self._batch(sources, targets, fits[indices])

    def _batch(self, sources: Rows, targets: Rows, indices: NDArray[np.int64]) -> Batch:
        """start t₁ t₂ … → t₁ t₂ … end, given s₁ s₂ … end."""
        source, source_padding = pad_rows([[*sources[n], self.end] for n in indices], self.pad)
        tokens, padding = pad_rows([[self.start, *targets[n]] for n in indices], self.pad)
        next_tokens, _ = pad_rows([[*targets[n], self.end] for n in indices], IGNORED)
        return Batch(
            tokens=tokens,
            targets=next_tokens,
            count=int((next_tokens != IGNORED).sum()),
            padding=padding,
            source=source,
            source_padding=source_padding,
        )

    @property
    def epoch_batches(self) -> int:
        return self._buckets.epoch_batches
