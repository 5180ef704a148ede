"""Encoders, and encoders with decoders, that run on the engine.

fast = encoder_twin(transformer, "int8")
hidden = fast.hidden(tokens, padding=padding)              # padding is not computed: it is 0

fast = pair_twin(transformer, "int8")
cache = fast.new_cache()
hidden = fast.hidden(start, source=source, cache=cache)    # the source is read once
hidden = fast.hidden(token, cache=cache)                   # beams of one source share its keys
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.core import check
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import Stored
from sightline.core.model import Transformer, positions_of
from sightline.core.norms import unit
from sightline.core.packed import evaluated
from sightline.core.stack import Stack
from sightline.engine.encoder import NativeEncoder, encoder_program
from sightline.engine.engine import NativeEngine
from sightline.engine.matrices import Precision
from sightline.engine.program import decoder_program
from sightline.engine.twin import NativeCache, NativeTwin, native_twin
from sightline.errors import InputError
from sightline.record import NOTHING

Padding = Bool[Tensor, "batch time"]


def real_tokens(
    stack: Stack,
    tokens: Int[Tensor, "batch time"],
    padding: Padding | None,
    types: Tensor | None = None,
) -> tuple[Float[Tensor, "tokens width"], list[int], Padding]:
    """Embedded tokens, row after row without padding; how many each row has; and where they
    stand."""
    positions, _ = positions_of(tokens, padding)
    x = stack.embedding(tokens, positions, types)
    real = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    return (unit(x) if stack.config.on_sphere else x)[real], real.sum(1).tolist(), real


def asks_more(others: dict[str, Any]) -> bool:
    """Whether something is wanted that the engine has not: a record, documents."""
    return any(
        value is not None and value is not NOTHING
        for name, value in others.items()
        if name != "kernel"
    )


class EncoderTwin(Transformer):
    """Shares every parameter with the encoder that it was made from. The engine has its own, packed
    copy."""

    native: NativeEncoder

    def hidden(
        self,
        tokens: Tensor,
        *,
        padding: Padding | None = None,
        types: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """The last hidden states; 0 where there is padding. What is recorded, or needs a gradient,
        is computed by torch."""
        if asks_more(others) or self.encoder is None or torch.is_grad_enabled():
            return super().hidden(tokens, padding=padding, types=types, **others)
        check.call(self.config, tokens, padding, types, None, None, None, self.device)
        x, lengths, real = real_tokens(self.encoder, tokens, padding, types)
        found = torch.zeros(*tokens.shape, self.encoder.config.width)
        found[real] = self.native.run(x, [length for length in lengths if length])
        return found


class PairCache(NativeCache):
    """Rows of a decoder, and the source that each looks at. Rows of one source share it."""

    def __init__(self, engine: NativeEngine, layers: int, encoder: NativeEncoder) -> None:
        super().__init__(engine, layers)
        self.encoder = encoder
        self.sources = list[int]()
        self.kept = list[int]()
        self.cross = Cache([*self.stores], cross=True).cross

    def look_at(self, sources: list[int]) -> None:
        """From now on, until the cache is closed."""
        self.sources = sources
        self.kept = sources
        nothing = torch.zeros(1, 1, 0, 1)
        self.cross[0].update(
            Stored(nothing, nothing, torch.zeros(1, 0, dtype=torch.long), 0)
        )  # the engine has what matters

    def reorder(self, rows: Tensor) -> None:
        self.check_open()
        sources = [self.sources[row] for row in rows.tolist()]
        super().reorder(rows)
        self.sources = sources

    def fork(self, length: int) -> NativeCache:
        raise InputError(
            "a cache of an encoder–decoder that is shared",
            expected="one cache for each source",
            fix="new_cache()",
        )

    def close(self) -> None:
        super().close()
        self.encoder.forget(self.kept)
        self.sources = []
        self.kept = []


class PairTwin(Transformer):
    """Shares every parameter with the transformer that it was made from. The engines have their
    own, packed copies."""

    native: NativeEncoder
    engine: NativeEngine

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
        if not isinstance(cache, PairCache) or asks_more(others) or padding is not None:
            given = {
                "padding": padding,
                "source": source,
                "source_padding": source_padding,
                "cache": cache,
            }
            return super().hidden(tokens, **given, **others)
        check.call(self.config, tokens, None, None, source, source_padding, cache, self.device)
        cache.check_open()
        if source is not None:
            assert self.encoder is not None
            x, lengths, _ = real_tokens(self.encoder, source, source_padding)
            cache.look_at(self.native.keep(x, lengths)[1])
        found = self.engine.hidden(cache.rows(len(tokens)), tokens, sources=cache.sources)
        cache.length = cache.length + tokens.shape[1]
        cache.batch = len(tokens)
        return found

    def head(
        self, hidden: Tensor, *, padding: Tensor | None = None, record: Any = NOTHING
    ) -> Tensor:
        """Logits, by the packed matrix."""
        if record is not NOTHING or hidden.requires_grad:
            return super().head(hidden, padding=padding, record=record)
        return self.engine.head(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)


def twin_for(transformer: Transformer, precision: Precision = "float32") -> Transformer:
    """A twin of any model that the engine runs."""
    if transformer.encoder is None:
        return native_twin(transformer, precision)
    return (encoder_twin if transformer.decoder is None else pair_twin)(transformer, precision)


def packing_notes(twin: Transformer) -> list[str]:
    """What packing a twin's matrices cost, where it cost too much."""
    engines = [twin.native.engine] if isinstance(twin, (EncoderTwin, PairTwin)) else []
    engines += [twin.engine] if isinstance(twin, (NativeTwin, PairTwin)) else []
    return [note for engine in engines for note in engine.notes]


def check_known(transformer: Transformer) -> None:
    """What the engine cannot run is said before anything is packed."""
    if transformer.encoder is not None:
        encoder_program(transformer)
    if transformer.decoder is not None:
        decoder_program(transformer)


@torch.no_grad()
def encoder_twin(transformer: Transformer, precision: Precision = "float32") -> EncoderTwin:
    """A twin for reading."""
    native = NativeEncoder.of(transformer, precision)
    twin = evaluated(transformer)
    twin.__class__ = EncoderTwin
    assert isinstance(twin, EncoderTwin)
    twin.native = native
    return twin


@torch.no_grad()
def pair_twin(transformer: Transformer, precision: Precision = "float32") -> PairTwin:
    """A twin for reading and writing."""
    native = NativeEncoder.of(transformer, precision)
    twin = evaluated(transformer)
    engine = NativeEngine.packing(decoder_program(transformer), precision)
    engine.look_at(native.engine)
    twin.__class__ = PairTwin
    assert isinstance(twin, PairTwin)
    twin.native = native
    twin.engine = engine
    return twin
