"""A batch: what the model reads and what it should have said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100  # a target that nobody is asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`targets` are token ids (−100: not asked) or one label a row. `count` is how many are asked
    for in the whole batch, of which this may be a part: the loss of every part is divided by it, so
    that parts add up."""

    tokens: Int[Tensor, "batch time"]
    targets: Tensor
    count: int
    padding: Bool[Tensor, "batch time"] | None = None
    documents: Int[Tensor, "batch time"] | None = None
    source: Int[Tensor, "batch source"] | None = None
    source_padding: Bool[Tensor, "batch source"] | None = None

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def read(self) -> int:
        """Tokens that are read, padding aside."""
        tokens = self.tokens.numel() if self.padding is None else int((~self.padding).sum())
        source = (
            0
            if self.source is None
            else self.source.numel()
            if self.source_padding is None
            else int((~self.source_padding).sum())
        )
        return tokens + source

    def part(self, rows: slice) -> Batch:
        """Some of the rows; the count stays that of the whole."""
        cut = {
            f.name: value[rows]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **cut)

    def parts(self, many: int) -> Iterator[Batch]:
        """As many parts as there are rows for, none empty."""
        many = min(many, self.rows)
        edges = [self.rows * n // many for n in range(many + 1)]
        for start, end in itertools.pairwise(edges):
            yield self.part(slice(start, end))

    def share(self, rank: int, world: int) -> Batch:
        """What one of several processes computes. With fewer rows than processes, the last ones get
        a row whose targets count nothing."""
        start = self.rows * rank // world
        end = self.rows * (rank + 1) // world
        if start < end:
            return self.part(slice(start, end))
        row = self.part(slice(0, 1))
        return replace(row, targets=torch.full_like(row.targets, IGNORED))

    def to(self, device: torch.device) -> Batch:
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)


class Task(Protocol):
    """What is to be learned. Batches are functions of their number alone."""

    @property
    def fingerprint(self) -> str:
        """What decides the batches: a digest of the data and of how it is cut."""
        ...

    def batch(self, step: int) -> Batch: ...

    def validation(self) -> Iterator[Batch]: ...


def padded(
    rows: Sequence[Sequence[int]], pad: int
) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"] | None]:
    """Rows of different lengths as one tensor, filled on the right, and where it was filled."""
    longest = max(len(row) for row in rows)
    tokens = torch.full((len(rows), longest), pad)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows])
    padding = torch.arange(longest)[None] >= lengths[:, None]
    return tokens, padding if bool(padding.any()) else None
