"""A Transformer that runs on the engine where its own cache is used, and as it always did where it
is not.

fast = native_twin(transformer, "int8")
cache = fast.new_cache()
hidden = fast.hidden(tokens, cache=cache); logits = fast.head(hidden[:, -1:])
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core import check
from sightline.core.asleep import Asleep, awake
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import Growing
from sightline.core.model import Transformer
from sightline.core.packed import evaluated
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.matrices import Precision, rounded
from sightline.engine.seeing import Held, Pass, check_record, hand_over, room_for_queries
from sightline.errors import InputError
from sightline.record import NOTHING, Record

BLOCK = 32  # positions


class NativeCache(Cache):
    """Sequences of an engine: one for each row. Rows that begin alike share their memory."""

    def __init__(self, engine: NativeEngine, layers: int) -> None:
        super().__init__([Growing() for _ in range(layers)])  # they stay empty
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


class NativeTwin(Transformer):
    """Shares every parameter with the transformer that it was made from. The engine has its own,
    packed copy."""

    engine: NativeEngine

    def new_cache(self) -> Cache:
        assert self.config.decoder is not None
        return NativeCache(self.engine, self.config.decoder.layers)

    def hidden(
        self, tokens: Tensor, *, cache: Cache | None = None, record: Record = NOTHING, **others: Any
    ) -> Tensor:
        """The last hidden states, before the head."""
        if not isinstance(cache, NativeCache):
            return super().hidden(tokens, cache=cache, record=record, **others)
        self._refuse(others)
        check_record(record)
        check.call(self.config, tokens, None, None, None, None, cache, self.device)
        queries = room_for_queries(record, self.engine, tokens.numel())
        found = self.engine.hidden(cache.rows(len(tokens)), tokens, queries=queries)
        start = cache.length
        cache.length = cache.length + tokens.shape[1]
        cache.batch = len(tokens)
        if isinstance(record, Pass):
            record.take(cache.hold(), start, queries)
        elif record is not NOTHING:
            hand_over(record, self, cache.sequences, queries, found)
        return found

    def last_logits(
        self,
        tokens: Tensor,
        count: int = 1,
        *,
        cache: Cache | None = None,
        record: Record = NOTHING,
        **others: Any,
    ) -> Tensor:
        """Logits after the last tokens: one call of the engine."""
        if not isinstance(cache, NativeCache) or not (
            record is NOTHING or isinstance(record, Pass)
        ):
            return super().last_logits(tokens, count, cache=cache, record=record, **others)
        self._refuse(others)
        if not is_next(tokens, cache, self.config):
            check.call(self.config, tokens, None, None, None, None, cache, self.device)
        batch, time = tokens.shape
        count = min(count, time)
        sequences = cache.rows(batch)
        start = cache.length
        queries = room_for_queries(record, self.engine, tokens.numel())
        rows = [
            Rows(sequence, row, count)
            for sequence, row in zip(sequences, tokens.tolist(), strict=True)
        ]
        logits = self.engine.run(rows, into=queries)
        cache.length = cache.length + time
        cache.batch = batch
        if isinstance(record, Pass):
            record.take(cache.hold(), start, queries)
        return logits.view(batch, count, -1)

    def head(
        self, hidden: Tensor, *, padding: Tensor | None = None, record: Record = NOTHING
    ) -> Tensor:
        """Logits, by the packed matrix, watched or not."""
        if hidden.requires_grad:
            return super().head(hidden, padding=padding, record=record)
        return record(
            "logits", self.engine.head(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)
        )

    @staticmethod
    def _refuse(others: dict[str, Any]) -> None:
        unknown = [
            name
            for name, value in others.items()
            if value is not None and value is not NOTHING and name != "kernel"
        ]
        if unknown:
            raise InputError(
                f"{unknown[0]} with an engine's cache",
                expected="tokens alone",
                fix="use Cache.growing(model.config)",
            )


class SleepingTwin(Asleep, NativeTwin):
    """A twin of a transformer whose weights are still on disk. The engine writes without them; what
    needs them wakes both."""

    known: ClassVar[frozenset[str]] = Asleep.known | {
        "engine",
        "device",
        "new_cache",
        "hidden",
        "head",
        "last_logits",
        "_refuse",
    }
    device = torch.device("cpu")  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


@torch.no_grad()
def native_twin(transformer: Transformer, precision: Precision = "float32") -> NativeTwin:
    """A twin for running."""
    return twin_with(transformer, NativeEngine.of(transformer, precision))


def twin_with(transformer: Transformer, engine: NativeEngine) -> NativeTwin:
    """The same with an engine that has its weights already. A transformer that sleeps is not
    woken."""
    if isinstance(transformer, Asleep):
        return SleepingTwin(
            transformer.config, lambda: twin_with(awake(transformer), engine), engine=engine
        )
    twin = evaluated(transformer)
    twin.__class__ = NativeTwin
    assert isinstance(twin, NativeTwin)
    twin.engine = engine
    return twin
