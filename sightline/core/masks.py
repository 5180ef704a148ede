"""Attention masks: which keys a query may attend to, as one predicate over positions.

    allowed(i, j)  =  key_at[j] ≥ 0                             a real token (padding is at −1)
                  and key_at[j] ≤ query_at[i]     (causal)      not in the future
                  and |query_at[i] − key_at[j]| < window        near enough
                  and key_document[j] = query_document[i]       same document, where several are
                                                                packed into a row
                  and explicit[i, j]                            True where the caller allows it

Causal, padded, windowed, chunked, cached and empty rows are all this formula with other positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """A predicate over positions. With an `offset`, the queries are known (without reading the
    tensors) to be at positions offset, offset + 1, … and the keys at 0, 1, …, none of them padding.
    None: not known."""

    query_at: Int[Tensor, "#batch query"]
    key_at: Int[Tensor, "#batch key"]
    causal: bool = False
    window: int | None = None
    offset: int | None = None
    query_document: Int[Tensor, "#batch query"] | None = None
    key_document: Int[Tensor, "#batch key"] | None = None
    explicit: Bool[Tensor, "#batch #heads #query #key"] | None = None

    @property
    def queries(self) -> int:
        return self.query_at.shape[-1]

    @property
    def keys(self) -> int:
        return self.key_at.shape[-1]

    def allowed(self) -> Bool[Tensor, "#batch #heads query key"]:
        """The predicate as a tensor."""
        query_at = self.query_at[:, None, :, None]
        key_at = self.key_at[:, None, None, :]
        allowed = (key_at >= 0).expand(-1, -1, query_at.shape[2], -1)
        if self.causal:
            allowed = allowed & (key_at <= query_at)
        if self.window is not None:
            allowed = (
                allowed & (key_at > query_at - self.window) & (key_at < query_at + self.window)
            )
        if self.query_document is not None and self.key_document is not None:
            allowed = allowed & (
                self.key_document[:, None, None, :] == self.query_document[:, None, :, None]
            )
        return allowed if self.explicit is None else allowed & self.explicit

    @property
    def hides_nothing(self) -> bool:
        """Whether the mask is known to allow everything, without building it."""
        if self.offset is None or self.query_document is not None or self.explicit is not None:
            return False
        sees_all_past = not self.causal or self.offset >= self.keys - 1
        near_enough = self.window is None or self.window >= max(
            self.offset + self.queries, self.keys
        )
        return sees_all_past and near_enough

    @property
    def is_triangle(self) -> bool:
        """Whether the mask is known to be the causal triangle of one sequence, without building
        it."""
        near_enough = self.window is None or self.window >= self.keys
        is_one_sequence = (
            self.query_document is None
            and self.explicit is None
            and self.offset == 0
            and self.queries == self.keys
        )
        return self.causal and is_one_sequence and near_enough

    def key_ranges(self) -> tuple[Int[Tensor, "batch query"], Int[Tensor, "batch query"]] | None:
        """The first key of each query and the one after its last, if every query is known to attend
        to one contiguous range of keys; else None."""
        if self.explicit is not None:
            return None
        if self.query_document is None:
            return (
                None
                if self.offset is None
                else key_ranges_from_offset(
                    self.queries, self.keys, self.offset, self.window, causal=self.causal
                )
            )
        if not (
            self.query_document is self.key_document
            and self.causal
            and bool((self.query_document.diff() >= 0).all())
        ):
            return None
        at = torch.arange(self.queries)[None]
        starts = torch.nn.functional.pad(self.query_document.diff() != 0, (1, 0))
        first = (at * starts).cummax(-1).values
        first = first if self.window is None else torch.maximum(first, at - self.window + 1)
        return first.int(), (at + 1).int().expand(first.shape)

    def tile(self, rows: slice, columns: slice) -> Mask:
        """The same predicate for some of the queries and keys."""
        query_document = None if self.query_document is None else self.query_document[:, rows]
        key_document = None if self.key_document is None else self.key_document[:, columns]
        return replace(
            self,
            query_at=self.query_at[:, rows],
            key_at=self.key_at[:, columns],
            offset=None,
            query_document=query_document,
            key_document=key_document,
            explicit=None if self.explicit is None else mask_tile(self.explicit, rows, columns),
        )

    def columns(self, rows: slice) -> slice:
        """A range that contains every key these queries may attend to; smaller than all keys only
        where positions are known."""
        if self.offset is None:
            return slice(0, self.keys)
        first = self.offset + rows.start
        last = self.offset + rows.stop
        stop = (
            self.keys
            if not self.causal and self.window is None
            else min(self.keys, last if self.causal else last + (self.window or 0))
        )
        start = 0 if self.window is None else min(max(0, first - self.window + 1), stop)
        return slice(start, stop)


def mask_tile(
    explicit: Bool[Tensor, "batch heads query key"], rows: slice, columns: slice
) -> Bool[Tensor, "batch heads rows columns"]:
    """Some queries and keys of a mask; axes of size 1 are broadcast."""
    explicit = explicit if explicit.shape[2] == 1 else explicit[:, :, rows]
    return explicit if explicit.shape[3] == 1 else explicit[..., columns]


@lru_cache(maxsize=64)
def key_ranges_from_offset(
    queries: int, keys: int, offset: int, window: int | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """`Mask.key_ranges` of queries at positions offset, offset + 1, …"""
    at = torch.arange(offset, offset + queries)[None]
    first = torch.zeros_like(at)
    end = at + 1 if causal else torch.full_like(at, keys)
    if window is not None:
        first = torch.maximum(first, at - window + 1)
        end = torch.minimum(end, at + window)
    return first.int(), end.int()


def count_positions(padding: Bool[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
    """0, 1, 2, … over the real tokens of each row, −1 on the padding."""
    real = ~padding
    return torch.where(real, real.cumsum(-1) - 1, -1)
