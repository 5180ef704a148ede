"""Scores of one head as length × direction, and the share of each in the score variance and the
attention.

**Share of the scores.** Within row i, over the keys that it may see, let
    v    = variance of |q_i| |k_j| cos θ_ij · scale
    v_D  = the same with every |k_j| replaced by their mean         only direction varies
    v_L  = the same with every cos θ_ij replaced by their mean      only length varies
and give each its Shapley value, the mean of its marginal contributions in both orders:
    direction = (v_D + v − v_L) / 2       length = (v_L + v − v_D) / 2       direction + length = v
A head's shares are the sums over its rows, divided by Σ v: rows are weighted by their variance, and
|q_i| has no other effect. A share is negative where it opposes the other: long keys that point
away. Soft-cap and bias are left out, since they have no length.

**Share of the attention.** KL(weights ‖ weights with key norms equalised) and KL(weights ‖ weights
with angles flattened), by the same replacements, with soft-cap, bias and sink unchanged; in nats,
averaged over the rows that see two or more keys. With KL(weights ‖ neither) as the whole, the same
two-player Shapley value gives shares that sum to 1.

**Origin.** A length needs an origin. Adding one vector to all keys of a row adds a constant to its
scores, to which softmax is invariant; lengths and angles do change. So the shares are given from
two origins:
    zero    |k_j| and θ_ij as the kernel receives them
    mean    |k_j − μ_i| and the angle of q_i and k_j − μ_i, with μ_i the mean of *the keys that row
            i may see* (under a causal mask, a running mean: no row depends on later tokens)
    score_ij = |q_i| · |k_j − μ_i| · cos θ'_ij · scale + offset_i,      offset_i = q_i · μ_i · scale
Weights do not depend on offset_i, with or without a position bias; with a soft-cap or a sink they
do, and it is kept. Keys are centred as the kernel receives them, after RoPE: a vector added
*before* RoPE (the bias of the key projection) is rotated differently at each position, and has an
effect.

Neither origin is the right one. From the mean, direction has more than half of the variance
wherever the lengths vary little (a coefficient of variation below 1), even of keys along one ray,
which differ from zero by length alone. A share describes the scores; how much a model needs
direction and length is the subject of `interventions.keys`.

**Without the first token.** The first token is often an attention sink whose key is unlike all
others. `sink=False` leaves it out, as if it were masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.core.attention import Scoring
from sightline.lens.trace.layer import Look

Origin = Literal["mean", "zero"]
PerPair = Float[Tensor, "query key"]
PerRow = Float[Tensor, " query"]
ROUNDING = 1e-12  # squared differences below this share of their operands are float32 rounding


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of direction and length: of a head, or the mean over a layer's heads. NaN where no
    row has two keys that differ."""

    direction: float  # of the variance of the scores; these two sum to 1
    length: float
    attention_direction: float  # of the attention itself; these two sum to 1
    attention_length: float
    norms_equalised: float  # KL(weights ‖ weights with key norms equalised), nats
    angles_flattened: float  # KL(weights ‖ weights with angles flattened), nats


class RowShares(NamedTuple):
    """The quantities of each row, before summation: parts of the variance, and divergences."""

    variance: PerRow
    direction: PerRow
    length: PerRow
    norms_equalised: PerRow
    angles_flattened: PerRow
    neither: PerRow  # KL(weights ‖ weights of only bias and sink)
    keys: Int[Tensor, " query"]  # number of visible keys


@dataclass(frozen=True, slots=True)
class Split:
    """A head's scores as length × direction: |q_i| · key_length · cosine · scale + offset_i."""

    key_length: Float[Tensor, "#query key"]  # one row for all queries if keys are not centred
    cosine: PerPair
    offset: PerRow
    rows: RowShares

    def __repr__(self) -> str:
        queries, keys = self.cosine.shape
        shares = self.shares
        parts = f"direction {shares.direction:.0%}, length {shares.length:.0%}"
        return f"<Split: {parts}, {queries} queries × {keys} keys>"

    @property
    def shares(self) -> Shares:
        row = self.rows
        has_choice = row.keys >= 2
        equalised, flattened, whole = (
            float(x[has_choice].sum())
            for x in (row.norms_equalised, row.angles_flattened, row.neither)
        )
        variance = float(row.variance.sum())
        rows_with_choice = int(has_choice.sum())
        return Shares(
            direction=_fraction(float(row.direction.sum()), variance),
            length=_fraction(float(row.length.sum()), variance),
            attention_direction=_fraction((whole + flattened - equalised) / 2, whole),
            attention_length=_fraction((whole + equalised - flattened) / 2, whole),
            norms_equalised=_fraction(equalised, rows_with_choice),
            angles_flattened=_fraction(flattened, rows_with_choice),
        )


@dataclass(frozen=True, slots=True)
class Band:
    """Some rows of a head: q and k, and everything between q·k and the softmax."""

    query: Float[Tensor, "query head_dim"]
    key: Float[Tensor, "key head_dim"]
    query_length: Float[Tensor, "query 1"]
    allowed: Bool[Tensor, "query key"]
    average: PerPair
    bias: PerPair | None
    scoring: Scoring

    def mean(self, x: Float[Tensor, "#query key"]) -> Float[Tensor, "query 1"]:
        """The mean over the keys that a row may see."""
        return (self.average * x).sum(-1, keepdim=True)

    def variance(self, x: PerPair) -> PerRow:
        return self.mean((x - self.mean(x)).square())[:, 0]

    def log_weights(self, products: PerPair) -> Float[Tensor, "query outcome"]:
        """log softmax of the scores made of q·k · scale; a learned sink is one more outcome."""
        cap = self.scoring.softcap
        sinks = self.scoring.sinks
        scores = products if cap is None else cap * torch.tanh(products / cap)
        scores = (scores if self.bias is None else scores + self.bias).masked_fill(
            ~self.allowed, -torch.inf
        )
        if sinks is not None:
            scores = torch.cat((scores, sinks.double().expand(len(scores), 1)), dim=-1)
        return scores.log_softmax(-1)


def band_of(one: Look, rows: slice, *, sink: bool = True) -> Band:
    """Rows of a layer with one head, with or without the first key. A bias of −∞ masks a key."""
    query = one.query[0, 0, rows].double()
    key = one.key[0, 0].double()
    scoring = one.scoring.tile(rows, slice(0, len(key)))
    allowed = scoring.mask.allowed()[0, 0]
    bias = None
    if scoring.bias is not None:
        bias = (
            scoring.bias(scoring.mask.query_at, scoring.mask.key_at)[0, 0]
            .double()
            .expand(len(query), len(key))
        )
        allowed = allowed & ~bias.isneginf()
    if not sink:
        allowed = without_first(allowed)
    average = average_over(allowed)
    return Band(query, key, query.norm(dim=-1, keepdim=True), allowed, average, bias, scoring)


def without_first(
    allowed: Bool[Tensor, "*batch query key"],
) -> Bool[Tensor, "*batch query key"]:
    """The first key of every row masked too."""
    return allowed & (torch.arange(allowed.shape[-1], device=allowed.device) > 0)


def average_over(allowed: Bool[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
    """1 / n for each of the n keys that a row may see, 0 for the others."""
    return allowed / allowed.sum(-1, keepdim=True, dtype=torch.float64).clamp(min=1)


def raw_split(band: Band) -> Split:
    """Lengths and angles from zero."""
    return _make_split(band, *lengths_and_cosines(band.query, band.key, band.average, "zero"))


def centred_split(band: Band) -> Split:
    """Lengths and angles from each row's mean key."""
    length, cosine, offset = lengths_and_cosines(band.query, band.key, band.average, "mean")
    return _make_split(band, length, cosine, offset * band.scoring.scale)


def lengths_and_cosines(
    query: Float[Tensor, "*batch query head_dim"],
    key: Float[Tensor, "*batch key head_dim"],
    average: Float[Tensor, "*batch query key"],
    origin: Origin,
) -> tuple[Float[Tensor, "*batch _ key"], Float[Tensor, "*batch query key"], Tensor]:
    """q·k = |q| · length · cosine + offset, for any number of heads:
    |k − μ|² = |k|² − 2 k·μ + |μ|²."""
    dots = query @ key.transpose(-2, -1)
    query_length = query.norm(dim=-1, keepdim=True)
    if origin == "zero":
        length = key.norm(dim=-1)[..., None, :]
        return length, _ratio(dots, query_length * length), torch.zeros_like(query_length)
    mean = average @ key
    offset = (query * mean).sum(-1, keepdim=True)
    whole = key.square().sum(-1)[..., None, :] + mean.square().sum(-1, keepdim=True)
    squared = whole - 2 * mean @ key.transpose(-2, -1)
    length = torch.where(squared > ROUNDING * whole, squared, 0.0).sqrt()
    return length, _ratio(dots - offset, query_length * length), offset


def _make_split(
    band: Band,
    length: Float[Tensor, "#query key"],
    cosine: PerPair,
    offset: Float[Tensor, "query 1"],
) -> Split:
    """The row quantities with lengths and angles, with each alone, and with neither."""
    query_scale = band.query_length * band.scoring.scale
    one_length = band.mean(length)
    one_cosine = band.mean(cosine)

    def product(length: Tensor, cosine: Tensor) -> Tensor:
        return query_scale * length * cosine + offset

    whole = product(length, cosine)
    direction = product(one_length, cosine)
    by_length = product(length, one_cosine)
    neither = product(one_length, one_cosine).expand_as(cosine)
    v, v_direction, v_length = (band.variance(x) for x in (whole, direction, by_length))
    has_variance = v > ROUNDING * (query_scale[:, 0] * band.key.norm(dim=-1).max()).square()
    weights = band.log_weights(whole)
    rows = (
        v,
        (v_direction + v - v_length) / 2,
        (v_length + v - v_direction) / 2,
        divergence(weights, band.log_weights(direction)),
        divergence(weights, band.log_weights(by_length)),
        divergence(weights, band.log_weights(neither)),
    )
    return Split(
        length.float(),
        cosine.float(),
        offset[:, 0].float(),
        RowShares(*(x * has_variance for x in rows), keys=band.allowed.sum(-1)),
    )


def divergence(
    log_p: Float[Tensor, "query outcome"], log_q: Float[Tensor, "query outcome"]
) -> PerRow:
    """KL(p ‖ q) = Σ p (log p − log q), over the support of p; 0 for a row without visible keys."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1).clamp(min=0)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, clamped to −1 … 1; 0 where `below` is 0."""
    return torch.where(below > 0, above / below, 0.0).clamp(-1, 1)


def concat_splits(bands: Sequence[Split], *, one_length: bool = False) -> Split:
    """Bands concatenated over rows."""

    length = bands[0].key_length if one_length else torch.cat([band.key_length for band in bands])
    rows = RowShares(
        *(torch.cat(parts) for parts in zip(*(band.rows for band in bands), strict=True))
    )
    return Split(
        length,
        torch.cat([band.cosine for band in bands]),
        torch.cat([band.offset for band in bands]),
        rows,
    )


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def nan_mean(numbers: Iterable[float]) -> float:
    finite = [x for x in numbers if not math.isnan(x)]
    return sum(finite) / len(finite) if finite else math.nan


def mean_shares(shares: Sequence[Shares]) -> Shares:
    return Shares(
        *(nan_mean(getattr(one, field.name) for one in shares) for field in fields(Shares))
    )
