"""What decoding remembers: keys and values of earlier tokens, so that each step computes only its own.

    cache = Cache.growing(model.config)                    # or preallocated(…, capacity), or windowed (rings where there is a window)
    model(prompt, cache=cache); model(next, cache=cache)   # the same logits as one pass over all of it

One `Store` per layer; a store also knows where its keys stand, so that the mask needs nothing else. Cross-attention's keys
are computed once. Nothing of this lives on a module.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.masks import count_positions
from sightline.errors import InputError


class Stored(NamedTuple):
    """Keys and values with their positions (−1 is padding), and the offset that is known without looking (see `Mask`)."""

    key: Float[Tensor, "batch kv_heads key head_dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"]
    at: Int[Tensor, "#batch key"]
    offset: int | None


@runtime_checkable
class Store(Protocol):
    """One layer's memory."""

    def recall(self) -> Stored | None:
        """What need not be computed again (cross-attention), or None."""
        ...

    def update(self, new: Stored) -> Stored:
        """Remember these, and give all that attention may now look at."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        ...

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Row n becomes what row `rows[n]` was."""
        ...

    @property
    def bytes(self) -> int: ...


class Growing:
    """Keeps everything, by concatenation."""

    def __init__(self) -> None:
        self.stored: Stored | None = None

    def recall(self) -> Stored | None:
        return None

    def update(self, new: Stored) -> Stored:
        self.stored = new if self.stored is None else join(self.stored, new)
        return self.stored

    def truncate(self, length: int) -> None:
        if self.stored is not None:
            key, value, at, offset = self.stored
            self.stored = Stored(key[:, :, :length], value[:, :, :length], at[:, :length], offset)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.stored = _pick(self.stored, rows)

    @property
    def bytes(self) -> int:
        return _bytes(self.stored)


class Preallocated:
    """Keeps up to `capacity` tokens in memory that is taken once."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.key = self.value = self.at = torch.empty(0)

    def recall(self) -> Stored | None:
        return None

    def update(self, new: Stored) -> Stored:
        start, stop = self.length, self.length + new.key.shape[2]
        if stop > self.capacity:
            raise InputError(
                f"{stop} tokens in a cache of {self.capacity}", fix=f"make the cache with capacity={stop} or more, or shorten the text"
            )
        if start == 0:
            self.key, self.value = (x.new_empty(*x.shape[:2], self.capacity, x.shape[3]) for x in (new.key, new.value))
            self.at = new.at
        else:
            self.at = torch.cat(_match(self.at, new.at), dim=1)
        self.key[:, :, start:stop], self.value[:, :, start:stop] = new.key, new.value
        self.length = stop
        return Stored(self.key[:, :, :stop], self.value[:, :, :stop], self.at, new.offset)

    def truncate(self, length: int) -> None:
        self.length, self.at = min(length, self.length), self.at[:, :length]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        if self.length:
            self.key, self.value = self.key.index_select(0, rows), self.value.index_select(0, rows)
            self.at = _pick_positions(self.at, rows)

    @property
    def bytes(self) -> int:
        return (self.key.nbytes + self.value.nbytes) if self.length else 0


class Ring:
    """Keeps the last `window` tokens: all that a sliding window can see. A chunk sees them and itself whole."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.stored: Stored | None = None

    def recall(self) -> Stored | None:
        return None

    def update(self, new: Stored) -> Stored:
        seen = new if self.stored is None else join(self.stored, new)
        dropped = max(0, seen.key.shape[2] - self.window)
        offset = None if dropped else seen.offset
        self.stored = Stored(seen.key[:, :, dropped:], seen.value[:, :, dropped:], seen.at[:, dropped:], offset)
        return seen

    def truncate(self, length: int) -> None:
        if length == 0:
            self.stored = None
            return
        raise InputError("a ring cache cannot go back", fix="use Cache.growing or Cache.preallocated where tokens are taken back")

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.stored = _pick(self.stored, rows)

    @property
    def bytes(self) -> int:
        return _bytes(self.stored)


class Once:
    """Cross-attention: the encoder's keys and values are computed once and stay."""

    def __init__(self) -> None:
        self.stored: Stored | None = None

    def recall(self) -> Stored | None:
        return self.stored

    def update(self, new: Stored) -> Stored:
        self.stored = new
        return new

    def truncate(self, length: int) -> None:
        if length == 0:
            self.stored = None

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.stored = _pick(self.stored, rows)

    @property
    def bytes(self) -> int:
        return _bytes(self.stored)


class Cache:
    """One store per decoder layer, one more per layer for cross-attention, and where the tokens so far stand."""

    def __init__(self, stores: list[Store], *, cross: bool = False) -> None:
        self.stores = stores
        self.cross: list[Store] = [Once() for _ in stores] if cross else []
        self.length = 0
        self.padding: Bool[Tensor, "batch time"] | None = None
        self.batch: int | None = None
        self.unfinished = False

    @classmethod
    def growing(cls, config: ModelConfig) -> Cache:
        """Keeps everything and takes memory as it goes."""
        return cls._of(config, lambda window: Growing())

    @classmethod
    def preallocated(cls, config: ModelConfig, capacity: int) -> Cache:
        """Takes the memory of `capacity` tokens once."""
        return cls._of(config, lambda window: Preallocated(capacity))

    @classmethod
    def windowed(cls, config: ModelConfig) -> Cache:
        """Rings in the layers that have a sliding window, growing stores in the others."""
        return cls._of(config, lambda window: Growing() if window is None else Ring(window))

    @classmethod
    def _of(cls, config: ModelConfig, make: _Maker) -> Cache:
        if config.decoder is None:
            raise InputError(
                "a cache for an encoder", expected="a decoder, which makes tokens one by one", fix="call the model without cache="
            )
        stack = config.decoder
        return cls([make(stack.block(n).attention.window) for n in range(stack.layers)], cross=config.encoder is not None)

    def next_positions(
        self, tokens: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None
    ) -> tuple[Int[Tensor, "#batch time"], int | None]:
        """Where the next tokens stand, after all that came before; and the offset, if no row is padded."""
        if padding is None and self.padding is None:
            at = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device)[None]
            return at, self.length
        new = torch.zeros_like(tokens, dtype=torch.bool) if padding is None else padding
        return count_positions(self._padding_with(new))[:, self.length :], None

    def begin(self) -> None:
        """A pass starts. If the last one never ended (Ctrl-C, an error), what it left half-written is forgotten first."""
        if self.unfinished:
            self.truncate(self.length)
        self.unfinished = True

    def advance(self, tokens: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None) -> None:
        """A pass over these tokens is done."""
        if padding is not None or self.padding is not None:
            new = torch.zeros_like(tokens, dtype=torch.bool) if padding is None else padding
            self.padding = self._padding_with(new)
        self.length, self.batch, self.unfinished = self.length + tokens.shape[1], tokens.shape[0], False

    def _padding_with(self, new: Bool[Tensor, "batch new"]) -> Bool[Tensor, "batch time"]:
        old = new.new_zeros(new.shape[0], self.length) if self.padding is None else self.padding
        return torch.cat((old, new), dim=1)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        for store in self.stores + (self.cross if length == 0 else []):
            store.truncate(length)
        self.length = min(length, self.length)
        self.padding = None if self.padding is None or length == 0 else self.padding[:, :length]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Row n becomes what row `rows[n]` was: a row may be left out, or stand there twice (beam search)."""
        if self.unfinished:
            self.begin()
        for store in self.stores + self.cross:
            store.reorder(rows)
        self.batch = None if self.batch is None else rows.shape[0]
        self.padding = None if self.padding is None else self.padding.index_select(0, rows)

    @property
    def bytes(self) -> int:
        """Memory of all keys and values."""
        return sum(store.bytes for store in self.stores + self.cross)


@runtime_checkable
class _Maker(Protocol):
    def __call__(self, window: int | None) -> Store: ...


def join(old: Stored, new: Stored) -> Stored:
    """The old tokens, then the new ones."""
    key, value = torch.cat((old.key, new.key), dim=2), torch.cat((old.value, new.value), dim=2)
    known = old.offset is not None and new.offset is not None
    return Stored(key, value, torch.cat(_match(old.at, new.at), dim=1), new.offset if known else None)


def _match(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Both with as many rows as the larger."""
    batch = max(old.shape[0], new.shape[0])
    return old.expand(batch, -1), new.expand(batch, -1)


def _pick(stored: Stored | None, rows: Int[Tensor, " batch"]) -> Stored | None:
    """Keys, values and positions of these rows."""
    if stored is None:
        return None
    key, value, at, offset = stored
    return Stored(key.index_select(0, rows), value.index_select(0, rows), _pick_positions(at, rows), offset)


def _pick_positions(at: Int[Tensor, "#batch key"], rows: Int[Tensor, " rows"]) -> Int[Tensor, "#rows key"]:
    """One row of positions serves every row of keys, and stays one."""
    return at if at.shape[0] == 1 else at.index_select(0, rows)


def _bytes(stored: Stored | None) -> int:
    return 0 if stored is None else stored.key.nbytes + stored.value.nbytes
