"""How much of a head's attention lies where a pattern says, beside what evenly spread attention
would put there.

    left   = weights without the sink, each row made to sum to 1 again
    value  = mean over rows of  Σ_{j in pattern} left_ij
    chance = mean over rows of  |pattern_i| / |visible_i|     as uniform attention would give
    confidence = (value − chance) / (1 − chance), at least 0

Every function takes the weights of one layer, `[heads, query, key]`, and gives a number for each
head; NaN where too few rows can say.
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

LEFT = 0.01  # a row with less of its mass beside the sink says nothing
SPEAKING = 0.25  # a head that speaks in fewer of its rows is judged by its sink alone
ROWS = 3  # the fewest rows that make a score
SHUFFLES = 32  # of the rows, for the order that chance would find


@dataclass(frozen=True, slots=True)
class Measured:
    """A score for each head and what uniform attention would have scored."""

    value: PerHead
    chance: PerHead

    @property
    def confidence(self) -> PerHead:
        """The part of the way from chance to certainty, 0 to 1."""
        return ((self.value - self.chance) / (1 - self.chance).clamp(min=1e-6)).clamp(0, 1)


@dataclass(frozen=True, slots=True)
class Left:
    """Attention without its sink. `rows` are the queries that each head can be judged by, `sink`
    the mass that was taken out."""

    weights: Weights
    visible: Pattern
    rows: Bool[Tensor, "heads query"]
    sink: Measured


def without_sink(
    weights: Weights, visible: Pattern, sink: Bool[Tensor, " key"], asked: Bool[Tensor, " query"]
) -> Left:
    """Take the sink's columns out. What a learned sink swallowed, and no key got, is sink as
    well."""
    kept = visible & ~sink
    choice = asked & (kept.sum(-1) >= 2)
    masked = weights.double() * kept
    mass = masked.sum(-1)  # [heads, query]
    rows = choice & (mass >= LEFT)
    rows = rows & (rows.sum(-1, keepdim=True) >= SPEAKING * choice.sum())
    share = (visible & sink).sum(-1) / visible.sum(-1).clamp(min=1)
    taken = Measured(
        averaged(1 - mass, choice.expand_as(mass)),
        averaged(share.expand_as(mass).double(), choice.expand_as(mass)),
    )
    return Left(masked / mass[..., None].clamp(min=1e-12), kept, rows, taken)


def averaged(values: Float[Tensor, "heads query"], rows: Bool[Tensor, "heads query"]) -> PerHead:
    """The mean over the rows, NaN where there are too few."""
    count = rows.sum(-1)
    mean = torch.where(rows, values, 0).sum(-1) / count
    return torch.where(count >= ROWS, mean, math.nan)


def judged(
    left: Left, mass: Float[Tensor, "heads query"], share: Float[Tensor, " query"]
) -> Measured:
    """The mean mass over the rows where a head has a choice: where the pattern is neither nothing
    nor everything."""
    rows = left.rows & (share > 0) & (share < 1)
    return Measured(averaged(mass, rows), averaged(share.expand_as(mass), rows))


def on_pattern(left: Left, pattern: Pattern) -> Measured:
    """Mass on the keys of a pattern."""
    pattern = pattern & left.visible
    share = pattern.sum(-1).double() / left.visible.sum(-1).clamp(min=1)
    return judged(left, (left.weights * pattern).sum(-1), share)


# ----------------------------------------------------------------------------------- the patterns


def at_offset(left: Left, offset: int) -> Measured:
    """j = i + offset: the previous token at −1, the next at 1, the token itself at 0. Only this
    diagonal is read."""
    queries, keys = left.visible.shape
    first = max(0, -offset)
    last = min(queries, keys - offset)
    mass = torch.zeros_like(left.rows, dtype=torch.double)
    seen = torch.zeros(queries, dtype=torch.double)
    if first < last:
        mass[:, first:last] = left.weights.diagonal(offset, 1, 2)
        seen[first:last] = left.visible.diagonal(offset).double()
    return judged(left, mass, seen / left.visible.sum(-1).clamp(min=1))


def duplicates(ids: Int[Tensor, " time"]) -> Pattern:
    """j with token_j = token_i, j ≠ i."""
    return (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool)


def inductions(ids: Int[Tensor, " time"]) -> Pattern:
    """j with token_{j−1} = token_i, but neither i itself nor the token after it."""
    after = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    after[:, 1:] = ids[:, None] == ids[:-1]
    itself = torch.eye(len(ids), dtype=torch.bool)
    return after & ~itself & ~itself.roll(1, dims=1)


def others(columns: Bool[Tensor, " key"], *, queries: int, cross: bool) -> Pattern:
    """The marked keys, but a token itself is none of them."""
    pattern = columns.expand(queries, -1)
    return pattern if cross else pattern & ~torch.eye(queries, dtype=torch.bool)


def broad(left: Left) -> Measured:
    """exp(entropy) / visible keys: the share of the keys that is really looked at; 1 when all are
    alike, and half is no breadth."""
    count = left.visible.sum(-1)
    entropy = -torch.special.xlogy(left.weights, left.weights).sum(-1)
    value = averaged(entropy.exp() / count.clamp(min=1), left.rows & (count >= 4))
    return Measured(value, torch.full_like(value, 0.5))


def monotone(left: Left) -> Measured:
    """How far a head walks through the source in the order of the text,  max(0, ρ) · min(1, σ /
    σ_even).

    c_i = Σ_j left_ij j is where row i looks on average, ρ the rank correlation of c_i with i, σ the
    spread of c, and σ_even that of a steady walk from the first visible key to the last. Chance is
    the mean of the same over rows in random order.
    """
    found = torch.full((2, left.rows.shape[0]), math.nan).double()
    drawn = torch.Generator().manual_seed(0)
    keys = torch.arange(left.visible.shape[1]).double()
    for head, rows in enumerate(left.rows):
        if int(rows.sum()) >= ROWS:
            seen = keys[left.visible[rows].any(0)]
            centres = left.weights[head, rows] @ keys
            length = float(seen[-1] - seen[0])
            shuffled = [
                walk(centres[torch.randperm(len(centres), generator=drawn)], length)
                for _ in range(SHUFFLES)
            ]
            found[:, head] = torch.tensor([walk(centres, length), sum(shuffled) / SHUFFLES])
    return Measured(found[0], found[1])


def walk(centres: Float[Tensor, " query"], length: float) -> float:
    """max(0, ρ) · min(1, σ / σ_even)"""
    steady = torch.linspace(0, length, len(centres)).double()
    ranks = centres.argsort(stable=True).argsort(stable=True).double()
    order = float(torch.corrcoef(torch.stack((ranks, steady)))[0, 1]) if length else 0.0
    return max(0.0, order) * min(1.0, float(centres.std() / steady.std().clamp(min=1e-12)))
