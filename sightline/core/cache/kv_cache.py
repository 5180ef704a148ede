"""The KV cache: keys and values of earlier tokens, so that each step computes only its new tokens.

    cache = Cache.growing(model.config)    # or preallocated(…, capacity), windowed(…), quantised(…)
    model(prompt, cache=cache)
    model(next, cache=cache)               # the same logits as one pass over all of it

One `Store` per layer, and the padding of the tokens so far. No module holds a reference to it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.cache.stores import (
    CrossStore,
    GrowingStore,
    PreallocatedStore,
    QuantisedStore,
    RingStore,
    Store,
)
from sightline.core.masks import count_positions
from sightline.errors import InputError


class Cache:
    """One store per decoder layer, one more per layer for cross-attention, and the padding so
    far."""

    def __init__(self, stores: list[Store], *, cross: bool = False) -> None:
        self.stores = stores
        self.cross: list[Store] = [CrossStore() for _ in stores] if cross else []
        self.length = 0
        self.padding: Bool[Tensor, "batch time"] | None = None
        self.batch: int | None = None
        self.unfinished = False

    @classmethod
    def growing(cls, config: ModelConfig) -> Cache:
        """Holds all tokens; memory grows with them."""
        return cls._of(config, lambda window: GrowingStore())

    @classmethod
    def preallocated(cls, config: ModelConfig, capacity: int) -> Cache:
        """Allocates memory for `capacity` tokens once."""
        return cls._of(config, lambda window: PreallocatedStore(capacity))

    @classmethod
    def windowed(cls, config: ModelConfig) -> Cache:
        """Rings in the layers that have a sliding window, growing stores in the others."""
        return cls._of(
            config, lambda window: GrowingStore() if window is None else RingStore(window)
        )

    @classmethod
    def quantised(cls, config: ModelConfig) -> Cache:
        """Holds all tokens in 8 bits: about a quarter of the memory, with approximate logits."""
        return cls._of(config, lambda window: QuantisedStore())

    @classmethod
    def _of(cls, config: ModelConfig, make: _StoreFactory) -> Cache:
        if config.decoder is None:
            raise InputError(
                "a cache for an encoder",
                expected="a decoder, which makes tokens one by one",
                fix="call the model without cache=",
            )
        stack = config.decoder
        return cls(
            [make(stack.block(n).attention.window) for n in range(stack.layers)],
            cross=config.encoder is not None,
        )

    def next_positions(
        self, tokens: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None
    ) -> tuple[Int[Tensor, "#batch time"], int | None]:
        """Positions of the next tokens, and the offset if no row is padded."""
        if padding is None and self.padding is None:
            at = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device)[
                None
            ]
            return at, self.length
        new = torch.zeros_like(tokens, dtype=torch.bool) if padding is None else padding
        return count_positions(self._padding_with(new))[:, self.length :], None

    def begin(self) -> None:
        """Start a forward pass. If the last one was interrupted (Ctrl-C, an error), its
        half-written tokens are dropped first."""
        if self.unfinished:
            self.truncate(self.length)
        self.unfinished = True

    def advance(
        self, tokens: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None
    ) -> None:
        """Finish the forward pass over these tokens."""
        if padding is not None or self.padding is not None:
            new = torch.zeros_like(tokens, dtype=torch.bool) if padding is None else padding
            self.padding = self._padding_with(new)
        self.length = self.length + tokens.shape[1]
        self.batch = tokens.shape[0]
        self.unfinished = False

    def _padding_with(self, new: Bool[Tensor, "batch new"]) -> Bool[Tensor, "batch time"]:
        old = new.new_zeros(new.shape[0], self.length) if self.padding is None else self.padding
        return torch.cat((old, new), dim=1)

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` tokens."""
        for store in self.stores + (self.cross if length == 0 else []):
            store.truncate(length)
        self.length = min(length, self.length)
        self.padding = None if self.padding is None or length == 0 else self.padding[:, :length]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Row n becomes a copy of row `rows[n]`; rows may be dropped or repeated (beam search)."""
        if self.unfinished:
            self.begin()
        for store in self.stores + self.cross:
            store.reorder(rows)
        self.batch = None if self.batch is None else rows.shape[0]
        self.padding = None if self.padding is None else self.padding.index_select(0, rows)

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(store.bytes for store in self.stores + self.cross)


@runtime_checkable
class _StoreFactory(Protocol):
    def __call__(self, window: int | None) -> Store: ...
