"""Runs decoders on the native engine, with torch as the fallback.

runner = native_runner(transformer, "int8")
cache = runner.new_cache()
hidden = runner.hidden(tokens, cache=cache)
logits = runner.head(hidden[:, -1:])
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from sightline.core import check
from sightline.core.cache.kv_cache import Cache
from sightline.core.context import Memory
from sightline.core.lazy import LazyTransformer
from sightline.core.model import Transformer
from sightline.core.runner import in_eval_mode
from sightline.engine.cache import NativeCache, is_next
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.matrices import Precision
from sightline.engine.recording import Pass, check_record, query_buffers, record_pass
from sightline.errors import InputError
from sightline.record import NOTHING, Record


class EngineRunner:
    """The part that all runners of the engine share: the transformer as a fallback. Its weights are
    read only when it is used."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, weights: LazyTransformer) -> None:
        self.weights = weights
        self.config = weights.config

    @property
    def transformer(self) -> Transformer:
        return in_eval_mode(self.weights.get())

    @property
    @abstractmethod
    def engines(self) -> list[NativeEngine]:
        """The engines of this runner."""

    @property
    def name(self) -> str:
        precisions = {matrix.precision for engine in self.engines for matrix in engine.packed}
        return f"native, {' and '.join(sorted(precisions))}"

    @property
    def notes(self) -> list[str]:
        """Warnings about matrices that lost too much in packing."""
        return [note for engine in self.engines for note in engine.notes]

    def new_cache(self) -> Cache:
        return Cache.growing(self.config)

    @abstractmethod
    def hidden(self, tokens: Tensor, **others: Any) -> Tensor:
        """The last hidden states, before the head."""

    def head(
        self, hidden: Tensor, *, padding: Tensor | None = None, record: Record = NOTHING
    ) -> Tensor:
        return self.transformer.head(hidden, padding=padding, record=record)

    def last_logits(
        self,
        tokens: Tensor,
        count: int = 1,
        *,
        record: Record = NOTHING,
        **others: Any,
    ) -> Tensor:
        """Logits after each of the last `count` tokens."""
        hidden = self.hidden(tokens, record=record, **others)
        return self.head(hidden[:, -count:], record=record)

    def encode(self, source: Tensor, **others: Any) -> Memory:
        return self.transformer.encode(source, **others)


class NativeRunner(EngineRunner):
    """Decoders. Calls with the engine's own cache run on the engine; everything else runs on
    torch."""

    def __init__(self, weights: LazyTransformer, engine: NativeEngine) -> None:
        super().__init__(weights)
        self.engine = engine

    @property
    def engines(self) -> list[NativeEngine]:
        return [self.engine]

    def new_cache(self) -> Cache:
        assert self.config.decoder is not None
        return NativeCache(self.engine, self.config.decoder.layers)

    def hidden(
        self, tokens: Tensor, *, cache: Cache | None = None, record: Record = NOTHING, **others: Any
    ) -> Tensor:
        """The last hidden states, before the head."""
        if not isinstance(cache, NativeCache):
            return self.transformer.hidden(tokens, cache=cache, record=record, **others)
        self._refuse(others)
        check_record(record)
        check.model_call(self.config, tokens, None, None, None, None, cache, self.device)
        queries = query_buffers(record, self.engine, tokens.numel())
        hidden = self.engine.hidden(cache.rows(len(tokens)), tokens, queries=queries)
        start = cache.length
        cache.length = cache.length + tokens.shape[1]
        cache.batch = len(tokens)
        if isinstance(record, Pass):
            record.take(cache.hold(), start, queries)
        elif record is not NOTHING:
            record_pass(record, self, cache.sequences, queries, hidden)
        return hidden

    def last_logits(
        self,
        tokens: Tensor,
        count: int = 1,
        *,
        cache: Cache | None = None,
        record: Record = NOTHING,
        **others: Any,
    ) -> Tensor:
        """Logits after the last tokens: one call of the engine. With another kind of cache,
        everything runs on torch, including the head."""
        if not isinstance(cache, NativeCache):
            return self.transformer.last_logits(tokens, count, cache=cache, record=record, **others)
        if record is not NOTHING and not isinstance(record, Pass):
            return super().last_logits(tokens, count, cache=cache, record=record, **others)
        self._refuse(others)
        if not is_next(tokens, cache, self.config):
            check.model_call(self.config, tokens, None, None, None, None, cache, self.device)
        batch, time = tokens.shape
        count = min(count, time)
        sequences = cache.rows(batch)
        start = cache.length
        queries = query_buffers(record, self.engine, tokens.numel())
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
        """Logits by the packed matrix, recorded or not."""
        if hidden.requires_grad:
            return self.transformer.head(hidden, padding=padding, record=record)
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
                expected="tokens only",
                fix="use Cache.growing(model.config)",
            )


@torch.no_grad()
def native_runner(transformer: Transformer, precision: Precision = "float32") -> NativeRunner:
    """A decoder, packed for the engine."""
    engine = NativeEngine.of(transformer, precision)
    return NativeRunner(LazyTransformer.of(transformer), engine)
