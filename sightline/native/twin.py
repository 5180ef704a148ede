"""A Transformer that runs on the engine where its own cache is used, and as it always did where it is not.

fast = native_twin(transformer, "int8")
cache = fast.new_cache()
hidden = fast.hidden(tokens, cache=cache); logits = fast.head(hidden[:, -1:])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sightline.core import check
from sightline.core.cache import Cache
from sightline.core.model import Transformer
from sightline.core.packed import evaluated
from sightline.core.stores import Growing
from sightline.errors import InputError
from sightline.native.engine import NativeEngine
from sightline.native.matrices import Precision
from sightline.record import NOTHING


class NativeCache(Cache):
    """Sequences of an engine: one for each row. Rows that begin alike share their memory."""

    def __init__(self, engine: NativeEngine, layers: int) -> None:
        super().__init__([Growing() for _ in range(layers)])  # they stay empty
        self.engine, self.sequences = engine, list[int]()

    def rows(self, count: int) -> list[int]:
        """The sequences of so many rows, new ones at first."""
        if not self.sequences:
            self.sequences = [self.engine.begin() for _ in range(count)]
        for sequence in self.sequences:  # what a pass left that never ended
            if self.engine.length(sequence) > self.length:
                self.engine.truncate(sequence, self.length)
        return self.sequences

    def truncate(self, length: int) -> None:
        for sequence in self.sequences:
            self.engine.truncate(sequence, length)
        self.length = min(length, self.length)

    def reorder(self, rows: Tensor) -> None:
        kept = [self.engine.copy(self.sequences[row]) for row in rows.tolist()]
        self.close()
        self.sequences, self.batch = kept, len(kept)

    def close(self) -> None:
        """Give the memory back."""
        for sequence in self.sequences:
            self.engine.forget(sequence)
        self.sequences = []

    def __del__(self) -> None:
        self.close()

    @property
    def bytes(self) -> int:
        return self.engine.cache_bytes


class NativeTwin(Transformer):
    """Shares every parameter with the transformer that it was made from. The engine has its own, packed copy."""

    engine: NativeEngine

    def new_cache(self) -> Cache:
        assert self.config.decoder is not None
        return NativeCache(self.engine, self.config.decoder.layers)

    def hidden(self, tokens: Tensor, *, cache: Cache | None = None, **others: Any) -> Tensor:
        """The last hidden states, before the head."""
        if not isinstance(cache, NativeCache):
            return super().hidden(tokens, cache=cache, **others)
        self._refuse(others)
        check.call(self.config, tokens, None, None, None, None, cache, self.device)
        found = self.engine.hidden(cache.rows(len(tokens)), tokens)
        cache.length, cache.batch = cache.length + tokens.shape[1], len(tokens)
        return found

    def head(self, hidden: Tensor, *, padding: Tensor | None = None, record: Any = NOTHING) -> Tensor:
        """Logits, by the packed matrix."""
        if record is not NOTHING or hidden.requires_grad:
            return super().head(hidden, padding=padding, record=record)
        return self.engine.head(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)

    @staticmethod
    def _refuse(others: dict[str, Any]) -> None:
        unknown = [name for name, value in others.items() if value is not None and value is not NOTHING and name != "kernel"]
        if unknown:
            raise InputError(f"{unknown[0]} with an engine's cache", expected="tokens alone", fix="use Cache.growing(model.config)")


@torch.no_grad()
def native_twin(transformer: Transformer, precision: Precision = "float32") -> NativeTwin:
    """A twin for running."""
    engine, twin = NativeEngine.of(transformer, precision), evaluated(transformer)
    twin.__class__ = NativeTwin
    assert isinstance(twin, NativeTwin)
    twin.engine = engine
    return twin
