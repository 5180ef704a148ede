"""A batch: the model's inputs and targets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100  # targets with this value do not enter the loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`targets` are token ids (−100: ignored) or one label per row. `count` is the number of
    targets in the full batch. A microbatch or a shard keeps it: every partial loss is divided by
    the same number, so partial losses and gradients add up to those of the full batch."""

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
    def input_tokens(self) -> int:
        """The number of input tokens, without padding."""
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
        """The selected rows. `count` stays that of the full batch."""
        selected = {
            f.name: value[rows]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **selected)

    def microbatches(self, count: int) -> Iterator[Batch]:
        """Split into `count` microbatches, or one per row if there are fewer rows."""
        count = min(count, self.rows)
        edges = [self.rows * n // count for n in range(count + 1)]
        for start, end in itertools.pairwise(edges):
            yield self.part(slice(start, end))

    def shard(self, rank: int, world_size: int) -> Batch:
        """The rows of one rank. With fewer rows than ranks, a rank without rows gets one row with
        all targets ignored."""
        start = self.rows * rank // world_size
        end = self.rows * (rank + 1) // world_size
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
    """A training task. A batch is a pure function of its step."""

    @property
    def fingerprint(self) -> str:
        """Identifies the batches: a digest of the data and of how it is split into batches."""
        ...

    def batch(self, step: int) -> Batch: ...

    def validation(self) -> Iterator[Batch]: ...


def pad_rows(
    rows: Sequence[Sequence[int]], pad: int
) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"] | None]:
    """Right-pad rows of different lengths into one tensor. Also the padding mask, or None if no row
    is padded."""
    longest = max(len(row) for row in rows)
    tokens = torch.full((len(rows), longest), pad)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows])
    padding = torch.arange(longest)[None] >= lengths[:, None]
    return tokens, padding if bool(padding.any()) else None
