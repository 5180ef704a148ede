"""The KV cache of the native engine: one sequence per row, in blocks that rows can share."""

from __future__ import annotations

from weakref import ReferenceType, ref

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import GrowingStore
from sightline.engine.engine import NativeEngine
from sightline.engine.matrices import rounded
from sightline.engine.recording import Held
from sightline.errors import InputError

BLOCK = 32  # positions


class NativeCache(Cache):
    """Sequences of an engine, one per row. Rows with a common prefix share its memory."""

    def __init__(self, engine: NativeEngine, layers: int) -> None:
        super().__init__([GrowingStore() for _ in range(layers)])  # they stay empty
        self.engine = engine
        self.sequences = list[int]()
        self.block_bytes = bytes_for(engine, BLOCK)
        self.holder: ReferenceType[Held] | None = None
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise InputError(
                "a cache that was closed", expected="one that is open", fix="new_cache()"
            )

    def rows(self, count: int) -> list[int]:
        """The sequences of `rows` rows, created on the first call."""
        self.check_open()
        if not self.sequences:
            self.sequences = [self.engine.begin() for _ in range(count)]
        for sequence in self.sequences:  # left by a pass that was interrupted
            if self.engine.length(sequence) > self.length:
                self.engine.truncate(sequence, self.length)
        return self.sequences

    def hold(self) -> Held:
        """The first row, for a reader of its keys: they stay unchanged even if this cache is
        truncated."""
        self.check_open()
        holder = None if self.holder is None else self.holder()
        if holder is None:
            holder = Held(self.engine, self.sequences[0])
            self.holder = ref(holder)
        return holder

    def _release_rows(self) -> list[int]:
        """Exclusive rows: a row that has a reader is handed over and replaced by a copy."""
        holder = None if self.holder is None else self.holder()
        self.holder = None
        if holder is None:
            return self.sequences
        holder.owned = True
        return [sequence for sequence in self.sequences if sequence != holder.sequence]

    def truncate(self, length: int) -> None:
        self.check_open()
        if length < self.length and self.holder is not None:
            self.reorder(torch.arange(len(self.sequences)))  # copies, before anything is forgotten
        for sequence in self.sequences:
            self.engine.truncate(sequence, length)
        self.length = min(length, self.length)

    def reorder(self, rows: Tensor) -> None:
        self.check_open()
        sequences = [self.engine.copy(self.sequences[row]) for row in rows.tolist()]
        self._leave_rows()
        self.sequences = sequences
        self.batch = len(sequences)

    def fork(self, length: int) -> NativeCache:
        """Another cache with the first tokens of this one. Copy-on-write: both share the blocks
        until one of them appends."""
        self.check_open()
        new = NativeCache(self.engine, len(self.stores))
        new.sequences = [self.engine.copy(sequence) for sequence in self.sequences]
        new.length = self.length
        new.batch = self.batch
        new.truncate(length)
        return new

    def _leave_rows(self) -> None:
        for sequence in self._release_rows():
            self.engine.leave(sequence)
        self.sequences = []

    def close(self) -> None:
        """Free the memory. A closed cache refuses further use."""
        self._leave_rows()
        self.closed = True

    def __del__(self) -> None:
        self.close()

    @property
    def bytes(self) -> int:
        """Memory of all rows; shared blocks count once per row."""
        return len(self.sequences) * -(-self.length // BLOCK) * self.block_bytes


def bytes_for(engine: NativeEngine, length: int) -> int:
    """Memory of a sequence's keys and values, in whole blocks."""
    program = engine.program
    numbers = sum(
        2 * heads * dim for heads, dim in zip(program.kv_heads, program.dims, strict=True)
    )
    return rounded(length, BLOCK) * numbers * (2 if engine.half_cache else 4)


def is_next(tokens: Tensor, cache: NativeCache, config: ModelConfig) -> bool:
    """Whether this is the most common call, one more token of one row: only its id can be invalid,
    and the engine checks that."""
    single = cache.batch == 1 and tokens.shape == (1, 1) and tokens.dtype == torch.int64
    return single and config.decoder is not None and cache.length < config.decoder.max_positions
