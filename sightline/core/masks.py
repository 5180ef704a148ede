"""Who may look at whom: one predicate over positions.

    allowed(i, j)  =  key_at[j] ≥ 0                            a real token (padding is at −1)
                  and key_at[j] ≤ query_at[i]     (causal)     not in the future
                  and |query_at[i] − key_at[j]| < window       near enough
                  and key_in[j] = query_in[i]                  in the same document, where several
                                                               share a row
                  and given[i, j]                              True where the caller allows it

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
    """A predicate over positions. `offset` is what is known without looking at any number: queries
    stand at offset, offset + 1, … and keys at 0, 1, …, all of them real. It is None when that is
    not known."""

    query_at: Int[Tensor, "#batch query"]
    key_at: Int[Tensor, "#batch key"]
    causal: bool = False
    window: int | None = None
    offset: int | None = None
    query_in: Int[Tensor, "#batch query"] | None = None
    key_in: Int[Tensor, "#batch key"] | None = None
    given: Bool[Tensor, "#batch #heads #query #key"] | None = None

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
        if self.query_in is not None and self.key_in is not None:
            allowed = allowed & (self.key_in[:, None, None, :] == self.query_in[:, None, :, None])
        return allowed if self.given is None else allowed & self.given

    @property
    def hides_nothing(self) -> bool:
        """Known, without building it, to allow everything."""
        if self.offset is None or self.query_in is not None or self.given is not None:
            return False
        sees_all_past = not self.causal or self.offset >= self.keys - 1
        near_enough = self.window is None or self.window >= max(
            self.offset + self.queries, self.keys
        )
        return sees_all_past and near_enough

    @property
    def is_triangle(self) -> bool:
        """Known, without building it, to be the causal triangle of one whole sequence."""
        near_enough = self.window is None or self.window >= self.keys
        one_whole = (
            self.query_in is None
            and self.given is None
            and self.offset == 0
            and self.queries == self.keys
        )
        return self.causal and one_whole and near_enough

    def runs(self) -> tuple[Int[Tensor, "batch query"], Int[Tensor, "batch query"]] | None:
        """Where each query is known to see one run of keys: its first, and the one after its last.
        None where that is not known."""
        if self.given is not None:
            return None
        if self.query_in is None:
            return (
                None
                if self.offset is None
                else known_runs(
                    self.queries, self.keys, self.offset, self.window, causal=self.causal
                )
            )
        if not (
            self.query_in is self.key_in and self.causal and bool((self.query_in.diff() >= 0).all())
        ):
            return None
        at = torch.arange(self.queries)[None]
        begins = torch.nn.functional.pad(self.query_in.diff() != 0, (1, 0))
        first = (at * begins).cummax(-1).values
        first = first if self.window is None else torch.maximum(first, at - self.window + 1)
        return first.int(), (at + 1).int().expand(first.shape)

    def tile(self, rows: slice, columns: slice) -> Mask:
        """The same predicate for some of the queries and keys."""
        query_in = None if self.query_in is None else self.query_in[:, rows]
        key_in = None if self.key_in is None else self.key_in[:, columns]
        return replace(
            self,
            query_at=self.query_at[:, rows],
            key_at=self.key_at[:, columns],
            offset=None,
            query_in=query_in,
            key_in=key_in,
            given=None if self.given is None else tile_of(self.given, rows, columns),
        )

    def columns(self, rows: slice) -> slice:
        """The keys that these queries can see at most; less than all only where positions are
        known."""
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


def tile_of(
    given: Bool[Tensor, "batch heads query key"], rows: slice, columns: slice
) -> Bool[Tensor, "batch heads rows columns"]:
    """Some queries and keys of a mask; an axis of size 1 speaks for all of them."""
    given = given if given.shape[2] == 1 else given[:, :, rows]
    return given if given.shape[3] == 1 else given[..., columns]


@lru_cache(maxsize=64)
def known_runs(
    queries: int, keys: int, offset: int, window: int | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """The same for queries that stand at offset, offset + 1, …"""
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
