"""What one layer remembers of earlier tokens. Each kind of store keeps keys and values in its own
way; the mask needs nothing else.

growing        everything, in memory that doubles
preallocated   everything, in memory that is taken once
quantised      everything, in 8 bits
ring           the last tokens that a sliding window can see
once           cross-attention: computed once
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from sightline.errors import InputError


class Stored(NamedTuple):
    """Keys and values with their positions (−1 is padding), and the offset that is known without
    looking (see `Mask`)."""

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


class Room:
    """A tensor that grows along its time axis, in memory that doubles: one more token costs the
    same however many there are.

    What was handed out is never written over: after tokens are taken back, the next ones go into
    new memory.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.length = 0
        self.owned = False
        self.memory = torch.empty(0)

    def extend(
        self, new: Shaped[Tensor, "batch heads new dim"]
    ) -> Shaped[Tensor, "batch heads time dim"]:
        """The old and the new, together."""
        start = self.length
        self.length = self.length + new.shape[2]
        if (
            new.requires_grad
        ):  # a gradient forbids writing into memory that earlier steps still need
            self.memory = torch.cat((self.memory[:, :, :start], new), dim=2) if start else new
            self.owned = False
            return self.memory
        foreign = (
            start > 0 and self.memory.is_inference() and not torch.is_inference_mode_enabled()
        )  # may not be written to here
        if not self.owned or foreign or self.length > self.memory.shape[2]:
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

    def share(self, other: Room, length: int, row: int) -> None:
        """Begin as a row of the other does; growing copies."""
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
        """What is stored, or all that was taken for it at once."""
        return 0 if not self.length else self.memory.nbytes if self.capacity else self.all.nbytes


class Growing:
    """Keeps everything."""

    def __init__(self, capacity: int | None = None) -> None:
        self.key = Room(capacity)
        self.value = Room(capacity)
        self.places = Places()

    def recall(self) -> Stored | None:
        return None

    def update(self, new: Stored) -> Stored:
        at, offset = self.places.extend(new)
        return Stored(self.key.extend(new.key), self.value.extend(new.value), at, offset)

    def share(self, other: Growing, length: int, row: int) -> None:
        """Begin with the first `length` tokens of a row of another store, in the same memory."""
        self.key.share(other.key, length, row)
        self.value.share(other.value, length, row)
        self.places.at, self.places.offset = (
            None if other.places.at is None else other.places.at[:, :length],
            other.places.offset,
        )

    def truncate(self, length: int) -> None:
        for part in (self.key, self.value, self.places):
            part.truncate(length)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for part in (self.key, self.value, self.places):
            part.reorder(rows)

    @property
    def bytes(self) -> int:
        return self.key.bytes + self.value.bytes


class Preallocated(Growing):
    """Keeps up to `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity

    def update(self, new: Stored) -> Stored:
        tokens = self.key.length + new.key.shape[2]
        if tokens > self.capacity:
            raise InputError(
                f"{tokens} tokens in a cache of {self.capacity}",
                fix=f"make the cache with capacity={tokens} or more, or shorten the text",
            )
        return super().update(new)


class Quantised:
    """Keeps everything in 8 bits: x ≈ s · round(x / s), s = max |x| / 127 over each token's head.
    About a quarter of the memory."""

    def __init__(self) -> None:
        self.rooms = [Room() for _ in range(4)]
        self.places = Places()

    def recall(self) -> Stored | None:
        return None

    def update(self, new: Stored) -> Stored:
        parts = [*quantise(new.key.detach()), *quantise(new.value.detach())]
        key, key_scale, value, value_scale = (
            room.extend(part) for room, part in zip(self.rooms, parts, strict=True)
        )
        return Stored(key * key_scale, value * value_scale, *self.places.extend(new))

    def truncate(self, length: int) -> None:
        for part in (*self.rooms, self.places):
            part.truncate(length)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for part in (*self.rooms, self.places):
            part.reorder(rows)

    @property
    def bytes(self) -> int:
        return sum(room.bytes for room in self.rooms)


def quantise(
    x: Float[Tensor, "batch heads time dim"],
) -> tuple[Shaped[Tensor, "batch heads time dim"], Float[Tensor, "batch heads time 1"]]:
    """x as whole numbers from −127 to 127, and what to multiply them by."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny * 127) / 127
    return (x / scale).round().to(torch.int8), scale


class Ring:
    """Keeps the last `window` tokens: all that a sliding window can see. A chunk sees them and
    itself whole."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.stored: Stored | None = None

    def recall(self) -> Stored | None:
        return None

    def update(self, new: Stored) -> Stored:
        seen = new if self.stored is None else join(self.stored, new)
        dropped = max(0, seen.key.shape[2] - self.window)
        offset = None if dropped else seen.offset
        self.stored = Stored(
            seen.key[:, :, dropped:], seen.value[:, :, dropped:], seen.at[:, dropped:], offset
        )
        return seen

    def truncate(self, length: int) -> None:
        if length == 0:
            self.stored = None
            return
        raise InputError(
            "a ring cache cannot go back",
            fix="use Cache.growing or Cache.preallocated where tokens are taken back",
        )

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.stored = _pick(self.stored, rows)

    @property
    def bytes(self) -> int:
        return _bytes(self.stored)


class Once:
    """Cross-attention: the encoder's keys and values are computed once and stay. Rows of one source
    share its memory."""

    def __init__(self) -> None:
        self.first: Stored | None = None
        self.stored: Stored | None = None
        self.source: list[int] = []

    def recall(self) -> Stored | None:
        return self.stored

    def update(self, new: Stored) -> Stored:
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
        """The sources', each once."""
        return _bytes(self.first)


class Places:
    """Where stored tokens stand, and the offset as long as it is known."""

    def __init__(self) -> None:
        self.at: Int[Tensor, "#batch key"] | None = None
        self.offset: int | None = None

    def extend(self, new: Stored) -> tuple[Int[Tensor, "#batch key"], int | None]:
        known = self.at is None or self.offset is not None
        self.at = new.at if self.at is None else torch.cat(_match(self.at, new.at), dim=1)
        self.offset = new.offset if known else None
        return self.at, self.offset

    def truncate(self, length: int) -> None:
        self.at = None if self.at is None or length == 0 else self.at[:, :length]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.at = None if self.at is None else _pick_positions(self.at, rows)


def _rows_of(first: Stored, source: list[int]) -> Stored:
    """These rows; of one source only, without a copy."""
    if first.key.shape[0] == 1:
        return first._replace(
            key=first.key.expand(len(source), -1, -1, -1),
            value=first.value.expand(len(source), -1, -1, -1),
        )
    picked = _pick(first, torch.tensor(source, device=first.key.device))
    assert picked is not None
    return picked


def join(old: Stored, new: Stored) -> Stored:
    """The old tokens, then the new ones."""
    return Stored(
        torch.cat((old.key, new.key), dim=2),
        torch.cat((old.value, new.value), dim=2),
        *_positions(old, new),
    )


def _positions(old: Stored, new: Stored) -> tuple[Int[Tensor, "#batch key"], int | None]:
    """Where the joined tokens stand, and the offset if it is still known."""
    known = old.offset is not None and new.offset is not None
    return torch.cat(_match(old.at, new.at), dim=1), new.offset if known else None


def _match(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Both with as many rows as the larger."""
    batch = max(old.shape[0], new.shape[0])
    return old.expand(batch, -1), new.expand(batch, -1)


def _pick(stored: Stored | None, rows: Int[Tensor, " batch"]) -> Stored | None:
    """Keys, values and positions of these rows."""
    if stored is None:
        return None
    key, value, at, offset = stored
    return Stored(
        key.index_select(0, rows), value.index_select(0, rows), _pick_positions(at, rows), offset
    )


def _pick_positions(
    at: Int[Tensor, "#batch key"], rows: Int[Tensor, " rows"]
) -> Int[Tensor, "#rows key"]:
    """One row of positions serves every row of keys, and stays one."""
    return at if at.shape[0] == 1 else at.index_select(0, rows)


def _bytes(stored: Stored | None) -> int:
    return 0 if stored is None else stored.key.nbytes + stored.value.nbytes
