"""Which head of one model is which of another: heads have no fixed order, so they are matched by
where they look and what they say.

    JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2      in bits, mean over the rows: 0 for the same
                                                       map, 1 for nothing in common

    cost     = JS + ½ (1 − max(0, cos θ))              θ is between what the two say, where their
                                                       vectors have the same size

What they say tells apart heads that look alike, as near copies of one model have many. The
assignment is the one whose sum of costs is smallest, within a layer, or over all layers where the
models have other shapes.
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
AT_HOME = 1e-6  # bits by which a head is preferred at its own place, where several look alike
ANSWER = 0.5  # what heads say counts half of where they look
ROWS = 64  # of a map, where all layers are compared with all


@dataclass(frozen=True, slots=True)
class HeadChange:
    """A head of a, its counterpart in b, and how they differ: in where they look (`divergence`,
    bits) and in what they say before the output projection (`answer`, |b − a| / max(|a|, |b|); None
    where the vectors have other sizes)."""

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
        """The larger of both."""
        return max(self.divergence, self.answer or 0.0)

    @property
    def moved(self) -> bool:
        """Whether it was found at another place."""
        return (self.layer, self.head) != (self.to_layer, self.to_head)

    @property
    def place(self) -> str:
        return f"{self.stack} layer {self.layer}" + (" cross-attention" if self.cross else "")

    def __str__(self) -> str:
        said = "" if self.answer is None else f", answer {self.answer:.3f} apart"
        found = f" → layer {self.to_layer} head {self.to_head}" if self.moved else ""
        return f"{self.place} head {self.head}{found}: map {self.divergence:.3f} bits apart{said}"


class Pairs:
    """Heads of a and heads of b that may be each other's counterpart, and what was summed over the
    texts."""

    def __init__(
        self,
        kind: tuple[str, bool],
        ours: list[tuple[int, int]],
        theirs: list[tuple[int, int]],
        *,
        one_layer: bool,
    ) -> None:
        self.kind = kind
        self.ours = ours
        self.theirs = theirs
        self.one_layer = one_layer
        self.rows = 0
        self.apart = torch.zeros(len(ours), len(theirs), dtype=torch.float64)
        self.dot = torch.zeros_like(self.apart)
        self.comparable = True
        self.squares = (
            torch.zeros(len(ours), dtype=torch.float64),
            torch.zeros(len(theirs), dtype=torch.float64),
        )

    def add(self, a: Trace, b: Trace, edited: Maps) -> None:
        """What one text tells."""
        rows = self._rows(a)
        p = self._maps(a, self.ours, rows, {})
        q = self._maps(b, self.theirs, rows, edited)
        self.apart += divergences(p, q)
        self.rows += len(rows)
        x = self._answers(a, self.ours)
        y = self._answers(b, self.theirs)
        self.comparable &= x.shape[-1] == y.shape[-1]
        if self.comparable:
            self.dot += x @ y.T
            self.squares[0].add_(x.square().sum(-1))
            self.squares[1].add_(y.square().sum(-1))

    def _site(self, layer: int) -> Site:
        return self.kind[0], layer, self.kind[1]

    def _rows(self, trace: Trace) -> list[int]:
        """The rows in which there is a choice: a token that sees itself alone tells nothing."""
        choices = trace.looks[self._site(self.ours[0][0])].scoring.mask.allowed()[0, 0].sum(-1)
        rows = [row for row, count in enumerate(choices.tolist()) if count > 1] or list(
            range(len(choices))
        )
        return rows if self.one_layer else rows[:: math.ceil(len(rows) / ROWS)]

    def _maps(
        self, trace: Trace, heads: list[tuple[int, int]], rows: list[int], edited: Maps
    ) -> Float[Tensor, "heads rows keys"]:
        """The maps of these heads, of all layers one after the other; as an edit left them, where
        there was one."""
        found: list[Tensor] = []
        for layer in dict(heads):
            place = self.kind[0], layer, "cross_weights" if self.kind[1] else "weights"
            found.append(
                edited[place][0][:, rows]
                if place in edited
                else trace.looks[self._site(layer)].weights(rows=rows)
            )
        return torch.cat(found).double()

    def _answers(
        self, trace: Trace, heads: list[tuple[int, int]]
    ) -> Float[Tensor, "heads numbers"]:
        """What these heads say, a row for each."""
        name = "cross_heads" if self.kind[1] else "heads"
        return torch.cat(
            [trace.kept[self.kind[0], layer, name].flatten(1) for layer in dict(heads)]
        ).double()

    def cost(self) -> Float[Tensor, "ours theirs"]:
        """JS + ½ (1 − max(0, cos θ)), and a hair for another place, so that of heads that are the
        same each stays where it is."""
        away = torch.tensor(
            [[AT_HOME * (one != other) for other in self.theirs] for one in self.ours],
            dtype=torch.float64,
        )
        lengths = (self.squares[0][:, None] * self.squares[1][None]).sqrt()
        cosine = (self.dot / lengths.clamp(min=1e-30)).clamp(0, 1)
        return (
            self.apart / max(1, self.rows)
            + away
            + (ANSWER * (1 - cosine) if self.comparable else 0)
        )

    def matched(self) -> tuple[list[HeadChange], list[HeadName], list[HeadName]]:
        """Each head with its counterpart, and those of either side that have none."""
        from scipy.optimize import (
            linear_sum_assignment,
        )  # a quarter of a second, for those who compare models

        pairs = sorted(
            zip(
                *(side.tolist() for side in linear_sum_assignment(self.cost().numpy())), strict=True
            )
        )
        squares = self.squares[0][:, None] + self.squares[1][None] - 2 * self.dot
        said = distance(squares, torch.maximum(self.squares[0][:, None], self.squares[1][None]))
        apart = self.apart / max(1, self.rows)
        answers = said.tolist() if self.comparable else [[None] * len(self.theirs)] * len(self.ours)
        changes = [
            self._change(self.ours[i], self.theirs[j], float(apart[i, j]), answers[i][j])
            for i, j in pairs
        ]
        name = self.kind[0] + (" cross" if self.kind[1] else "")
        alone = [
            [(name, *heads[n]) for n in range(len(heads)) if n not in taken]
            for heads, taken in self._sides(pairs)
        ]
        return changes, alone[0], alone[1]

    def _change(
        self, ours: tuple[int, int], theirs: tuple[int, int], apart: float, said: float | None
    ) -> HeadChange:
        (stack, cross), (layer, head), (to_layer, to_head) = self.kind, ours, theirs
        return HeadChange(stack, layer, head, cross, to_layer, to_head, apart, said)

    def _sides(self, pairs: list[tuple[int, int]]) -> list[tuple[list[tuple[int, int]], set[int]]]:
        return [(self.ours, {i for i, _ in pairs}), (self.theirs, {j for _, j in pairs})]


def divergences(
    p: Float[Tensor, "ours rows keys"], q: Float[Tensor, "theirs rows keys"]
) -> Float[Tensor, "ours theirs"]:
    """JS of every map of one side with every map of the other, summed over the rows, in bits."""
    ours = torch.special.entr(p).sum(-1)
    theirs = torch.special.entr(q).sum(-1)
    both = [torch.special.entr((one + q) / 2).sum(-1) for one in p]
    apart = [
        (mixed - (own + theirs) / 2).clamp(min=0).sum(-1)
        for mixed, own in zip(both, ours, strict=True)
    ]
    return torch.stack(apart) / math.log(2)


def distance(squared: Tensor, largest: Tensor) -> Tensor:
    """√(squared / largest), 0 where there is nothing; what is left of equal vectors after rounding
    counts as nothing."""
    share = squared.clamp(min=0) / largest.clamp(min=torch.finfo(largest.dtype).tiny)
    return torch.where(share > 1e-14, share, torch.zeros_like(share)).sqrt()


def pairs_of(a: Subject, b: Subject) -> list[Pairs]:
    """Which heads may be each other's counterpart: those of a layer, or of all layers of a kind if
    the models have other shapes."""
    ours = heads_of(a)
    theirs = heads_of(b)
    if ours == theirs:
        return [
            Pairs((stack, cross), heads, heads, one_layer=True)
            for (stack, _, cross), heads in ours.items()
        ]
    kinds = [{(stack, cross): None for stack, _, cross in side} for side in (ours, theirs)]
    if not kinds[0].keys() & kinds[1].keys():
        stacks = [" and ".join(x.running.config.stacks) for x in (a, b)]
        seen = f"{a.name}, which has {stacks[0]} only, and {b.name}, which has {stacks[1]} only"
        raise InputError(
            seen,
            expected="models with a stack in common",
            fix="compare two decoders, or two encoders",
        )
    return [
        Pairs(kind, joined(ours, kind), joined(theirs, kind), one_layer=False)
        for kind in kinds[0]
        if kind in kinds[1]
    ]


def heads_of(subject: Subject) -> dict[Site, list[tuple[int, int]]]:
    """The heads of each attention layer, as (layer, head)."""
    found: dict[Site, list[tuple[int, int]]] = {}
    for site in sites_of(subject.running):
        block = subject.running.config.stacks[site[0]].block(site[1])
        form = block.cross_attention if site[2] else block.attention
        assert form is not None
        found[site] = [(site[1], head) for head in range(form.heads)]
    return found


def joined(
    heads: dict[Site, list[tuple[int, int]]], kind: tuple[str, bool]
) -> list[tuple[int, int]]:
    """Those of all layers of a kind."""
    return [
        head for (stack, _, cross), some in heads.items() if (stack, cross) == kind for head in some
    ]
