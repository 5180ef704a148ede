"""Where a token stands: in the embeddings (`Learned`, `Sinusoidal`) or in the scores (`Rotary`,
`ALiBi`, `RelativeBias`)."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.config.checks import above, at_least
from sightline.config.values import check_fields
from sightline.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class NoPosition:
    """No position at all: attention is then permutation-equivariant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """One trained vector per position (GPT-2, BERT). The first `offset` rows are never used (BART
    2, RoBERTa 2)."""

    offset: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        at_least("Learned.offset", self.offset, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sinusoidal:
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017).

    `interleaved` alternates sin, cos, sin, cos as the paper does; otherwise all sines come first
    (Marian).
    """

    base: float = 10000.0
    interleaved: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        above("Sinusoidal.base", self.base, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023)."""

    factor: float

    def __post_init__(self) -> None:
        check_fields(self)
        above("LinearScaling.factor", self.factor, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class NTKScaling:
    """The base raised so that the slowest pair turns `factor` times slower and the fastest as
    before."""

    factor: float

    def __post_init__(self) -> None:
        check_fields(self)
        above("NTKScaling.factor", self.factor, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class YaRNScaling:
    """Slow pairs interpolated, fast ones kept, a ramp between; scores tempered (Peng et al. 2023).

    `attention_factor` multiplies the rotated q and k; None takes the paper's 0.1 ln(factor) + 1.
    """

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        above("YaRNScaling.factor", self.factor, 0)
        at_least("YaRNScaling.original_positions", self.original_positions, 1)
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"YaRNScaling.beta_fast {self.beta_fast} is not above beta_slow {self.beta_slow}",
                fix="use beta_fast=32, beta_slow=1",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Scaling:
    """Slow pairs divided by `factor`, fast ones kept, a smooth blend between (Llama 3.1)."""

    factor: float
    original_positions: int
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0

    def __post_init__(self) -> None:
        check_fields(self)
        above("Llama3Scaling.factor", self.factor, 0)
        at_least("Llama3Scaling.original_positions", self.original_positions, 1)
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigError(
                f"Llama3Scaling.high_frequency_factor {self.high_frequency_factor} is not above"
                f" low_frequency_factor {self.low_frequency_factor}",
                fix="use low_frequency_factor=1, high_frequency_factor=4",
            )


RotaryScaling = LinearScaling | NTKScaling | YaRNScaling | Llama3Scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotary:
    """RoPE: q and k rotated by their position, pair by pair (Su et al. 2021).

    `dim` rotates only the first `dim` numbers of each head (GPT-NeoX); None rotates all of them.
    """

    base: float = 10000.0
    dim: int | None = None
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        above("Rotary.base", self.base, 0)
        if self.dim is not None:
            at_least("Rotary.dim", self.dim, 2)
            if self.dim % 2:
                raise ConfigError(
                    f"Rotary.dim is {self.dim}",
                    expected="an even number, since RoPE turns pairs",
                    fix=f"dim={self.dim - 1}",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class ALiBi:
    """`− slope_h · |i − j|` on the scores (Press et al. 2022)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelativeBias:
    """One trained number per head and bucket of distance, on the scores (T5). One table serves all
    layers of a stack."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        check_fields(self)
        at_least("RelativeBias.buckets", self.buckets, 4)
        at_least("RelativeBias.max_distance", self.max_distance, self.buckets // 2 + 1)


EmbeddingPosition = NoPosition | Learned | Sinusoidal
AttentionPosition = NoPosition | Rotary | ALiBi | RelativeBias
Position = NoPosition | Learned | Sinusoidal | Rotary | ALiBi | RelativeBias
