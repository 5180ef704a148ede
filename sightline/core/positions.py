"""Position: sinusoidal vectors, rotations of q and k, biases on the scores.

sinusoidal   PE(p, 2i) = sin(p ω_i),  PE(p, 2i+1) = cos(p ω_i),  ω_i = base^(−2i/width)
rotary       (x_i, x_{i+d/2}) ↦ (x_i cos p ω_i − x_{i+d/2} sin p ω_i,
                                 x_{i+d/2} cos p ω_i + x_i sin p ω_i)
ALiBi        − slope_h · |i − j|
relative     table[bucket(j − i), h]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    YaRNScaling,
)
from sightline.kernels import library as kernels


def sinusoidal(
    positions: Int[Tensor, "*shape"], width: int, form: Sinusoidal
) -> Float[Tensor, "*shape width"]:
    """One vector per position; `PE(p + k) = A(k) PE(p)` with A(k) a rotation in each (sin, cos)
    pair."""
    frequency = form.base ** (
        -torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    )
    angle = positions[..., None] * frequency  # in float64: float32 loses 6e-5 at position 1,000
    sine = angle.sin().float()
    cosine = angle.cos().float()
    return (
        torch.stack((sine, cosine), dim=-1).flatten(-2)
        if form.interleaved
        else torch.cat((sine, cosine), dim=-1)
    )


# ----------------------------------------------------------------------------------------- rotary


class Rotation(NamedTuple):
    """cos and sin of every position's angles, ready to rotate q and k."""

    cos: Float[Tensor, "#batch 1 time pairs"]
    sin: Float[Tensor, "#batch 1 time pairs"]


def rotation(form: Rotary, head_dim: int, positions: Int[Tensor, "#batch time"]) -> Rotation:
    """The angles p·ω_i of these positions."""
    frequency, amplitude = rotary_frequencies(form, form.dim or head_dim, positions.device)
    angle = positions[:, None, :, None] * frequency
    return Rotation(angle.cos() * amplitude, angle.sin() * amplitude)


def rotate(
    x: Float[Tensor, "batch heads time head_dim"], by: Rotation | None
) -> Float[Tensor, "batch heads time head_dim"]:
    """Rotate each pair (x_i, x_{i+d/2}) by its angle; dimensions beyond the rotated ones stay
    unchanged."""
    if by is None:
        return x
    if kernels.learns(x) and kernels.suits(x, by.cos):
        return kernels.rotate(x, by.cos.contiguous(), by.sin.contiguous())
    pairs = by.cos.shape[-1]
    a = x[..., :pairs]
    b = x[..., pairs : 2 * pairs]
    rest = x[..., 2 * pairs :]
    rotated = torch.cat((a * by.cos - b * by.sin, b * by.cos + a * by.sin), dim=-1).to(x.dtype)
    return rotated if rest.shape[-1] == 0 else torch.cat((rotated, rest), dim=-1)


def rotary_frequencies(
    form: Rotary, dim: int, device: torch.device | None = None
) -> tuple[Float[Tensor, " pairs"], float]:
    """ω_i for each pair, after scaling, and the factor that YaRN puts on the rotated vectors."""
    base = form.base
    scaling = form.scaling
    if isinstance(scaling, NTKScaling) and dim > 2:
        base = base * scaling.factor ** (dim / (dim - 2))
    frequency = 1.0 / base ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    return _scale_frequencies(frequency, form.base, dim, scaling)


def _scale_frequencies(
    frequency: Float[Tensor, " pairs"], base: float, dim: int, scaling: RotaryScaling | None
) -> tuple[Float[Tensor, " pairs"], float]:
    match scaling:
        case LinearScaling():
            return frequency / scaling.factor, 1.0
        case Llama3Scaling():
            turns = (
                scaling.original_positions * frequency / (2 * math.pi)
            )  # how often a pair turns over the old context
            low = scaling.low_frequency_factor
            high = scaling.high_frequency_factor
            unscaled = ((turns - low) / (high - low)).clamp(0, 1)
            return unscaled * frequency + (1 - unscaled) * frequency / scaling.factor, 1.0
        case YaRNScaling():
            unscaled = 1 - _yarn_ramp(scaling, base, dim, frequency)
            amplitude = scaling.attention_factor
            if amplitude is None:
                amplitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
            return unscaled * frequency + (1 - unscaled) * frequency / scaling.factor, amplitude
        case _:
            return frequency, 1.0


def _yarn_ramp(
    scaling: YaRNScaling, base: float, dim: int, frequency: Float[Tensor, " pairs"]
) -> Float[Tensor, " pairs"]:
    """0 for pairs that turn more than beta_fast times over the old context, 1 for fewer than
    beta_slow, linear between."""

    def pair_turning(times: float) -> float:
        return (
            dim
            * math.log(scaling.original_positions / (times * 2 * math.pi))
            / (2 * math.log(base))
        )

    low = pair_turning(scaling.beta_fast)
    high = pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, dim - 1)
    pair = torch.arange(frequency.shape[0], device=frequency.device, dtype=torch.float32)
    return ((pair - low) / max(high - low, 0.001)).clamp(0, 1)


# --------------------------------------------------------------------------- biases on the scores


@runtime_checkable
class Bias(Protocol):
    """What is added to the scores, as a function of positions, so that any tile can be computed
    independently."""

    def __call__(
        self, query_at: Int[Tensor, "#batch query"], key_at: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, ...]: ...

    def tile(self, rows: slice, columns: slice) -> Bias: ...


@dataclass(frozen=True)
class TensorBias:
    """A bias passed as a tensor."""

    values: Float[Tensor, "#batch #heads #query #key"]

    def __call__(
        self, query_at: Int[Tensor, "#batch query"], key_at: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, ...]:
        return self.values

    def tile(self, rows: slice, columns: slice) -> Bias:
        values = self.values if self.values.shape[2] == 1 else self.values[:, :, rows]
        return TensorBias(values if values.shape[3] == 1 else values[..., columns])


def alibi_slopes(heads: int) -> list[float]:
    """2^(−8h/H); for H not a power of two, those of the power below, then every other slope of the
    next one up."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


@dataclass(frozen=True)
class ALiBiBias:
    """− slope_h · |i − j|"""

    slopes: tuple[float, ...]

    def tile(self, rows: slice, columns: slice) -> Bias:
        return self

    def __call__(
        self, query_at: Int[Tensor, "#batch query"], key_at: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        distance = (query_at[:, None, :, None] - key_at[:, None, None, :]).abs()
        slopes = torch.tensor(self.slopes, device=query_at.device)
        return -slopes[:, None, None] * distance


class RelativeTable(nn.Module):
    """T5: one number per bucket of distance and head. Near distances have a bucket each, far ones
    share by logarithm."""

    def __init__(self, buckets: int, max_distance: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.max_distance = max_distance
        self.causal = causal
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, query_at: Int[Tensor, "#batch query"], key_at: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        distance = key_at[:, None, :] - query_at[:, :, None]
        bucket = relative_bucket(
            distance, self.weight.shape[0], self.max_distance, causal=self.causal
        )
        return self.weight[bucket].permute(0, 3, 1, 2)

    def tile(self, rows: slice, columns: slice) -> Bias:
        return self


@dataclass(frozen=True, eq=False)
class TableBias:
    """T5's table as plain values: a snapshot that later training does not change."""

    weight: Float[Tensor, "buckets heads"]
    max_distance: int
    causal: bool

    def __call__(
        self, query_at: Int[Tensor, "#batch query"], key_at: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        distance = key_at[:, None, :] - query_at[:, :, None]
        return self.weight[
            relative_bucket(distance, self.weight.shape[0], self.max_distance, causal=self.causal)
        ].permute(0, 3, 1, 2)

    def tile(self, rows: slice, columns: slice) -> Bias:
        return self


def relative_bucket(
    distance: Int[Tensor, "*shape"], buckets: int, max_distance: int, *, causal: bool
) -> Int[Tensor, "*shape"]:
    """Half of the buckets for exact distances, half for log-spaced ones; a bidirectional stack
    splits them by sign."""
    if causal:
        offset = torch.zeros_like(distance)
        distance = (-distance).clamp(min=0)
    else:
        buckets //= 2
        offset = (distance > 0) * buckets
        distance = distance.abs()
    exact = buckets // 2
    spread = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (spread * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, far)
