"""A KV cache for continuous batching: rows are independent sequences of different lengths, which
join and leave between two steps.

    slots = Slots(model.config)
    slots.add(cache, capacity=300)               # the contents of one sequence's cache become the
                                                 # last row
    hidden = model.hidden(tokens, cache=slots)   # one new token per row
    slots.remove(2)                              # the last row takes the place of row 2

Rows are in one block of memory, with room for the largest capacity. Unused places of a row have
position −1, which the mask excludes.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import GrowingStore, KeyValues, Store
from sightline.errors import InputError

Keys = Float[Tensor, "_ _ _ _"]  # rows, heads, time, dim


class RowLengths:
    """Length and token positions of each row; shared by all layers."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.at = torch.empty(0, 0, dtype=torch.long)
        self.index = torch.empty(0, dtype=torch.long)

    def advance(self, device: torch.device) -> None:
        """Make room for one more token in each row."""
        self.index = torch.tensor(self.lengths, device=device)
        places = torch.arange(max(self.lengths) + 1, device=device)
        self.at = torch.where(places <= self.index[:, None], places, -1)

    @property
    def offset(self) -> int | None:
        """The length, if it is the same in every row (see `Mask.offset`)."""
        return self.lengths[0] if min(self.lengths) == max(self.lengths) else None


class SlotStore:
    """The keys and values of one layer."""

    def __init__(self, rows: RowLengths) -> None:
        self.rows = rows
        self.key = self.value = torch.empty(0, 0, 0, 0)

    def recall(self) -> KeyValues | None:
        return None

    def update(self, new: KeyValues) -> KeyValues:
        rows = torch.arange(len(self.rows.index), device=new.key.device)
        index = self.rows.index
        self.key[rows, :, index], self.value[rows, :, index] = new.key[:, :, 0], new.value[:, :, 0]
        used = len(index)
        longest = self.rows.at.shape[1]
        return KeyValues(
            self.key[:used, :, :longest],
            self.value[:used, :, :longest],
            self.rows.at,
            self.rows.offset,
        )

    def truncate(self, length: int) -> None:
        """Nothing to do: the next pass overwrites what an interrupted one wrote."""

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        raise InputError("slots cannot be reordered", fix="use Cache.growing for a beam search")

    def write(self, row: int, key: Keys, value: Keys, slots: int, capacity: int) -> None:
        """Write one sequence's keys and values into a row, and zeros after them: a NaN left there
        would pass through any mask."""
        self.key, self.value = (
            _resize(self.key, key, slots, capacity),
            _resize(self.value, value, slots, capacity),
        )
        self.key[row, :, key.shape[2] :], self.value[row, :, key.shape[2] :] = 0, 0
        self.key[row, :, : key.shape[2]], self.value[row, :, : key.shape[2]] = key[0], value[0]

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target`."""
        self.key[target], self.value[target] = self.key[source], self.value[source]

    def read(self, row: int, length: int) -> tuple[Keys, Keys]:
        """A copy of the first tokens of a row."""
        return (
            self.key[row : row + 1, :, :length].clone(),
            self.value[row : row + 1, :, :length].clone(),
        )

    @property
    def bytes(self) -> int:
        return self.key.nbytes + self.value.nbytes


class CrossSlots(SlotStore):
    """One layer's keys and values of the sources, one source per row."""

    def __init__(self, rows: RowLengths, lengths: list[int]) -> None:
        super().__init__(rows)
        self.lengths = lengths

    def recall(self) -> KeyValues | None:
        used = len(self.lengths)
        longest = max(self.lengths, default=0)
        places = torch.arange(longest, device=self.key.device)
        at = torch.where(
            places < torch.tensor(self.lengths, device=self.key.device)[:, None], places, -1
        )
        offset = 0 if min(self.lengths, default=0) == longest else None
        return (
            KeyValues(self.key[:used, :, :longest], self.value[:used, :, :longest], at, offset)
            if used
            else None
        )


class Slots(Cache):
    """One row per sequence in the batch; each step appends one token to every row."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__([], cross=False)
        decoder = config.decoder
        if decoder is None:
            raise InputError(
                "slots for an encoder", expected="a decoder", fix="call the model without cache="
            )
        self.config = config
        self.rows = RowLengths()
        self.capacities = list[int]()
        self.source_lengths: list[int] = []
        self.slots = [SlotStore(self.rows) for _ in range(decoder.layers)]
        self.cross_slots = [
            CrossSlots(self.rows, self.source_lengths)
            for _ in range(decoder.layers if config.encoder else 0)
        ]
        self.stores = list[Store](self.slots)
        self.cross = list[Store](self.cross_slots)

    def __len__(self) -> int:
        return len(self.rows.lengths)

    def add(self, cache: Cache, *, capacity: int) -> int:
        """Add a sequence with the contents of its cache and room for `capacity` tokens; returns its
        row."""
        row = len(self)
        shape = row + 1, max(capacity, *self.capacities, 0)
        for slot, store in zip(self.slots, cache.stores, strict=True):
            assert isinstance(store, GrowingStore)
            slot.write(row, store.key.all, store.value.all, *shape)
        for slot, store in zip(self.cross_slots, cache.cross, strict=True):
            stored = store.recall()
            assert stored is not None
            slot.write(
                row,
                stored.key,
                stored.value,
                shape[0],
                max(stored.key.shape[2], *self.source_lengths, 0),
            )
        if cache.cross:
            self.source_lengths.append(source_length(cache))
        self.capacities.append(capacity)
        self.rows.lengths.append(cache.length)
        self._recount()
        return row

    def remove(self, row: int) -> None:
        """Remove a sequence; the last row takes its place."""
        last = len(self) - 1
        for lengths in (self.rows.lengths, self.capacities, self.source_lengths):
            if lengths:
                lengths[row] = lengths[last]
                lengths.pop()
        for slot in (*self.slots, *self.cross_slots):
            if row != last:
                slot.move(last, row)
            if not last:
                slot.key = slot.value = torch.empty(0, 0, 0, 0)
        self._recount()

    def read(self, row: int, length: int) -> Cache:
        """A separate cache with the first tokens of a row."""
        cache = Cache.growing(self.config)
        at = torch.arange(length)[None]
        for slot, store in zip(self.slots, cache.stores, strict=True):
            store.update(KeyValues(*slot.read(row, length), at.to(slot.key.device), 0))
        for slot, store in zip(self.cross_slots, cache.cross, strict=True):
            size = self.source_lengths[row]
            store.update(
                KeyValues(
                    *slot.read(row, size), torch.arange(size, device=slot.key.device)[None], 0
                )
            )
        cache.length = length
        cache.batch = 1
        return cache

    def _recount(self) -> None:
        self.length, self.batch = max(self.rows.lengths, default=0), len(self) or None

    def next_positions(
        self, tokens: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None
    ) -> tuple[Int[Tensor, "#batch time"], int | None]:
        """The position of each row's new token: its length."""
        if tokens.shape[1] != 1 or padding is not None:
            raise InputError(
                f"{tokens.shape[1]} tokens per row for slots",
                expected="one new token per row, no padding",
                fix="tokens[:, -1:]",
            )
        self.rows.advance(tokens.device)
        return self.rows.index[:, None], self.rows.offset

    def begin(self) -> None:
        """Nothing to drop after an interrupted pass: lengths did not change, and the next pass
        overwrites what it wrote."""

    def advance(
        self, tokens: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None
    ) -> None:
        self.rows.lengths[:] = [length + 1 for length in self.rows.lengths]
        self._recount()

    def truncate(self, length: int) -> None:
        raise InputError("slots cannot be truncated", fix="remove the row")


def source_length(cache: Cache) -> int:
    """Number of source tokens in a cache."""
    stored = cache.cross[0].recall()
    return 0 if stored is None else stored.key.shape[2]


def _resize(memory: Keys, new: Keys, slots: int, capacity: int) -> Keys:
    """Memory for `slots` rows of `capacity` tokens, with the old contents; reused unless it is too
    small or more than twice too large."""
    if (
        memory.shape[0] >= slots
        and memory.shape[2] >= capacity
        and memory.shape[0] * memory.shape[2] <= 2 * slots * capacity
    ):
        return memory
    resized = new.new_zeros(slots, new.shape[1], capacity, new.shape[3])
    rows = min(slots, memory.shape[0])
    length = min(capacity, memory.shape[2])
    if memory.numel():
        resized[:rows, :, :length] = memory[:rows, :, :length]
    return resized
