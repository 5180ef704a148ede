"""Matching the heads of two models: heads have no fixed order, so they are paired by their
attention maps and their outputs.

    JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2     in bits, mean over the rows: 0 for the same
                                                      map, 1 for disjoint maps

    cost     = JS + ½ (1 − max(0, cos θ))             θ is the angle between the two outputs, where
                                                      their sizes agree

The outputs distinguish heads with similar maps, which near copies of one model have many of. The
assignment minimizes the total cost, within each layer, or over all layers where the models have
different shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.trace.layer import Site, sites_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace
from sightline.record import Place

Maps = Mapping[Place, Tensor]
HeadName = tuple[str, int, int]  # ("decoder", 3, 0), or ("decoder cross", 3, 0)
SAME_PLACE_BONUS = 1e-6  # bits; among equal candidates a head stays at its own place
OUTPUT_WEIGHT = 0.5  # of the cosine term in the cost
MAX_ROWS = 64  # of each map, where all layers are compared with all


@dataclass(frozen=True, slots=True)
class HeadChange:
    """A head of a, its counterpart in b, and how they differ: in their maps (`divergence`, bits)
    and in their outputs before the output projection (`answer`, |b − a| / max(|a|, |b|); None where
    the vectors differ in size)."""

    stack: str
    layer: int
    head: int
    cross: bool
    to_layer: int
    to_head: int
    divergence: float
    answer: float | None

    @property
    def size(self) -> float:
        """The larger of the two differences."""
        return max(self.divergence, self.answer or 0.0)

    @property
    def moved(self) -> bool:
        """Whether the counterpart is another layer or head."""
        return (self.layer, self.head) != (self.to_layer, self.to_head)

    @property
    def place(self) -> str:
        return f"{self.stack} layer {self.layer}" + (" cross-attention" if self.cross else "")

    def __str__(self) -> str:
        output = "" if self.answer is None else f", output differs by {self.answer:.3f}"
        counterpart = f" → layer {self.to_layer} head {self.to_head}" if self.moved else ""
        map_change = f"map differs by {self.divergence:.3f} bits"
        return f"{self.place} head {self.head}{counterpart}: {map_change}{output}"


class HeadPairs:
    """Candidate heads of a and b, and the sums over texts that their cost is made of."""

    def __init__(
        self,
        kind: tuple[str, bool],
        a_heads: list[tuple[int, int]],
        b_heads: list[tuple[int, int]],
        *,
        one_layer: bool,
    ) -> None:
        self.kind = kind
        self.a_heads = a_heads
        self.b_heads = b_heads
        self.one_layer = one_layer
        self.rows = 0
        self.divergence = torch.zeros(len(a_heads), len(b_heads), dtype=torch.float64)
        self.dot = torch.zeros_like(self.divergence)
        self.comparable = True
        self.squares = (
            torch.zeros(len(a_heads), dtype=torch.float64),
            torch.zeros(len(b_heads), dtype=torch.float64),
        )

    def add(self, a: Trace, b: Trace, edited: Maps) -> None:
        """Add one text to the sums."""
        rows = self._rows(a)
        p = self._maps(a, self.a_heads, rows, {})
        q = self._maps(b, self.b_heads, rows, edited)
        self.divergence += js_divergences(p, q)
        self.rows += len(rows)
        x = self._outputs(a, self.a_heads)
        y = self._outputs(b, self.b_heads)
        self.comparable &= x.shape[-1] == y.shape[-1]
        if self.comparable:
            self.dot += x @ y.T
            self.squares[0].add_(x.square().sum(-1))
            self.squares[1].add_(y.square().sum(-1))

    def _site(self, layer: int) -> Site:
        return self.kind[0], layer, self.kind[1]

    def _rows(self, trace: Trace) -> list[int]:
        """The rows that see more than one key; all rows if there are none."""
        choices = trace.looks[self._site(self.a_heads[0][0])].scoring.mask.allowed()[0, 0].sum(-1)
        rows = [row for row, count in enumerate(choices.tolist()) if count > 1] or list(
            range(len(choices))
        )
        return rows if self.one_layer else rows[:: math.ceil(len(rows) / MAX_ROWS)]

    def _maps(
        self, trace: Trace, heads: list[tuple[int, int]], rows: list[int], edited: Maps
    ) -> Float[Tensor, "heads rows keys"]:
        """The maps of these heads, layers concatenated; the edited maps where there was an edit."""
        maps: list[Tensor] = []
        for layer in dict(heads):
            place = self.kind[0], layer, "cross_weights" if self.kind[1] else "weights"
            maps.append(
                edited[place][0][:, rows]
                if place in edited
                else trace.looks[self._site(layer)].weights(rows=rows)
            )
        return torch.cat(maps).double()

    def _outputs(
        self, trace: Trace, heads: list[tuple[int, int]]
    ) -> Float[Tensor, "heads numbers"]:
        """The outputs of these heads, flattened, one row per head."""
        name = "cross_heads" if self.kind[1] else "heads"
        return torch.cat(
            [trace.kept[self.kind[0], layer, name].flatten(1) for layer in dict(heads)]
        ).double()

    def cost(self) -> Float[Tensor, "ours theirs"]:
        """JS + ½ (1 − max(0, cos θ)), plus a tiny cost for another place, so that identical heads
        keep theirs."""
        away = torch.tensor(
            [[SAME_PLACE_BONUS * (one != other) for other in self.b_heads] for one in self.a_heads],
            dtype=torch.float64,
        )
        lengths = (self.squares[0][:, None] * self.squares[1][None]).sqrt()
        cosine = (self.dot / lengths.clamp(min=1e-30)).clamp(0, 1)
        return (
            self.divergence / max(1, self.rows)
            + away
            + (OUTPUT_WEIGHT * (1 - cosine) if self.comparable else 0)
        )

    def match(self) -> tuple[list[HeadChange], list[HeadName], list[HeadName]]:
        """Each head with its counterpart, and the heads of either side without one."""
        # imported here: scipy takes a quarter of a second
        from scipy.optimize import linear_sum_assignment

        pairs = sorted(
            zip(
                *(side.tolist() for side in linear_sum_assignment(self.cost().numpy())), strict=True
            )
        )
        squares = self.squares[0][:, None] + self.squares[1][None] - 2 * self.dot
        output_distance = relative_distance(
            squares, torch.maximum(self.squares[0][:, None], self.squares[1][None])
        )
        divergence = self.divergence / max(1, self.rows)
        answers = (
            output_distance.tolist()
            if self.comparable
            else [[None] * len(self.b_heads)] * len(self.a_heads)
        )
        changes = [
            self._change(self.a_heads[i], self.b_heads[j], float(divergence[i, j]), answers[i][j])
            for i, j in pairs
        ]
        name = self.kind[0] + (" cross" if self.kind[1] else "")
        alone = [
            [(name, *heads[n]) for n in range(len(heads)) if n not in taken]
            for heads, taken in self._sides(pairs)
        ]
        return changes, alone[0], alone[1]

    def _change(
        self,
        a_head: tuple[int, int],
        b_head: tuple[int, int],
        divergence: float,
        output_distance: float | None,
    ) -> HeadChange:
        (stack, cross), (layer, head), (to_layer, to_head) = self.kind, a_head, b_head
        return HeadChange(stack, layer, head, cross, to_layer, to_head, divergence, output_distance)

    def _sides(self, pairs: list[tuple[int, int]]) -> list[tuple[list[tuple[int, int]], set[int]]]:
        return [(self.a_heads, {i for i, _ in pairs}), (self.b_heads, {j for _, j in pairs})]


def js_divergences(
    p: Float[Tensor, "ours rows keys"], q: Float[Tensor, "theirs rows keys"]
) -> Float[Tensor, "ours theirs"]:
    """JS divergence of every map of p with every map of q, summed over rows, in bits."""
    p_entropy = torch.special.entr(p).sum(-1)
    q_entropy = torch.special.entr(q).sum(-1)
    mixture_entropy = [torch.special.entr((one + q) / 2).sum(-1) for one in p]
    rows = [
        (mixture - (own + q_entropy) / 2).clamp(min=0).sum(-1)
        for mixture, own in zip(mixture_entropy, p_entropy, strict=True)
    ]
    return torch.stack(rows) / math.log(2)


def relative_distance(squared: Tensor, largest: Tensor) -> Tensor:
    """√(squared / largest); 0 for differences within rounding."""
    share = squared.clamp(min=0) / largest.clamp(min=torch.finfo(largest.dtype).tiny)
    return torch.where(share > 1e-14, share, torch.zeros_like(share)).sqrt()


def pairs_of(a: Subject, b: Subject) -> list[HeadPairs]:
    """The candidate pairs: heads of the same layer, or of all layers of a kind if the shapes
    differ."""
    a_heads = heads_by_layer(a)
    b_heads = heads_by_layer(b)
    if a_heads == b_heads:
        return [
            HeadPairs((stack, cross), heads, heads, one_layer=True)
            for (stack, _, cross), heads in a_heads.items()
        ]
    kinds = [{(stack, cross): None for stack, _, cross in side} for side in (a_heads, b_heads)]
    if not kinds[0].keys() & kinds[1].keys():
        stacks = [" and ".join(x.transformer.config.stacks) for x in (a, b)]
        names = f"{a.name}, which has {stacks[0]} only, and {b.name}, which has {stacks[1]} only"
        raise InputError(
            names,
            expected="models with a stack in common",
            fix="compare two decoders, or two encoders",
        )
    return [
        HeadPairs(kind, heads_of_kind(a_heads, kind), heads_of_kind(b_heads, kind), one_layer=False)
        for kind in kinds[0]
        if kind in kinds[1]
    ]


def heads_by_layer(subject: Subject) -> dict[Site, list[tuple[int, int]]]:
    """The heads of each attention layer, as (layer, head)."""
    heads: dict[Site, list[tuple[int, int]]] = {}
    for site in sites_of(subject.transformer):
        block = subject.transformer.config.stacks[site[0]].block(site[1])
        form = block.cross_attention if site[2] else block.attention
        assert form is not None
        heads[site] = [(site[1], head) for head in range(form.heads)]
    return heads


def heads_of_kind(
    heads: dict[Site, list[tuple[int, int]]], kind: tuple[str, bool]
) -> list[tuple[int, int]]:
    """The heads of all layers of one stack and kind of attention."""
    return [
        head for (stack, _, cross), some in heads.items() if (stack, cross) == kind for head in some
    ]
