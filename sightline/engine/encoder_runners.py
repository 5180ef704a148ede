"""Runners of encoders and encoder–decoders on the engine.

runner = encoder_runner(transformer, "int8")
hidden = runner.hidden(tokens, padding=padding)              # padding is not computed: it is 0

runner = pair_runner(transformer, "int8")
cache = runner.new_cache()
hidden = runner.hidden(start, source=source, cache=cache)    # the source is encoded once
hidden = runner.hidden(token, cache=cache)                   # beams of one source share its keys
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.core import check
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import KeyValues
from sightline.core.lazy import LazyTransformer
from sightline.core.model import Transformer, positions_of
from sightline.core.norms import unit
from sightline.core.stack import Stack
from sightline.engine.cache import NativeCache
from sightline.engine.encoder import NativeEncoder, encoder_program
from sightline.engine.engine import NativeEngine
from sightline.engine.lowering import decoder_program
from sightline.engine.matrices import Precision
from sightline.engine.runner import EngineRunner, NativeRunner, native_runner
from sightline.errors import InputError
from sightline.record import NOTHING

Padding = Bool[Tensor, "batch time"]


def real_tokens(
    stack: Stack,
    tokens: Int[Tensor, "batch time"],
    padding: Padding | None,
    types: Tensor | None = None,
) -> tuple[Float[Tensor, "tokens width"], list[int], Padding]:
    """Embedded tokens, row after row without padding; the length of each row; and their
    positions."""
    positions, _ = positions_of(tokens, padding)
    x = stack.embedding(tokens, positions, types)
    real = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    return (unit(x) if stack.config.on_sphere else x)[real], real.sum(1).tolist(), real


def needs_torch(others: dict[str, Any]) -> bool:
    """Whether the call needs a feature that the engine lacks: recording, documents."""
    return any(
        value is not None and value is not NOTHING
        for name, value in others.items()
        if name != "kernel"
    )


class EncoderRunner(EngineRunner):
    """Encoder-only models, such as BERT."""

    def __init__(self, weights: LazyTransformer, native: NativeEncoder) -> None:
        super().__init__(weights)
        self.native = native

    @property
    def engines(self) -> list[NativeEngine]:
        return [self.native.engine]

    def hidden(
        self,
        tokens: Tensor,
        *,
        padding: Padding | None = None,
        types: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """The last hidden states; 0 where there is padding. Passes that are recorded or need a
        gradient run on torch."""
        encoder = self.transformer.encoder
        if needs_torch(others) or encoder is None or torch.is_grad_enabled():
            return self.transformer.hidden(tokens, padding=padding, types=types, **others)
        check.model_call(self.config, tokens, padding, types, None, None, None, self.device)
        x, lengths, real = real_tokens(encoder, tokens, padding, types)
        hidden = torch.zeros(*tokens.shape, encoder.config.width)
        hidden[real] = self.native.run(x, [length for length in lengths if length])
        return hidden


class PairCache(NativeCache):
    """Rows of a decoder, and the source that each attends to. Rows of one source share it."""

    def __init__(self, engine: NativeEngine, layers: int, encoder: NativeEncoder) -> None:
        super().__init__(engine, layers)
        self.encoder = encoder
        self.sources = list[int]()
        self.kept = list[int]()
        self.cross = Cache([*self.stores], cross=True).cross

    def look_at(self, sources: list[int]) -> None:
        """Set the sources, until the cache is closed."""
        self.sources = sources
        self.kept = sources
        nothing = torch.zeros(1, 1, 0, 1)
        self.cross[0].update(
            KeyValues(nothing, nothing, torch.zeros(1, 0, dtype=torch.long), 0)
        )  # the keys and values are in the engine

    def reorder(self, rows: Tensor) -> None:
        self.check_open()
        sources = [self.sources[row] for row in rows.tolist()]
        super().reorder(rows)
        self.sources = sources

    def fork(self, length: int) -> NativeCache:
        raise InputError(
            "a cache of an encoder–decoder that is shared",
            expected="one cache per source",
            fix="new_cache()",
        )

    def close(self) -> None:
        super().close()
        self.encoder.forget(self.kept)
        self.sources = []
        self.kept = []


class PairRunner(EngineRunner):
    """Encoder–decoders: a source is encoded once, the decoder attends to its keys."""

    def __init__(
        self, weights: LazyTransformer, native: NativeEncoder, engine: NativeEngine
    ) -> None:
        super().__init__(weights)
        self.native = native
        self.engine = engine

    @property
    def engines(self) -> list[NativeEngine]:
        return [self.native.engine, self.engine]

    def new_cache(self) -> Cache:
        assert self.config.decoder is not None
        return PairCache(self.engine, self.config.decoder.layers, self.native)

    def hidden(
        self,
        tokens: Tensor,
        *,
        padding: Padding | None = None,
        source: Tensor | None = None,
        source_padding: Padding | None = None,
        cache: Cache | None = None,
        **others: Any,
    ) -> Tensor:
        """The last hidden states of the decoder, before the head."""
        if not isinstance(cache, PairCache) or needs_torch(others) or padding is not None:
            given = {
                "padding": padding,
                "source": source,
                "source_padding": source_padding,
                "cache": cache,
            }
            return self.transformer.hidden(tokens, **given, **others)
        check.model_call(
            self.config, tokens, None, None, source, source_padding, cache, self.device
        )
        cache.check_open()
        if source is not None:
            encoder = self.transformer.encoder
            assert encoder is not None
            x, lengths, _ = real_tokens(encoder, source, source_padding)
            cache.look_at(self.native.keep(x, lengths)[1])
        hidden = self.engine.hidden(cache.rows(len(tokens)), tokens, sources=cache.sources)
        cache.length = cache.length + tokens.shape[1]
        cache.batch = len(tokens)
        return hidden

    def head(
        self, hidden: Tensor, *, padding: Tensor | None = None, record: Any = NOTHING
    ) -> Tensor:
        """Logits, by the packed matrix."""
        if record is not NOTHING or hidden.requires_grad:
            return self.transformer.head(hidden, padding=padding, record=record)
        return self.engine.head(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)


AnyNativeRunner = NativeRunner | EncoderRunner | PairRunner


def runner_for(weights: LazyTransformer, precision: Precision) -> AnyNativeRunner:
    """The engine's runner for any model that it can run."""
    transformer = weights.get()
    if transformer.encoder is None:
        return native_runner(transformer, precision)
    return (encoder_runner if transformer.decoder is None else pair_runner)(transformer, precision)


def check_known(transformer: Transformer) -> None:
    """Refuse what the engine cannot run, before anything is packed."""
    if transformer.encoder is not None:
        encoder_program(transformer)
    if transformer.decoder is not None:
        decoder_program(transformer)


@torch.no_grad()
def encoder_runner(transformer: Transformer, precision: Precision = "float32") -> EncoderRunner:
    """An encoder, packed for the engine."""
    native = NativeEncoder.of(transformer, precision)
    return EncoderRunner(LazyTransformer.of(transformer), native)


@torch.no_grad()
def pair_runner(transformer: Transformer, precision: Precision = "float32") -> PairRunner:
    """An encoder–decoder, packed for the engine."""
    native = NativeEncoder.of(transformer, precision)
    engine = NativeEngine.packing(decoder_program(transformer), precision)
    engine.set_encoder(native.engine)
    return PairRunner(LazyTransformer.of(transformer), native, engine)
