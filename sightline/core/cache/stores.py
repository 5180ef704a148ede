"""The KV cache of one layer. Each store holds keys and values in a different way; the mask is
computed from their positions.

growing        all tokens, in memory that doubles
preallocated   all tokens, in memory allocated once
quantised      all tokens, in 8 bits
ring           the last tokens, as many as a sliding window needs
cross          the encoder's keys and values, computed once
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from sightline.errors import InputError


class KeyValues(NamedTuple):
    """Keys and values with their positions (−1 is padding), and the offset if it is known (see
    `Mask`)."""

    key: Float[Tensor, "batch kv_heads key head_dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"]
    at: Int[Tensor, "#batch key"]
    offset: int | None


@runtime_checkable
class Store(Protocol):
    """The keys and values of one layer."""

    def recall(self) -> KeyValues | None:
        """Keys and values that need not be computed again (cross-attention), or None."""
        ...

    def update(self, new: KeyValues) -> KeyValues:
        """Append these, and return all keys and values that attention may use."""
        ...

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` tokens."""
        ...

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Row n becomes a copy of row `rows[n]`."""
        ...

    @property
    def bytes(self) -> int: ...


class GrowingBuffer:
    """A tensor that grows along its time axis, in memory that doubles, so that appending a
    token has constant cost.

    Returned tensors are never overwritten: after a truncation, the next tokens go into new memory.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.length = 0
        self.owned = False
        self.memory = torch.empty(0)

    def extend(
        self, new: Shaped[Tensor, "batch heads new dim"]
    ) -> Shaped[Tensor, "batch heads time dim"]:
        """Append along the time axis; returns old and new together."""
        start = self.length
        self.length = self.length + new.shape[2]
        if (
            new.requires_grad
        ):  # a gradient forbids writing into memory that earlier steps still need
            self.memory = torch.cat((self.memory[:, :, :start], new), dim=2) if start else new
            self.owned = False
            return self.memory
        is_read_only = (
            start > 0 and self.memory.is_inference() and not torch.is_inference_mode_enabled()
        )  # inference tensors may not be written to outside of inference mode
        if not self.owned or is_read_only or self.length > self.memory.shape[2]:
            old = self.memory
            capacity = self.capacity or (2 * self.length if start else self.length)
            self.memory = new.new_empty(*new.shape[:2], capacity, new.shape[3])
            self.owned = True
            if start:
                self.memory[:, :, :start] = old[:, :, :start]
        self.memory[:, :, start : self.length] = new
        return self.all

    @property
    def all(self) -> Shaped[Tensor, "batch heads time dim"]:
        return self.memory[:, :, : self.length]

    def share(self, other: GrowingBuffer, length: int, row: int) -> None:
        """Start with a row of the other buffer, without a copy; the first append copies."""
        self.memory = other.memory[row : row + 1]
        self.length = length
        self.owned = False

    def truncate(self, length: int) -> None:
        if length < self.length:
            self.length = length
            self.owned = False

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        if self.length:
            self.memory = self.all.index_select(0, rows)
            self.owned = False

    @property
    def bytes(self) -> int:
        """Bytes of the stored tokens, or of the whole allocation if it was made at once."""
        return 0 if not self.length else self.memory.nbytes if self.capacity else self.all.nbytes


class GrowingStore:
    """Holds all tokens."""

    def __init__(self, capacity: int | None = None) -> None:
        self.key = GrowingBuffer(capacity)
        self.value = GrowingBuffer(capacity)
        self.positions = StoredPositions()

    def recall(self) -> KeyValues | None:
        return None

    def update(self, new: KeyValues) -> KeyValues:
        at, offset = self.positions.extend(new)
        return KeyValues(self.key.extend(new.key), self.value.extend(new.value), at, offset)

    def share(self, other: GrowingStore, length: int, row: int) -> None:
        """Start with the first `length` tokens of a row of another store, in the same memory."""
        self.key.share(other.key, length, row)
        self.value.share(other.value, length, row)
        self.positions.at, self.positions.offset = (
            None if other.positions.at is None else other.positions.at[:, :length],
            other.positions.offset,
        )

    def truncate(self, length: int) -> None:
        for part in (self.key, self.value, self.positions):
            part.truncate(length)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for part in (self.key, self.value, self.positions):
            part.reorder(rows)

    @property
    def bytes(self) -> int:
        return self.key.bytes + self.value.bytes


class PreallocatedStore(GrowingStore):
    """Holds up to `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity

    def update(self, new: KeyValues) -> KeyValues:
        tokens = self.key.length + new.key.shape[2]
        if tokens > self.capacity:
            raise InputError(
                f"{tokens} tokens in a cache of {self.capacity}",
                fix=f"make the cache with capacity={tokens} or more, or shorten the text",
            )
        return super().update(new)


class QuantisedStore:
    """Holds all tokens in 8 bits: x ≈ s · round(x / s), s = max |x| / 127 over each token's head.
    About a quarter of the memory."""

    def __init__(self) -> None:
        self.buffers = [GrowingBuffer() for _ in range(4)]
        self.positions = StoredPositions()

    def recall(self) -> KeyValues | None:
        return None

    def update(self, new: KeyValues) -> KeyValues:
        parts = [*quantise_rows(new.key.detach()), *quantise_rows(new.value.detach())]
        key, key_scale, value, value_scale = (
            buffer.extend(part) for buffer, part in zip(self.buffers, parts, strict=True)
        )
        return KeyValues(key * key_scale, value * value_scale, *self.positions.extend(new))

    def truncate(self, length: int) -> None:
        for part in (*self.buffers, self.positions):
            part.truncate(length)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for part in (*self.buffers, self.positions):
            part.reorder(rows)

    @property
    def bytes(self) -> int:
        return sum(buffer.bytes for buffer in self.buffers)


def quantise_rows(
    x: Float[Tensor, "batch heads time dim"],
) -> tuple[Shaped[Tensor, "batch heads time dim"], Float[Tensor, "batch heads time 1"]]:
    """x as integers from −127 to 127, and their scale."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny * 127) / 127
    return (x / scale).round().to(torch.int8), scale


class RingStore:
    """Holds the last `window` tokens, all that a sliding window needs. A chunk attends to them and
    to all of itself."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.stored: KeyValues | None = None

    def recall(self) -> KeyValues | None:
        return None

    def update(self, new: KeyValues) -> KeyValues:
        visible = new if self.stored is None else concatenate(self.stored, new)
        dropped = max(0, visible.key.shape[2] - self.window)
        offset = None if dropped else visible.offset
        self.stored = KeyValues(
            visible.key[:, :, dropped:],
            visible.value[:, :, dropped:],
            visible.at[:, dropped:],
            offset,
        )
        return visible

    def truncate(self, length: int) -> None:
        if length == 0:
            self.stored = None
            return
        raise InputError(
            "a ring cache cannot be truncated",
            fix="use Cache.growing or Cache.preallocated where tokens are removed again",
        )

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.stored = _select_rows(self.stored, rows)

    @property
    def bytes(self) -> int:
        return _memory_bytes(self.stored)


class CrossStore:
    """Cross-attention: the encoder's keys and values, computed once. Rows of one source share its
    memory."""

    def __init__(self) -> None:
        self.first: KeyValues | None = None
        self.stored: KeyValues | None = None
        self.source: list[int] = []

    def recall(self) -> KeyValues | None:
        return self.stored

    def update(self, new: KeyValues) -> KeyValues:
        self.first = self.stored = new
        self.source = list(range(new.key.shape[0]))
        return new

    def truncate(self, length: int) -> None:
        if length == 0:
            self.first = self.stored = None

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        source = [self.source[row] for row in rows.tolist()] if self.first is not None else []
        if self.first is not None and source != self.source:
            self.stored = _rows_of(self.first, source)
            self.source = source

    @property
    def bytes(self) -> int:
        """Bytes of the sources, each counted once."""
        return _memory_bytes(self.first)


class StoredPositions:
    """Positions of the stored tokens, and the offset as long as it is known."""

    def __init__(self) -> None:
        self.at: Int[Tensor, "#batch key"] | None = None
        self.offset: int | None = None

    def extend(self, new: KeyValues) -> tuple[Int[Tensor, "#batch key"], int | None]:
        known = self.at is None or self.offset is not None
        self.at = new.at if self.at is None else torch.cat(_expand_batch(self.at, new.at), dim=1)
        self.offset = new.offset if known else None
        return self.at, self.offset

    def truncate(self, length: int) -> None:
        self.at = None if self.at is None or length == 0 else self.at[:, :length]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.at = None if self.at is None else _select_positions(self.at, rows)


def _rows_of(first: KeyValues, source: list[int]) -> KeyValues:
    """These rows; without a copy if there is one source."""
    if first.key.shape[0] == 1:
        return first._replace(
            key=first.key.expand(len(source), -1, -1, -1),
            value=first.value.expand(len(source), -1, -1, -1),
        )
    picked = _select_rows(first, torch.tensor(source, device=first.key.device))
    assert picked is not None
    return picked


def concatenate(old: KeyValues, new: KeyValues) -> KeyValues:
    """The old tokens, then the new ones."""
    return KeyValues(
        torch.cat((old.key, new.key), dim=2),
        torch.cat((old.value, new.value), dim=2),
        *_joint_positions(old, new),
    )


def _joint_positions(
    old: KeyValues, new: KeyValues
) -> tuple[Int[Tensor, "#batch key"], int | None]:
    """Positions of old and new tokens, and the offset if it is still known."""
    known = old.offset is not None and new.offset is not None
    return torch.cat(_expand_batch(old.at, new.at), dim=1), new.offset if known else None


def _expand_batch(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Both with as many rows as the larger one."""
    batch = max(old.shape[0], new.shape[0])
    return old.expand(batch, -1), new.expand(batch, -1)


def _select_rows(stored: KeyValues | None, rows: Int[Tensor, " batch"]) -> KeyValues | None:
    """Keys, values and positions of these rows."""
    if stored is None:
        return None
    key, value, at, offset = stored
    return KeyValues(
        key.index_select(0, rows), value.index_select(0, rows), _select_positions(at, rows), offset
    )


def _select_positions(
    at: Int[Tensor, "#batch key"], rows: Int[Tensor, " rows"]
) -> Int[Tensor, "#rows key"]:
    """One row of positions is shared by all rows of keys, and stays one."""
    return at if at.shape[0] == 1 else at.index_select(0, rows)


def _memory_bytes(stored: KeyValues | None) -> int:
    return 0 if stored is None else stored.key.nbytes + stored.value.nbytes
