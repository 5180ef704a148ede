"""What runs a model: torch as written in core, torch with packed matrices, or the native
engine.

Generation and tasks need only the methods of `Runner`.

TorchRunner     the transformer, in eval mode
PackedRunner    the same with its matrices laid out for single tokens; differs by rounding only
NativeRunner    the native engine (sightline.engine.runner)
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.context import Memory
from sightline.core.model import Transformer
from sightline.core.packed_weights import eval_copy, pack
from sightline.record import NOTHING, Record


class Runner(Protocol):
    """Runs the stacks and the head of one model."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def new_cache(self) -> Cache:
        """An empty KV cache for this runner."""
        ...

    def hidden(
        self,
        tokens: Tensor,
        *,
        padding: Tensor | None = None,
        types: Tensor | None = None,
        source: Tensor | None = None,
        source_padding: Tensor | None = None,
        cache: Cache | None = None,
        record: Record = NOTHING,
    ) -> Tensor:
        """The last hidden states, before the head."""
        ...

    def head(
        self, hidden: Tensor, *, padding: Tensor | None = None, record: Record = NOTHING
    ) -> Tensor:
        """The head's output for these hidden states."""
        ...

    def last_logits(
        self,
        tokens: Tensor,
        count: int = 1,
        *,
        source: Tensor | None = None,
        source_padding: Tensor | None = None,
        cache: Cache | None = None,
        record: Record = NOTHING,
    ) -> Tensor:
        """Logits after each of the last `count` tokens, and of no others."""
        ...

    def encode(self, source: Tensor, *, padding: Tensor | None = None) -> Memory:
        """The encoder's states for a source."""
        ...


class TorchRunner:
    """The transformer as it is written, without dropout."""

    name = "torch"

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = in_eval_mode(transformer)
        self.config = transformer.config
        self.new_cache = self.transformer.new_cache
        self.hidden = self.transformer.hidden
        self.head = self.transformer.head
        self.last_logits = self.transformer.last_logits
        self.encode = self.transformer.encode

    @property
    def device(self) -> torch.device:
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.dtype


class PackedRunner(TorchRunner):
    """The transformer with a second, packed copy of its large matrices."""

    name = "torch, packed"

    def __init__(self, transformer: Transformer) -> None:
        super().__init__(pack(transformer))


def in_eval_mode(transformer: Transformer) -> Transformer:
    """The transformer without dropout: itself, unless it is being trained."""
    return eval_copy(transformer) if transformer.training else transformer
