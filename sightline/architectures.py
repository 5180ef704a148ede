"""Configurations with good defaults, and the published models as values.

    gpt(width=384, layers=6, heads=6, positions=Rotary())   one argument swaps learned positions
                                                            for RoPE
    llama(placement="post")                                 … Pre-LN for Post-LN
    bert(norm="rms", feed_forward="swiglu")                 … LayerNorm for RMSNorm, GELU for SwiGLU

The makers share their arguments; the defaults are values (`GPT`, `LLAMA`, …) that arguments change.
`PUBLISHED` has the models that papers describe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from typing import Literal, TypedDict, TypeVar, Unpack

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


class Changes(TypedDict, total=False):
    """What can be changed in an `Architecture`: all of its fields."""

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


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the stacks of all models have in common. None derives a value from the others:
    kv_heads = heads, head_dim = width / heads, hidden as in `default_hidden`."""

    width: int
    layers: int
    heads: int
    vocab_size: int
    max_positions: int
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    positions: Position | str = "learned"
    norm: Norm | str = "layer"
    placement: Placement = "pre"
    feed_forward: FeedForwardConfig | str = "gelu"
    attention: Dot | Cosine | str = "dot"
    query_key_norm: HeadNorm | None = None
    window: int | None = None
    parallel: bool = False
    bias: bool = True
    dropout: float = 0.0

    def change(self, changes: Changes) -> Architecture:
        """The same with other values for some of the fields."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise TypeError(f"no architecture has an argument {name!r}: {nearest(name, known)}")
        return replace(self, **changes)

    def stack(
        self,
        *,
        causal: bool,
        cross: bool = False,
        types: int = 0,
        scale: float = 1.0,
        embedding_norm: Norm | None = None,
    ) -> StackConfig:
        """The stack of this architecture."""
        positions: Position = choose(self.positions, POSITIONS, "positions")
        norm: Norm = choose(self.norm, NORMS, "norm")
        attention = self.attention_config(
            positions if isinstance(positions, (Rotary, ALiBi, RelativeBias)) else NoPosition()
        )
        cross_attention = replace(attention, positions=NoPosition(), window=None) if cross else None
        block = BlockConfig(
            attention=attention,
            cross_attention=cross_attention,
            feed_forward=self.feed_forward_config(),
            norm=norm,
            placement=self.placement,
            parallel=self.parallel,
            dropout=self.dropout,
        )
        embedding = EmbeddingConfig(
            vocab_size=self.vocab_size,
            positions=positions if isinstance(positions, (Learned, Sinusoidal)) else NoPosition(),
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
            kind=choose(self.attention, KINDS, "attention"),
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


def choose(choice: T | str, known: dict[str, Callable[[], T]], what: str) -> T:
    """A choice by its name, or the value itself."""
    if not isinstance(choice, str):
        return choice
    if choice not in known:
        raise ConfigError(f"{what} {choice!r}", fix=nearest(choice, known))
    return known[choice]()


def default_hidden(width: int, *, gated: bool) -> int:
    """4·width, or two thirds of that (a multiple of 8) where a gate adds a third matrix: as many
    parameters."""
    return math.ceil(8 * width / 3 / 8) * 8 if gated else 4 * width


# ------------------------------------------------------------------------------------- the makers

GPT = Architecture(
    width=768,
    layers=12,
    heads=12,
    vocab_size=50257,
    max_positions=1024,
    positions="learned",
    norm="layer",
    placement="pre",
    feed_forward="gelu_tanh",
)
LLAMA = Architecture(
    width=512,
    layers=8,
    heads=8,
    vocab_size=32000,
    max_positions=2048,
    positions="rotary",
    norm="rms",
    placement="pre",
    feed_forward="swiglu",
    bias=False,
)
BERT = Architecture(
    width=768,
    layers=12,
    heads=12,
    vocab_size=30522,
    max_positions=512,
    positions="learned",
    norm=LayerNorm(eps=1e-12),
    placement="post",
    feed_forward="gelu",
)
ENCODER_DECODER = Architecture(
    width=512,
    layers=6,
    heads=8,
    vocab_size=37000,
    max_positions=512,
    positions="sinusoidal",
    norm="layer",
    placement="post",
    feed_forward="relu",
)
NGPT = replace(LLAMA, vocab_size=50257, max_positions=1024, norm="none", placement="sphere")

Maker = TypeVar("Maker", bound=Callable[..., ModelConfig])


def show_defaults(defaults: Architecture) -> Callable[[Maker], Maker]:
    """Let `help` and completion show each argument of a maker with its default."""

    def decorate(maker: Maker) -> Maker:
        shared = [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=getattr(defaults, field.name),
                annotation=field.type,
            )
            for field in fields(defaults)
        ]
        written = signature(maker)
        own = [each for each in written.parameters.values() if each.kind is each.KEYWORD_ONLY]
        maker.__dict__["__signature__"] = written.replace(parameters=[*shared, *own])
        return maker

    return decorate


def decoder_only(architecture: Architecture, *, tied: bool) -> ModelConfig:
    """A causal stack with a language head."""
    return ModelConfig(decoder=architecture.stack(causal=True), head=LanguageHead(tied=tied))


@show_defaults(GPT)
def gpt(*, tied: bool = True, **changes: Unpack[Changes]) -> ModelConfig:
    """A decoder-only model like GPT-2: learned positions, Pre-LN, GELU. The defaults are GPT-2
    small."""
    return decoder_only(GPT.change(changes), tied=tied)


@show_defaults(LLAMA)
def llama(*, tied: bool = True, **changes: Unpack[Changes]) -> ModelConfig:
    """A decoder-only model like Llama: RoPE, RMSNorm, SwiGLU, no biases. Set `kv_heads` for
    grouped-query attention."""
    return decoder_only(LLAMA.change(changes), tied=tied)


@show_defaults(BERT)
def bert(
    *,
    types: int = 2,
    head: Literal["masked", "pooled", "mean", "none"] = "masked",
    **changes: Unpack[Changes],
) -> ModelConfig:
    """An encoder-only model like BERT: learned positions, Post-LN, token types, a masked-token
    head. The defaults are BERT-base."""
    architecture = BERT.change(changes)
    norm: Norm = choose(architecture.norm, NORMS, "norm")
    heads: dict[str, Head] = {
        "masked": MaskedHead(norm=norm),
        "pooled": Pooler(how="tanh"),
        "mean": Pooler(how="mean"),
        "none": NoHead(),
    }
    if head not in heads:
        raise ConfigError(f"head {head!r}", fix=nearest(head, heads))
    stack = architecture.stack(causal=False, types=types, embedding_norm=norm)
    return ModelConfig(encoder=stack, head=heads[head])


@show_defaults(ENCODER_DECODER)
def encoder_decoder(
    *, share_embeddings: bool = True, tied: bool = True, **changes: Unpack[Changes]
) -> ModelConfig:
    """An encoder and a decoder, as in Vaswani et al. 2017: sinusoidal positions, Post-LN, ReLU, one
    embedding matrix. The defaults are its base model."""
    architecture = ENCODER_DECODER.change(changes)
    scale = math.sqrt(architecture.width)
    return ModelConfig(
        encoder=architecture.stack(causal=False, scale=scale),
        decoder=architecture.stack(causal=True, cross=True, scale=scale),
        head=LanguageHead(tied=tied),
        share_embeddings=share_embeddings,
    )


@show_defaults(NGPT)
def ngpt(*, tied: bool = False, **changes: Unpack[Changes]) -> ModelConfig:
    """nGPT: every vector on the unit hypersphere. Call `model.normalize_weights()` after each
    optimiser step."""
    return decoder_only(NGPT.change(changes), tied=tied)


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
    model = encoder_decoder(
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
    assert model.encoder is not None
    assert model.decoder is not None
    encoder, decoder = (
        replace(stack, embedding=EmbeddingConfig(vocab_size=vocab_size))
        for stack in (model.encoder, model.decoder)
    )
    return replace(model, encoder=encoder, decoder=decoder, head=LanguageHead(scale=width**-0.5))


def gpt3(
    *, width: int = 12288, layers: int = 96, heads: int = 96, head_dim: int = 128
) -> ModelConfig:
    """GPT-3 (Brown et al. 2020, table 2.1): GPT-2 with twice the context. Every layer attends to
    all earlier tokens; in the paper, every second layer is locally banded and sparse. The defaults
    are the model of 175B parameters."""
    return gpt(width=width, layers=layers, heads=heads, head_dim=head_dim, max_positions=2048)


PUBLISHED: dict[str, Callable[[], ModelConfig]] = {
    "transformer-base": encoder_decoder,
    "transformer-big": lambda: encoder_decoder(width=1024, heads=16),
    "gpt2": gpt,
    "gpt2-medium": lambda: gpt(width=1024, layers=24, heads=16),
    "gpt2-large": lambda: gpt(width=1280, layers=36, heads=20),
    "gpt2-xl": lambda: gpt(width=1600, layers=48, heads=25),
    "gpt3-small": lambda: gpt3(width=768, layers=12, heads=12, head_dim=64),
    "gpt3-medium": lambda: gpt3(width=1024, layers=24, heads=16, head_dim=64),
    "gpt3-large": lambda: gpt3(width=1536, layers=24, heads=16, head_dim=96),
    "gpt3-xl": lambda: gpt3(width=2048, layers=24, heads=16),
    "gpt3-2.7b": lambda: gpt3(width=2560, layers=32, heads=32, head_dim=80),
    "gpt3-6.7b": lambda: gpt3(width=4096, layers=32, heads=32),
    "gpt3-13b": lambda: gpt3(width=5140, layers=40, heads=40),
    "gpt3": gpt3,
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
