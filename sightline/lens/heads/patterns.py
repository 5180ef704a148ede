"""How much of a head's attention falls on a pattern, compared with uniform attention.

   w      = weights without the sink, each row renormalized to sum to 1
    value  = mean over rows of  Σ_{j in pattern} w_ij
    chance = mean over rows of  |pattern_i| / |visible_i|     the value of uniform attention
    confidence = (value − chance) / (1 − chance), at least 0

Every function takes the attention of one layer, `[heads, query, key]`, and returns one number per
head; NaN where too few rows qualify.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Weights = Float[Tensor, "heads query key"]
Pattern = Bool[Tensor, "query key"]
PerHead = Float[Tensor, " heads"]

MIN_MASS = 0.01  # rows with less of their mass outside the sink are ignored
MIN_ACTIVE_ROWS = 0.25  # a head with a smaller share of active rows is scored by its sink only
MIN_ROWS = 3  # fewer rows give no score (NaN)
SHUFFLES = 32  # random row orders that estimate the chance level of `score_monotone`


@dataclass(frozen=True, slots=True)
class PatternScore:
    """A score per head, and the score of uniform attention."""

    value: PerHead
    chance: PerHead

    @property
    def confidence(self) -> PerHead:
        """(value − chance) / (1 − chance), clamped to 0 … 1."""
        return ((self.value - self.chance) / (1 - self.chance).clamp(min=1e-6)).clamp(0, 1)


@dataclass(frozen=True, slots=True)
class SinkFreeAttention:
    """Attention with the sink removed. `rows` marks the queries that each head is scored on, `sink`
    is the mass that was removed."""

    weights: Weights
    visible: Pattern
    rows: Bool[Tensor, "heads query"]
    sink: PatternScore


def remove_sink(
    weights: Weights, visible: Pattern, sink: Bool[Tensor, " key"], is_query: Bool[Tensor, " query"]
) -> SinkFreeAttention:
    """Remove the sink's columns. The share of a learned sink, which no key receives, counts as sink
    too."""
    remaining = visible & ~sink
    has_choice = is_query & (remaining.sum(-1) >= 2)
    weights_left = weights.double() * remaining
    mass = weights_left.sum(-1)  # [heads, query]
    rows = has_choice & (mass >= MIN_MASS)
    rows = rows & (rows.sum(-1, keepdim=True) >= MIN_ACTIVE_ROWS * has_choice.sum())
    share = (visible & sink).sum(-1) / visible.sum(-1).clamp(min=1)
    sink_score = PatternScore(
        mean_over_rows(1 - mass, has_choice.expand_as(mass)),
        mean_over_rows(share.expand_as(mass).double(), has_choice.expand_as(mass)),
    )
    return SinkFreeAttention(
        weights_left / mass[..., None].clamp(min=1e-12), remaining, rows, sink_score
    )


def mean_over_rows(
    values: Float[Tensor, "heads query"], rows: Bool[Tensor, "heads query"]
) -> PerHead:
    """The mean over the selected rows; NaN where there are fewer than MIN_ROWS."""
    count = rows.sum(-1)
    mean = torch.where(rows, values, 0).sum(-1) / count
    return torch.where(count >= MIN_ROWS, mean, math.nan)


def score_mass(
    attention: SinkFreeAttention, mass: Float[Tensor, "heads query"], share: Float[Tensor, " query"]
) -> PatternScore:
    """The mean mass over the rows in which the pattern covers some but not all visible keys."""
    rows = attention.rows & (share > 0) & (share < 1)
    return PatternScore(mean_over_rows(mass, rows), mean_over_rows(share.expand_as(mass), rows))


def score_pattern(attention: SinkFreeAttention, pattern: Pattern) -> PatternScore:
    """The mean attention mass on the keys of a pattern."""
    pattern = pattern & attention.visible
    share = pattern.sum(-1).double() / attention.visible.sum(-1).clamp(min=1)
    return score_mass(attention, (attention.weights * pattern).sum(-1), share)


# ----------------------------------------------------------------------------------- the patterns


def score_offset(attention: SinkFreeAttention, offset: int) -> PatternScore:
    """j = i + offset: the previous token at −1, the next at 1, the token itself at 0. Only this
    diagonal is read, not the whole map."""
    queries, keys = attention.visible.shape
    first = max(0, -offset)
    last = min(queries, keys - offset)
    mass = torch.zeros_like(attention.rows, dtype=torch.double)
    visible = torch.zeros(queries, dtype=torch.double)
    if first < last:
        mass[:, first:last] = attention.weights.diagonal(offset, 1, 2)
        visible[first:last] = attention.visible.diagonal(offset).double()
    return score_mass(attention, mass, visible / attention.visible.sum(-1).clamp(min=1))


def duplicate_pattern(ids: Int[Tensor, " time"]) -> Pattern:
    """j with token_j = token_i, j ≠ i."""
    return (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool)


def induction_pattern(ids: Int[Tensor, " time"]) -> Pattern:
    """j with token_{j−1} = token_i, but neither i itself nor the token after it."""
    after = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    after[:, 1:] = ids[:, None] == ids[:-1]
    itself = torch.eye(len(ids), dtype=torch.bool)
    return after & ~itself & ~itself.roll(1, dims=1)


def marked_keys_pattern(columns: Bool[Tensor, " key"], *, queries: int, cross: bool) -> Pattern:
    """The marked keys, excluding the query's own position in self-attention."""
    pattern = columns.expand(queries, -1)
    return pattern if cross else pattern & ~torch.eye(queries, dtype=torch.bool)


def score_breadth(attention: SinkFreeAttention) -> PatternScore:
    """exp(entropy) / visible keys: the effective share of keys attended to; 1 for uniform
    attention. 0.5 is taken as the chance level."""
    count = attention.visible.sum(-1)
    entropy = -torch.special.xlogy(attention.weights, attention.weights).sum(-1)
    value = mean_over_rows(entropy.exp() / count.clamp(min=1), attention.rows & (count >= 4))
    return PatternScore(value, torch.full_like(value, 0.5))


def score_monotone(attention: SinkFreeAttention) -> PatternScore:
    """How monotonically a head moves through the source: max(0, ρ) · min(1, σ / σ_even).

    c_i = Σ_j w_ij j is the mean key position of row i, ρ the rank correlation of c_i with i, σ the
    standard deviation of c, and σ_even that of a uniform walk from the first visible key to the
    last. Chance is the mean of the same quantity over random row orders.
    """
    scores = torch.full((2, attention.rows.shape[0]), math.nan).double()
    generator = torch.Generator().manual_seed(0)
    keys = torch.arange(attention.visible.shape[1]).double()
    for head, rows in enumerate(attention.rows):
        if int(rows.sum()) >= MIN_ROWS:
            visible = keys[attention.visible[rows].any(0)]
            centres = attention.weights[head, rows] @ keys
            length = float(visible[-1] - visible[0])
            shuffled = [
                monotonicity(centres[torch.randperm(len(centres), generator=generator)], length)
                for _ in range(SHUFFLES)
            ]
            scores[:, head] = torch.tensor(
                [monotonicity(centres, length), sum(shuffled) / SHUFFLES]
            )
    return PatternScore(scores[0], scores[1])


def monotonicity(centres: Float[Tensor, " query"], length: float) -> float:
    """max(0, ρ) · min(1, σ / σ_even)"""
    steady = torch.linspace(0, length, len(centres)).double()
    ranks = centres.argsort(stable=True).argsort(stable=True).double()
    order = float(torch.corrcoef(torch.stack((ranks, steady)))[0, 1]) if length else 0.0
    return max(0.0, order) * min(1.0, float(centres.std() / steady.std().clamp(min=1e-12)))
