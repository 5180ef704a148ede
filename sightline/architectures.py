"""Configurations with good defaults, and the published models as values.

    gpt(width=384, layers=6, heads=6, positions=Rotary())   one argument swaps learned positions
                                                            for RoPE
    llama(placement="post")                                 … Pre-LN for Post-LN
    bert(norm="rms", feed_forward="swiglu")                 … LayerNorm for RMSNorm, GELU for SwiGLU

Every maker takes the same arguments; only the defaults differ. `PUBLISHED` has the models that
papers describe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from sightline.config import (
    Activation,
    ALiBi,
    AttentionConfig,
    AttentionPosition,
    BlockConfig,
    Cosine,
    Dot,
    EmbeddingConfig,
    FeedForwardConfig,
    Head,
    HeadNorm,
    LanguageHead,
    LayerNorm,
    Learned,
    MaskedHead,
    ModelConfig,
    NoHead,
    NoNorm,
    NoPosition,
    Norm,
    Placement,
    Pooler,
    Position,
    RelativeBias,
    RMSNorm,
    Rotary,
    Sinusoidal,
    StackConfig,
)
from sightline.errors import ConfigError, nearest

T = TypeVar("T")

BERT_NORM = LayerNorm(eps=1e-12)

FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_tanh": ("gelu_tanh", False),
    "silu": ("silu", False),
    "relu_squared": ("relu_squared", False),
    "reglu": ("relu", True),
    "geglu": ("gelu", True),
    "geglu_tanh": ("gelu_tanh", True),
    "swiglu": ("silu", True),
}
NORMS: dict[str, Callable[[], Norm]] = {"layer": LayerNorm, "rms": RMSNorm, "none": NoNorm}
POSITIONS: dict[str, Callable[[], Position]] = {
    "none": NoPosition,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rotary": Rotary,
    "alibi": ALiBi,
    "relative": RelativeBias,
}
KINDS: dict[str, Callable[[], Dot | Cosine]] = {"dot": Dot, "cosine": Cosine}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the makers have in common, before it becomes a stack."""

    width: int
    layers: int
    heads: int
    vocab_size: int
    max_positions: int
    kv_heads: int | None
    head_dim: int | None
    hidden: int | None
    positions: Position | str
    norm: Norm | str
    placement: Placement
    feed_forward: FeedForwardConfig | str
    attention: Dot | Cosine | str
    query_key_norm: HeadNorm | None
    window: int | None
    parallel: bool
    bias: bool
    dropout: float

    def stack(
        self,
        *,
        causal: bool,
        cross: bool = False,
        types: int = 0,
        scale: float = 1.0,
        embedding_norm: Norm | None = None,
    ) -> StackConfig:
        """The stack that these choices describe."""
        where: Position = named(self.positions, POSITIONS, "positions")
        norm: Norm = named(self.norm, NORMS, "norm")
        attention = self.attention_config(
            where if isinstance(where, (Rotary, ALiBi, RelativeBias)) else NoPosition()
        )
        crossing = replace(attention, positions=NoPosition(), window=None) if cross else None
        block = BlockConfig(
            attention=attention,
            cross_attention=crossing,
            feed_forward=self.feed_forward_config(),
            norm=norm,
            placement=self.placement,
            parallel=self.parallel,
            dropout=self.dropout,
        )
        embedding = EmbeddingConfig(
            vocab_size=self.vocab_size,
            positions=where if isinstance(where, (Learned, Sinusoidal)) else NoPosition(),
            types=types,
            scale=scale,
            norm=embedding_norm or NoNorm(),
            dropout=self.dropout,
        )
        return StackConfig(
            width=self.width,
            layers=self.layers,
            causal=causal,
            max_positions=self.max_positions,
            embedding=embedding,
            blocks=(block,),
            final_norm=NoNorm() if self.placement in ("post", "sphere") else norm,
        )

    def attention_config(self, positions: AttentionPosition) -> AttentionConfig:
        if self.head_dim is None and (self.heads < 1 or self.width % self.heads):
            raise ConfigError(
                f"width {self.width} does not divide into {self.heads} heads",
                expected="width divisible by heads",
                fix="choose heads that divide width, or give head_dim",
            )
        return AttentionConfig(
            heads=self.heads,
            kv_heads=self.heads if self.kv_heads is None else self.kv_heads,
            head_dim=self.width // self.heads if self.head_dim is None else self.head_dim,
            kind=named(self.attention, KINDS, "attention"),
            positions=positions,
            query_key_norm=self.query_key_norm,
            bias=self.bias,
            output_bias=self.bias,
            window=self.window,
            dropout=self.dropout,
        )

    def feed_forward_config(self) -> FeedForwardConfig:
        if isinstance(self.feed_forward, FeedForwardConfig):
            return self.feed_forward
        if self.feed_forward not in FEED_FORWARDS:
            raise ConfigError(
                f"feed_forward {self.feed_forward!r}", fix=nearest(self.feed_forward, FEED_FORWARDS)
            )
        activation, gated = FEED_FORWARDS[self.feed_forward]
        hidden = default_hidden(self.width, gated=gated) if self.hidden is None else self.hidden
        return FeedForwardConfig(hidden=hidden, activation=activation, gated=gated, bias=self.bias)


def named(choice: T | str, known: dict[str, Callable[[], T]], what: str) -> T:
    """A choice by its name, or the choice itself."""
    if not isinstance(choice, str):
        return choice
    if choice not in known:
        raise ConfigError(f"{what} {choice!r}", fix=nearest(choice, known))
    return known[choice]()


def default_hidden(width: int, *, gated: bool) -> int:
    """4·width, or two thirds of that (a multiple of 8) where a gate brings a third matrix: the same
    parameters."""
    return math.ceil(8 * width / 3 / 8) * 8 if gated else 4 * width


def gpt(
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    vocab_size: int = 50257,
    max_positions: int = 1024,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
    positions: Position | str = "learned",
    norm: Norm | str = "layer",
    placement: Placement = "pre",
    feed_forward: FeedForwardConfig | str = "gelu_tanh",
    attention: Dot | Cosine | str = "dot",
    query_key_norm: HeadNorm | None = None,
    window: int | None = None,
    parallel: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
    tied: bool = True,
) -> ModelConfig:
    """A decoder alone, as GPT-2: learned positions, Pre-LN, GELU. The defaults are GPT-2 small."""
    choices = Choices(
        width=width,
        layers=layers,
        heads=heads,
        vocab_size=vocab_size,
        max_positions=max_positions,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        positions=positions,
        norm=norm,
        placement=placement,
        feed_forward=feed_forward,
        attention=attention,
        query_key_norm=query_key_norm,
        window=window,
        parallel=parallel,
        bias=bias,
        dropout=dropout,
    )
    return ModelConfig(decoder=choices.stack(causal=True), head=LanguageHead(tied=tied))


def llama(
    *,
    width: int = 512,
    layers: int = 8,
    heads: int = 8,
    vocab_size: int = 32000,
    max_positions: int = 2048,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
    positions: Position | str = "rotary",
    norm: Norm | str = "rms",
    placement: Placement = "pre",
    feed_forward: FeedForwardConfig | str = "swiglu",
    attention: Dot | Cosine | str = "dot",
    query_key_norm: HeadNorm | None = None,
    window: int | None = None,
    parallel: bool = False,
    bias: bool = False,
    dropout: float = 0.0,
    tied: bool = True,
) -> ModelConfig:
    """A decoder alone, as Llama: RoPE, RMSNorm, SwiGLU, no biases. Set `kv_heads` for grouped
    queries."""
    choices = Choices(
        width=width,
        layers=layers,
        heads=heads,
        vocab_size=vocab_size,
        max_positions=max_positions,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        positions=positions,
        norm=norm,
        placement=placement,
        feed_forward=feed_forward,
        attention=attention,
        query_key_norm=query_key_norm,
        window=window,
        parallel=parallel,
        bias=bias,
        dropout=dropout,
    )
    return ModelConfig(decoder=choices.stack(causal=True), head=LanguageHead(tied=tied))


def bert(
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    vocab_size: int = 30522,
    max_positions: int = 512,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
    positions: Position | str = "learned",
    norm: Norm | str = BERT_NORM,
    placement: Placement = "post",
    feed_forward: FeedForwardConfig | str = "gelu",
    attention: Dot | Cosine | str = "dot",
    query_key_norm: HeadNorm | None = None,
    window: int | None = None,
    parallel: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
    types: int = 2,
    head: Literal["masked", "pooled", "mean", "none"] = "masked",
) -> ModelConfig:
    """An encoder alone, as BERT: learned positions, Post-LN, token types, a masked-token head. The
    defaults are BERT-base."""
    choices = Choices(
        width=width,
        layers=layers,
        heads=heads,
        vocab_size=vocab_size,
        max_positions=max_positions,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        positions=positions,
        norm=norm,
        placement=placement,
        feed_forward=feed_forward,
        attention=attention,
        query_key_norm=query_key_norm,
        window=window,
        parallel=parallel,
        bias=bias,
        dropout=dropout,
    )
    heads_by_name: dict[str, Head] = {
        "masked": MaskedHead(norm=named(norm, NORMS, "norm")),
        "pooled": Pooler(how="tanh"),
        "mean": Pooler(how="mean"),
        "none": NoHead(),
    }
    if head not in heads_by_name:
        raise ConfigError(f"head {head!r}", fix=nearest(head, heads_by_name))
    stack = choices.stack(causal=False, types=types, embedding_norm=named(norm, NORMS, "norm"))
    return ModelConfig(encoder=stack, head=heads_by_name[head])


def encoder_decoder(
    *,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    vocab_size: int = 37000,
    max_positions: int = 512,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
    positions: Position | str = "sinusoidal",
    norm: Norm | str = "layer",
    placement: Placement = "post",
    feed_forward: FeedForwardConfig | str = "relu",
    attention: Dot | Cosine | str = "dot",
    query_key_norm: HeadNorm | None = None,
    window: int | None = None,
    parallel: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
    share_embeddings: bool = True,
    tied: bool = True,
) -> ModelConfig:
    """An encoder and a decoder, as in 2017: sinusoidal positions, Post-LN, ReLU, one embedding
    matrix. The defaults are its base model."""
    choices = Choices(
        width=width,
        layers=layers,
        heads=heads,
        vocab_size=vocab_size,
        max_positions=max_positions,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        positions=positions,
        norm=norm,
        placement=placement,
        feed_forward=feed_forward,
        attention=attention,
        query_key_norm=query_key_norm,
        window=window,
        parallel=parallel,
        bias=bias,
        dropout=dropout,
    )
    scale = math.sqrt(width)
    return ModelConfig(
        encoder=choices.stack(causal=False, scale=scale),
        decoder=choices.stack(causal=True, cross=True, scale=scale),
        head=LanguageHead(tied=tied),
        share_embeddings=share_embeddings,
    )


def ngpt(
    *,
    width: int = 512,
    layers: int = 8,
    heads: int = 8,
    vocab_size: int = 50257,
    max_positions: int = 1024,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    hidden: int | None = None,
    positions: Position | str = "rotary",
    norm: Norm | str = "none",
    placement: Placement = "sphere",
    feed_forward: FeedForwardConfig | str = "swiglu",
    attention: Dot | Cosine | str = "dot",
    query_key_norm: HeadNorm | None = None,
    window: int | None = None,
    parallel: bool = False,
    bias: bool = False,
    dropout: float = 0.0,
    tied: bool = False,
) -> ModelConfig:
    """nGPT: every vector on the unit hypersphere. Call `model.normalize_weights()` after each
    optimiser step."""
    choices = Choices(
        width=width,
        layers=layers,
        heads=heads,
        vocab_size=vocab_size,
        max_positions=max_positions,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        positions=positions,
        norm=norm,
        placement=placement,
        feed_forward=feed_forward,
        attention=attention,
        query_key_norm=query_key_norm,
        window=window,
        parallel=parallel,
        bias=bias,
        dropout=dropout,
    )
    return ModelConfig(decoder=choices.stack(causal=True), head=LanguageHead(tied=tied))


def t5(
    *,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    head_dim: int = 64,
    hidden: int = 2048,
    vocab_size: int = 32128,
) -> ModelConfig:
    """T5 v1.0: relative bias, RMSNorm, Pre-LN, ReLU, no biases, unscaled scores. The defaults are
    T5-small."""
    one = encoder_decoder(
        width=width,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        hidden=hidden,
        vocab_size=vocab_size,
        positions=RelativeBias(),
        norm="rms",
        placement="pre",
        bias=False,
        attention=Dot(scale=1.0),
    )
    assert one.encoder is not None
    assert one.decoder is not None
    encoder, decoder = (
        replace(stack, embedding=EmbeddingConfig(vocab_size=vocab_size))
        for stack in (one.encoder, one.decoder)
    )
    return replace(one, encoder=encoder, decoder=decoder, head=LanguageHead(scale=width**-0.5))


PUBLISHED: dict[str, Callable[[], ModelConfig]] = {
    "transformer-base": encoder_decoder,
    "transformer-big": lambda: encoder_decoder(width=1024, heads=16),
    "gpt2": gpt,
    "gpt2-medium": lambda: gpt(width=1024, layers=24, heads=16),
    "gpt2-large": lambda: gpt(width=1280, layers=36, heads=20),
    "gpt2-xl": lambda: gpt(width=1600, layers=48, heads=25),
    "bert-base": lambda: bert(head="pooled"),
    "bert-large": lambda: bert(width=1024, layers=24, heads=16, head="pooled"),
    "llama-2-7b": lambda: llama(
        width=4096,
        layers=32,
        heads=32,
        hidden=11008,
        vocab_size=32000,
        max_positions=4096,
        norm=RMSNorm(eps=1e-5),
        tied=False,
    ),
    "llama-3-8b": lambda: llama(
        width=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        hidden=14336,
        vocab_size=128256,
        max_positions=8192,
        positions=Rotary(base=500000.0),
        norm=RMSNorm(eps=1e-5),
        tied=False,
    ),
    "smollm2-135m": lambda: llama(
        width=576,
        layers=30,
        heads=9,
        kv_heads=3,
        hidden=1536,
        vocab_size=49152,
        max_positions=8192,
        positions=Rotary(base=100000.0),
        norm=RMSNorm(eps=1e-5),
    ),
    "t5-small": t5,
    "ngpt-0.5b": lambda: ngpt(width=1024, layers=24, heads=16, hidden=4096, vocab_size=32000),
}
