"""∫ of a gradient along the straight path from a baseline to a text's embeddings, as exactly as is
asked for.

    ∫ₐᵇ ∂f/∂x (x' + t (x − x')) · (x − x') dt = f(b) − f(a)

That is not hoped for but used: over a stretch of the path the integral must be the difference of f
at its ends, so the stretch that misses most is cut in two until all of them together miss less than
the tolerance. A deep model with norms and without biases changes its mind at every scale from zero
on, however small, so near zero the cuts are even in the logarithm, and what cannot be integrated
below `NEAREST` is left out: the path then `begins` that close to the baseline, and the sum is f(x)
− f(there).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Embeddings = dict[
    str, Tensor
]  # by stack, [time, width]; a batch of them where several are asked at once
NODES = 8  # of Gauss and Legendre, in each stretch
FIRST = (0.0, 1 / 64, 1 / 8, 1.0)  # where the path is cut at first
NEAREST = 2.0**-14
AT_ONCE = 512  # tokens whose gradients are in memory at once


class Differentiable(Protocol):
    """f, with its gradient, for a batch of embeddings; `inputs` are those of the text."""

    @property
    def inputs(self) -> Embeddings: ...
    def __call__(self, embeddings: Embeddings, /) -> Float[Tensor, " batch"]: ...
    def gradients(
        self, embeddings: Embeddings, /
    ) -> tuple[Embeddings, Float[Tensor, " batch"]]: ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the path: the integral of the gradient over it, and what its sum misses of f's
    difference."""

    start: float
    end: float
    integral: Embeddings
    gap: float


@dataclass(slots=True)
class Path:
    """The straight line from the baseline to the text's embeddings, cut where that is needed."""

    aim: Differentiable
    start: Embeddings
    change: Embeddings = field(init=False)
    values: dict[float, float] = field(
        default_factory=dict[float, float]
    )  # f at the ends of stretches
    stretches: list[Stretch] = field(default_factory=list[Stretch])
    gradients: int = 0
    begins: float = 0.0

    def __post_init__(self) -> None:
        self.change = {stack: x - self.start[stack] for stack, x in self.aim.inputs.items()}
        self.stretches = [self.stretch(start, end) for start, end in pairwise(FIRST)]

    def refine(self, tolerance: float, most: int) -> None:
        """Cut the worst stretch until all is well, or the gradients are used up."""
        while self.gradients + 2 * NODES <= most and sum(
            part.gap for part in self.stretches
        ) > self.allowed(tolerance):
            worst = max(self.stretches, key=lambda part: part.gap)
            self.stretches.remove(worst)
            if worst.start == 0 and worst.end <= NEAREST:
                self.begins = worst.end
                continue
            middle = cut(worst.start, worst.end)
            self.stretches += [self.stretch(worst.start, middle), self.stretch(middle, worst.end)]

    def stretch(self, start: float, end: float) -> Stretch:
        """∫ of the gradient from start to end, by Gauss's rule."""
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        places = [start + (end - start) * (node + 1) / 2 for node in nodes.tolist()]
        integral = {stack: torch.zeros_like(x) for stack, x in self.change.items()}
        at_once = max(1, AT_ONCE // sum(len(x) for x in self.change.values()))
        for first in range(0, NODES, at_once):
            some = places[first : first + at_once]
            gradients, _ = self.aim.gradients(self.points(some))
            share = torch.tensor(weights[first : first + at_once] * (end - start) / 2)
            for stack, gradient in gradients.items():
                integral[stack] += torch.einsum("n,ntw->tw", share.to(gradient), gradient)
        self.gradients += NODES
        found = float(sum((integral[stack] * x).double().sum() for stack, x in self.change.items()))
        return Stretch(start, end, integral, abs(found - (self.value(end) - self.value(start))))

    def points(self, places: list[float]) -> Embeddings:
        """x' + a (x − x') for some a."""
        return {
            stack: torch.stack([self.start[stack] + place * x for place in places])
            for stack, x in self.change.items()
        }

    @torch.no_grad()
    def value(self, place: float) -> float:
        """f at a place of the path."""
        if place not in self.values:
            self.values[place] = float(self.aim(self.points([place])))
        return self.values[place]

    @property
    def difference(self) -> float:
        return self.values[1.0] - self.values[self.begins]

    def allowed(self, tolerance: float) -> float:
        return tolerance * max(1.0, abs(self.difference))

    def integral(self) -> Embeddings:
        """Over the whole path."""
        parts = [part.integral for part in self.stretches]
        return {stack: torch.stack([part[stack] for part in parts]).sum(0) for stack in self.change}


def cut(start: float, end: float) -> float:
    """Where to cut: evenly, but near zero evenly in the logarithm."""
    if start == 0:
        return end / 16
    return math.sqrt(start * end) if end > 4 * start else (start + end) / 2
