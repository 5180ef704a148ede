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
    """Sequences of an engine: one for each row. Rows that begin alike share their memory."""

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
        """The sequences of so many rows, new ones at first."""
        self.check_open()
        if not self.sequences:
            self.sequences = [self.engine.begin() for _ in range(count)]
        for sequence in self.sequences:  # what a pass left that never ended
            if self.engine.length(sequence) > self.length:
                self.engine.truncate(sequence, self.length)
        return self.sequences

    def hold(self) -> Held:
        """The first row, for whoever will read its keys: they stay as they are, whatever this cache
        forgets."""
        self.check_open()
        held = None if self.holder is None else self.holder()
        if held is None:
            held = Held(self.engine, self.sequences[0])
            self.holder = ref(held)
        return held

    def _left(self) -> list[int]:
        """The rows that are this cache's alone, now that a row which somebody holds is theirs."""
        held = None if self.holder is None else self.holder()
        self.holder = None
        if held is None:
            return self.sequences
        held.owned = True
        return [sequence for sequence in self.sequences if sequence != held.sequence]

    def truncate(self, length: int) -> None:
        self.check_open()
        if length < self.length and self.holder is not None:
            self.reorder(torch.arange(len(self.sequences)))  # copies, before anything is forgotten
        for sequence in self.sequences:
            self.engine.truncate(sequence, length)
        self.length = min(length, self.length)

    def reorder(self, rows: Tensor) -> None:
        self.check_open()
        kept = [self.engine.copy(self.sequences[row]) for row in rows.tolist()]
        self._leave_rows()
        self.sequences = kept
        self.batch = len(kept)

    def fork(self, length: int) -> NativeCache:
        """Another that begins with the first tokens of this one. Nothing is copied: both have the
        same blocks until one goes on."""
        self.check_open()
        new = NativeCache(self.engine, len(self.stores))
        new.sequences = [self.engine.copy(sequence) for sequence in self.sequences]
        new.length = self.length
        new.batch = self.batch
        new.truncate(length)
        return new

    def _leave_rows(self) -> None:
        for sequence in self._left():
            self.engine.leave(sequence)
        self.sequences = []

    def close(self) -> None:
        """Give the memory back. What is asked of the cache afterwards is refused."""
        self._leave_rows()
        self.closed = True

    def __del__(self) -> None:
        self.close()

    @property
    def bytes(self) -> int:
        """Memory of all rows; what they share counts for each."""
        return len(self.sequences) * -(-self.length // BLOCK) * self.block_bytes


def bytes_for(engine: NativeEngine, length: int) -> int:
    """Memory of a sequence's keys and values, in whole blocks."""
    program = engine.program
    numbers = sum(
        2 * heads * dim for heads, dim in zip(program.kv_heads, program.dims, strict=True)
    )
    return rounded(length, BLOCK) * numbers * (2 if engine.half_cache else 4)


def is_next(tokens: Tensor, cache: NativeCache, config: ModelConfig) -> bool:
    """One more token of one row, as most calls are: nothing but its id can be wrong, and the engine
    looks at that."""
    single = cache.batch == 1 and tokens.shape == (1, 1) and tokens.dtype == torch.int64
    return single and config.decoder is not None and cache.length < config.decoder.max_positions
