"""The full Transformer: an encoder, a decoder, or both, and a head.

BERT               tokens → encoder → head
GPT                tokens → decoder → head
encoder–decoder    source → encoder → memory;   tokens → decoder(memory) → head
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sightline.config import ModelConfig
from sightline.core import check
from sightline.core.attention import Kernel
from sightline.core.cache.kv_cache import Cache
from sightline.core.context import Memory
from sightline.core.embedding import Embedding
from sightline.core.hypersphere import normalize_weights
from sightline.core.masks import count_positions
from sightline.core.norms import unit
from sightline.core.output import (
    ClassOutput,
    LanguageOutput,
    PooledOutput,
    Unembedding,
    make_output,
)
from sightline.core.positions import RelativeTable
from sightline.core.stack import Stack
from sightline.record import NOTHING, Record

Tokens = Int[Tensor, "batch time"]
Padding = Bool[Tensor, "batch time"]


class Transformer(nn.Module):
    """A Transformer with the architecture of its configuration. `sl.build(config)` makes one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        context_width = config.encoder.width if config.encoder else None
        self.encoder = Stack("encoder", config.encoder) if config.encoder else None
        self.decoder = (
            Stack("decoder", config.decoder, context_width=context_width)
            if config.decoder
            else None
        )
        if config.share_embeddings and self.encoder and self.decoder:
            self.decoder.embedding.tokens = self.encoder.embedding.tokens
        self.output = make_output(config)
        initialise_weights(self)

    def forward(
        self,
        tokens: Tokens,
        *,
        padding: Padding | None = None,
        types: Tokens | None = None,
        source: Int[Tensor, "batch source"] | None = None,
        source_padding: Bool[Tensor, "batch source"] | None = None,
        cache: Cache | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Float[Tensor, ...]:
        """Logits `[batch, time, vocab_size]`; hidden states without a head; one vector per row from
        a pooler or a classifier.

        `padding` and `source_padding` are True where a token is padding. With a cache, `tokens` are
        the new ones only, and `source` is needed in the first call only.
        """
        hidden = self.hidden(
            tokens,
            padding=padding,
            types=types,
            source=source,
            source_padding=source_padding,
            cache=cache,
            kernel=kernel,
            record=record,
        )
        return self.head(hidden, padding=padding, record=record)

    def hidden(
        self,
        tokens: Tokens,
        *,
        padding: Padding | None = None,
        types: Tokens | None = None,
        documents: Tokens | None = None,
        source: Int[Tensor, "batch source"] | None = None,
        source_padding: Bool[Tensor, "batch source"] | None = None,
        cache: Cache | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Float[Tensor, "batch time width"]:
        """The last hidden states, before the head. `documents` numbers the documents packed into
        a row, which do not attend to each other."""
        check.packed_documents(documents, tokens, cache)
        check.model_call(
            self.config, tokens, padding, types, source, source_padding, cache, self.device
        )
        memory = self._memory(source, source_padding, cache, kernel, record)
        if cache is None:
            positions, offset = positions_of(tokens, padding)
            if documents is not None:
                positions = restart_positions(positions, documents)
                offset = None
        else:
            cache.begin()
            positions, offset = cache.next_positions(tokens, padding)
        hidden = self.last_stack(
            tokens,
            positions,
            offset,
            types=types,
            documents=documents,
            memory=memory,
            cache=cache,
            kernel=kernel,
            record=record,
        )
        if cache is not None:
            cache.advance(tokens, padding)
        return hidden

    def head(
        self,
        hidden: Float[Tensor, "batch time width"],
        *,
        padding: Padding | None = None,
        record: Record = NOTHING,
    ) -> Float[Tensor, ...]:
        """The head applied to hidden states. Only a pooler or a classifier uses `padding`."""
        if self.output is None:
            return hidden
        if isinstance(self.output, (PooledOutput, ClassOutput)):
            return self.output(hidden, padding)
        return record("logits", self.output(hidden, self.last_stack.embedding.tokens.weight))

    def last_logits(
        self,
        tokens: Tokens,
        count: int = 1,
        *,
        source: Int[Tensor, "batch source"] | None = None,
        source_padding: Bool[Tensor, "batch source"] | None = None,
        cache: Cache | None = None,
        record: Record = NOTHING,
    ) -> Float[Tensor, "batch count vocab"]:
        """Logits after each of the last `count` tokens; the others are not computed."""
        hidden = self.hidden(
            tokens, source=source, source_padding=source_padding, cache=cache, record=record
        )
        return self.head(hidden[:, -count:], record=record)

    def encode(
        self,
        source: Tokens,
        *,
        padding: Padding | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Memory:
        """The encoder's states for a source, for the decoder's cross-attention."""
        assert self.encoder is not None
        positions, offset = positions_of(source, padding)
        return Memory(
            self.encoder(source, positions, offset, kernel=kernel, record=record), positions, offset
        )

    def _memory(
        self,
        source: Tokens | None,
        padding: Padding | None,
        cache: Cache | None,
        kernel: Kernel,
        record: Record,
    ) -> Memory | None:
        """What cross-attention reads: the encoded source, or its keys and values in the cache."""
        if source is not None:
            return self.encode(source, padding=padding, kernel=kernel, record=record)
        stored = cache.cross[0].recall() if cache is not None and cache.cross else None
        return None if stored is None else Memory(None, stored.at, stored.offset)

    def new_cache(self) -> Cache:
        """An empty KV cache for this model."""
        return Cache.growing(self.config)

    @property
    def last_stack(self) -> Stack:
        """The stack whose states reach the head."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    def normalize_weights(self) -> None:
        """nGPT: after each optimiser step, put all matrices back onto the unit sphere. Other models
        are left as they are."""
        for stack in (self.encoder, self.decoder):
            if stack is not None and stack.config.on_sphere:
                normalize_weights(stack)
        if (
            self.last_stack.config.on_sphere
            and isinstance(self.output, LanguageOutput)
            and self.output.vocabulary.weight is not None
        ):
            with torch.no_grad():
                self.output.vocabulary.weight.copy_(unit(self.output.vocabulary.weight, dim=1))

    @property
    def device(self) -> torch.device:
        return self.last_stack.embedding.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.last_stack.embedding.tokens.weight.dtype


def positions_of(
    tokens: Tokens, padding: Padding | None
) -> tuple[Int[Tensor, "#batch time"], int | None]:
    """0, 1, 2, … or, with padding, the count of real tokens so far."""
    if padding is None:
        return torch.arange(tokens.shape[1], device=tokens.device)[None], 0
    return count_positions(padding), None


def restart_positions(positions: Int[Tensor, "#batch time"], documents: Tokens) -> Tokens:
    """Positions that begin at 0 with each document."""
    is_start = torch.ones_like(documents, dtype=torch.bool)
    is_start[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = torch.where(is_start, positions, 0).cummax(-1).values
    return torch.where(positions < 0, positions, positions - starts)


@torch.no_grad()
def initialise_weights(model: Transformer) -> None:
    """Matrices N(0, 1/(3 fan_in)), those that write to the residual stream divided by √(2·layers),
    biases 0; embeddings N(0, 0.02²), or 1/scale where the embedding is multiplied by it. On the
    sphere all rows are then made unit vectors."""
    layers = {"encoder": model.config.encoder, "decoder": model.config.decoder}
    for path, part in model.named_modules():
        if isinstance(part, nn.Linear):
            stack = layers.get(path.split(".")[0])
            writes = stack is not None and path.endswith(("attention.output", "feed_forward.down"))
            shrink = 1 / math.sqrt(2 * stack.layers) if stack is not None and writes else 1.0
            nn.init.normal_(part.weight, std=shrink / math.sqrt(3 * part.in_features))
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, Embedding) and part.config.scale > 1:
            nn.init.normal_(part.tokens.weight, std=1 / part.config.scale)
        elif isinstance(part, (nn.Embedding, RelativeTable)) and not path.endswith(
            "embedding.tokens"
        ):
            nn.init.normal_(part.weight, std=0.02)
        elif isinstance(part, Embedding):
            nn.init.normal_(part.tokens.weight, std=0.02)
        elif isinstance(part, Unembedding) and part.weight is not None:
            nn.init.normal_(part.weight, std=0.02)
    model.normalize_weights()


def build(config: ModelConfig) -> Transformer:
    """A Transformer of this configuration with freshly initialised weights."""
    return Transformer(config)


def without_weights(config: ModelConfig) -> Transformer:
    """A Transformer whose parameters have a shape and no memory: they are on the device `meta`."""
    with torch.device("meta"), SkippedInitialisation():
        return Transformer(config)


class SkippedInitialisation(TorchFunctionMode):
    """The functions of `torch.nn.init` do nothing. On `meta` there is nothing to fill, and torch
    would import its compiler first, which takes longer than loading a small model."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return options["tensor"] if "tensor" in options else args[0]
        return func(*args, **options)
