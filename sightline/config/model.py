"""Blocks, stacks, heads, and the full model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sightline.config.checks import above, at_least, probability
from sightline.config.layers import (
    Activation,
    AttentionConfig,
    Dot,
    FeedForwardConfig,
    LayerNorm,
    NoNorm,
    Norm,
    Placement,
)
from sightline.config.positions import EmbeddingPosition, NoPosition, RelativeBias, Sinusoidal
from sightline.config.values import check_fields
from sightline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockConfig:
    """Attention, then cross-attention if there is any, then feed-forward; each with its residual
    and norm.

    `attention_norm` is a different norm around self-attention only (ModernBERT's first layer has
    none there); None is `norm`.

    `parallel` adds attention and feed-forward of the same input: `x + attention(norm(x)) +
    feed_forward(norm'(x))`.
    """

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    cross_attention: AttentionConfig | None = None
    norm: Norm = field(default_factory=LayerNorm)
    attention_norm: Norm | None = None
    placement: Placement = "pre"
    parallel: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        probability("BlockConfig.dropout", self.dropout)
        cross = self.cross_attention
        if cross is not None and not isinstance(cross.positions, NoPosition):
            raise ConfigError(
                f"{type(cross.positions).__name__} in cross-attention",
                expected="no positions, since the two sequences have no common origin",
                fix="cross_attention positions=NoPosition()",
            )
        if cross is not None and cross.window is not None:
            raise ConfigError(
                "a window in cross-attention",
                expected="window=None",
                fix="leave window out of cross_attention",
            )
        if self.parallel and (cross is not None or self.placement != "pre"):
            what = "cross-attention" if cross is not None else f"{self.placement!r} placement"
            raise ConfigError(
                f"a parallel block with {what}",
                expected="placement 'pre' and no cross-attention",
                fix="parallel=False",
            )
        if self.placement == "sphere":
            self._check_sphere()

    def _check_sphere(self) -> None:
        wrong = {
            f"{type(self.norm).__name__}": not isinstance(self.norm, NoNorm),
            "a norm around attention": not isinstance(self.attention_norm, (NoNorm, type(None))),
            "cross-attention": self.cross_attention is not None,
            "cosine attention": self.attention.kind != Dot(),
            "QK-norm": self.attention.query_key_norm is not None,
            "biases": self.attention.bias or self.attention.output_bias or self.feed_forward.bias,
            "a feed-forward without gate": not self.feed_forward.gated,
            "dropout": any((self.dropout, self.attention.dropout, self.feed_forward.dropout)),
        }
        for what, present in wrong.items():
            if present:
                raise ConfigError(
                    f"{what} in an nGPT block (placement 'sphere')",
                    expected=(
                        "plain dot-product attention and a gated feed-forward, no norm, no bias, no"
                        " dropout"
                    ),
                    fix="sl.ngpt(...) makes a right one, or use another placement",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingConfig:
    """Token vectors times `scale`, plus position and type vectors, normed."""

    vocab_size: int
    positions: EmbeddingPosition = field(default_factory=NoPosition)
    types: int = 0
    scale: float = 1.0
    norm: Norm = field(default_factory=NoNorm)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        at_least("EmbeddingConfig.vocab_size", self.vocab_size, 1)
        at_least("EmbeddingConfig.types", self.types, 0)
        probability("EmbeddingConfig.dropout", self.dropout)


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """Embedding, `layers` blocks, a final norm. Layer n is `blocks[n % len(blocks)]`: most stacks
    repeat one block.

    `max_positions` is the size of a learned table, and otherwise the length the model was made for
    (no hard limit).
    """

    width: int
    layers: int
    causal: bool
    max_positions: int
    embedding: EmbeddingConfig
    blocks: tuple[BlockConfig, ...]
    final_norm: Norm = field(default_factory=NoNorm)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("width", "layers", "max_positions"):
            at_least(f"StackConfig.{name}", getattr(self, name), 1)
        if not self.blocks:
            raise ConfigError(
                "StackConfig.blocks is empty",
                expected="at least one block",
                fix="blocks=(BlockConfig(...),)",
            )
        if self.layers % len(self.blocks) and len(self.blocks) > self.layers:
            raise ConfigError(
                f"{len(self.blocks)} blocks for {self.layers} layers",
                fix=f"give at most {self.layers} blocks",
            )
        if isinstance(self.embedding.positions, Sinusoidal) and self.width % 2:
            raise ConfigError(
                f"width is {self.width} with Sinusoidal positions",
                expected="an even number",
                fix=f"width={self.width + 1}",
            )
        if len({block.placement == "sphere" for block in self.blocks}) > 1:
            raise ConfigError(
                "nGPT blocks mixed with others",
                expected="all blocks with placement 'sphere', or none",
                fix="use one placement",
            )
        if self.on_sphere:
            plain = EmbeddingConfig(vocab_size=self.embedding.vocab_size)
            if self.embedding != plain or not isinstance(self.final_norm, NoNorm):
                raise ConfigError(
                    "an nGPT stack with embedding positions, types, scale, norm or dropout, or a"
                    " final norm",
                    expected="plain unit-norm token embeddings",
                    fix="put positions into the attention (Rotary, ALiBi) and leave the rest out",
                )
        relative = {
            b.attention.positions
            for b in self.blocks
            if isinstance(b.attention.positions, RelativeBias)
        }
        if len(relative) > 1 or (relative and len({b.attention.heads for b in self.blocks}) > 1):
            raise ConfigError(
                "two different RelativeBias tables in one stack",
                expected="one shared by all layers",
                fix="use one RelativeBias",
            )

    @property
    def on_sphere(self) -> bool:
        """Whether every vector lives on the unit hypersphere (nGPT)."""
        return self.blocks[0].placement == "sphere"

    def block(self, layer: int) -> BlockConfig:
        """The configuration of one layer."""
        return self.blocks[layer % len(self.blocks)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageHead:
    """Logits of the next token: `softcap · tanh(scale · W x / softcap)`. Tied: W is the embedding
    matrix."""

    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.softcap is not None:
            above("LanguageHead.softcap", self.softcap, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedHead:
    """Logits of a masked token: `W norm(act(W' x)) + b` (BERT)."""

    tied: bool = True
    bias: bool = True
    activation: Activation = "gelu"
    norm: Norm = field(default_factory=LayerNorm)
    transform_bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooler:
    """One vector per sequence: the `first` token, its `tanh` projection (BERT), or the `mean` of
    the real tokens."""

    how: Literal["first", "tanh", "mean"] = "tanh"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Classifier:
    """Logits of classes: `W norm(act(W' x)) + b`, without W' if there is no activation.

    x is each token (`tokens`: tagging, question answering with two labels), the `first` token, the
    `last` real one, or the `mean`.
    """

    labels: int
    pool: Literal["tokens", "first", "last", "mean"] = "first"
    activation: Activation | None = None
    norm: Norm = field(default_factory=NoNorm)
    transform_bias: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        at_least("Classifier.labels", self.labels, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoHead:
    """Hidden states as they are."""


Head = LanguageHead | MaskedHead | Pooler | Classifier | NoHead


ELSEWHERE = {  # what a stack of the model has, by Hugging Face's names and by ours
    **dict.fromkeys(
        ("num_heads", "num_attention_heads", "n_head", "heads"), "block(0).attention.heads"
    ),
    **dict.fromkeys(("num_key_value_heads", "kv_heads"), "block(0).attention.kv_heads"),
    "head_dim": "block(0).attention.head_dim",
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "width"), "width"),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "layers"), "layers"),
    **dict.fromkeys(("intermediate_size", "d_ff", "hidden"), "block(0).feed_forward.hidden"),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_positions"), "max_positions"),
    "vocab_size": "embedding.vocab_size",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A full Transformer: an encoder (BERT), a decoder (GPT), or both (the 2017 model, T5,
    BART)."""

    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: Head = field(default_factory=NoHead)
    share_embeddings: bool = False

    def __getattr__(self, name: str) -> Any:
        """Only called for unknown names: an error with the place of Hugging Face's attributes."""
        if name in ELSEWHERE:
            stack = "encoder" if self.decoder is None else "decoder"
            raise AttributeError(
                f"ModelConfig has no {name!r}. Fix: config.{stack}.{ELSEWHERE[name]}"
            )
        raise AttributeError(f"ModelConfig has no attribute {name!r}")

    def __post_init__(self) -> None:
        check_fields(self)
        encoder = self.encoder
        decoder = self.decoder
        if encoder is None and decoder is None:
            raise ConfigError(
                "a model without encoder and without decoder",
                expected="one or both",
                fix="sl.gpt(), sl.bert() or sl.encoder_decoder()",
            )
        if encoder is not None and encoder.causal:
            raise ConfigError(
                "a causal encoder",
                expected="causal=False",
                fix="a single causal stack is a decoder: ModelConfig(decoder=...)",
            )
        if decoder is not None and not decoder.causal:
            raise ConfigError(
                "a decoder that sees the future",
                expected="causal=True",
                fix="a bidirectional stack is an encoder: ModelConfig(encoder=...)",
            )
        for name, stack in (("encoder", encoder), ("decoder", decoder)):
            if stack is None:
                continue
            crossing = [block.cross_attention is not None for block in stack.blocks]
            needs_cross = name == "decoder" and encoder is not None
            if any(crossing) != needs_cross or all(crossing) != needs_cross:
                raise ConfigError(
                    f"the {name} {'lacks' if needs_cross else 'has'} cross-attention"
                    f" {'with' if encoder else 'without'} an encoder beside it",
                    expected=(
                        "cross-attention in every decoder block of an encoder–decoder, and nowhere"
                        " else"
                    ),
                    fix=(
                        "set cross_attention in the decoder's blocks"
                        if needs_cross
                        else "cross_attention=None"
                    ),
                )
        self._check_head()
        if self.share_embeddings:
            sizes = {(s.width, s.embedding.vocab_size) for s in (encoder, decoder) if s is not None}
            if encoder is None or decoder is None or len(sizes) > 1:
                raise ConfigError(
                    "share_embeddings",
                    expected="an encoder and a decoder of one width and vocabulary",
                    fix="share_embeddings=False",
                )

    def _check_head(self) -> None:
        name = type(self.head).__name__
        if isinstance(self.head, LanguageHead) and self.decoder is None:
            raise ConfigError(
                f"{name} on an encoder",
                expected="MaskedHead, Pooler or NoHead",
                fix="head=MaskedHead()",
            )
        if isinstance(self.head, (MaskedHead, Pooler)) and self.decoder is not None:
            raise ConfigError(
                f"{name} on a decoder", expected="LanguageHead or NoHead", fix="head=LanguageHead()"
            )

    @property
    def stacks(self) -> dict[str, StackConfig]:
        """The stacks there are, by name, in the order that data passes them."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack is not None}

    @property
    def last(self) -> StackConfig:
        """The stack whose states reach the head."""
        return list(self.stacks.values())[-1]
