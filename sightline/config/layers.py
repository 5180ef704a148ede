"""What a block is made of: norms, attention, feed-forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sightline.config.checks import above, at_least, largest_divisor, probability
from sightline.config.positions import AttentionPosition, NoPosition, Rotary
from sightline.config.values import check_fields
from sightline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerNorm:
    """`γ (x − mean) / √(variance + ε) + β`, with the biased variance."""

    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        above("LayerNorm.eps", self.eps, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RMSNorm:
    """`γ x / √(mean(x²) + ε)`; with `plus_one` the gain is stored as γ − 1 (Gemma)."""

    eps: float = 1e-6
    plus_one: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        above("RMSNorm.eps", self.eps, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoNorm:
    """The identity."""


Norm = LayerNorm | RMSNorm | NoNorm
Placement = Literal["pre", "post", "sandwich", "output", "sphere"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """`q·k · scale`; None is the paper's 1/√head_dim."""

    scale: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cosine:
    """`scale · cos θ`: q and k are L2-normalised, so every score lies in [−scale, scale].
    Learnable: one scale per head."""

    scale: float = 10.0
    learnable: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        above("Cosine.scale", self.scale, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadNorm:
    """QK-norm: q and k normalised before rotation, each head by itself (Qwen 3) or all heads
    together (OLMo 2)."""

    norm: Norm = field(default_factory=RMSNorm)
    per_head: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionConfig:
    """One attention layer. `kv_heads` < `heads` is grouped-query, 1 is multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    kind: Dot | Cosine = field(default_factory=Dot)
    positions: AttentionPosition = field(default_factory=NoPosition)
    query_key_norm: HeadNorm | None = None
    bias: bool = True
    output_bias: bool = True
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("heads", "kv_heads", "head_dim"):
            at_least(f"AttentionConfig.{name}", getattr(self, name), 1)
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly",
                expected="heads divisible by kv_heads",
                fix=f"kv_heads={largest_divisor(self.heads, self.kv_heads)}",
            )
        if isinstance(self.positions, Rotary):
            dim = self.positions.dim or self.head_dim
            if dim % 2:
                raise ConfigError(
                    f"head_dim is {dim} with Rotary positions",
                    expected="an even number, since RoPE turns pairs",
                    fix=f"head_dim={dim + 1}, or Rotary(dim={dim - 1})"
                    if dim > 2
                    else "head_dim=2",
                )
            if dim > self.head_dim:
                raise ConfigError(
                    f"Rotary.dim {dim} is larger than head_dim {self.head_dim}",
                    fix=f"Rotary(dim={self.head_dim})",
                )
        for name, least in (("value_dim", 1), ("window", 1)):
            if getattr(self, name) is not None:
                at_least(f"AttentionConfig.{name}", getattr(self, name), least)
        if self.softcap is not None:
            above("AttentionConfig.softcap", self.softcap, 0)
        probability("AttentionConfig.dropout", self.dropout)

    @property
    def value_width(self) -> int:
        """Dimensions of a head's values: `value_dim`, or `head_dim` if that is None."""
        return self.value_dim or self.head_dim


Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu_squared", "tanh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForwardConfig:
    """`W₂ act(W₁ x)`, or gated `W₂ (act(W_g x) ⊙ W₁ x)`: SwiGLU is silu gated, GEGLU gelu gated."""

    hidden: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        at_least("FeedForwardConfig.hidden", self.hidden, 1)
        probability("FeedForwardConfig.dropout", self.dropout)
