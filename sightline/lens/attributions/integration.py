"""Adaptive integration of a gradient along the straight path from a baseline to a text's
embeddings.

    ∫ₐᵇ ∂f/∂x (x' + t (x − x')) · (x − x') dt = f(b) − f(a)

This identity gives the error of every segment of the path: its integral must equal the difference
of f at its ends. The segment with the largest error is split until the total error is within the
tolerance. A deep model with norms and without biases varies at every scale near zero, so segments
near zero are split geometrically, and what cannot be integrated below `SMALLEST_STEP` is left out:
the path then `begins` that close to the baseline, and the sum is f(x) − f(start of the path).
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

Embeddings = dict[str, Tensor]  # by stack: [time, width], or a batch of these
NODES = 8  # Gauss–Legendre nodes per segment
INITIAL_CUTS = (0.0, 1 / 64, 1 / 8, 1.0)  # the first segments' ends
SMALLEST_STEP = 2.0**-14
MAX_TOKENS_PER_BATCH = 512  # per batch of gradients


class Differentiable(Protocol):
    """f and its gradient for a batch of embeddings; `inputs` are the text's embeddings."""

    @property
    def inputs(self) -> Embeddings: ...
    def __call__(self, embeddings: Embeddings, /) -> Float[Tensor, " batch"]: ...
    def gradients(
        self, embeddings: Embeddings, /
    ) -> tuple[Embeddings, Float[Tensor, " batch"]]: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the path: the integral of the gradient, and its error against the difference of
    f."""

    start: float
    end: float
    integral: Embeddings
    gap: float


@dataclass(slots=True)
class IntegrationPath:
    """The straight line from the baseline to the text's embeddings, in segments that are refined
    adaptively."""

    target: Differentiable
    start: Embeddings
    change: Embeddings = field(init=False)
    values: dict[float, float] = field(
        default_factory=dict[float, float]
    )  # f at the ends of segments
    segments: list[Segment] = field(default_factory=list[Segment])
    gradients: int = 0
    begins: float = 0.0

    def __post_init__(self) -> None:
        self.change = {stack: x - self.start[stack] for stack, x in self.target.inputs.items()}
        self.segments = [self.segment(start, end) for start, end in pairwise(INITIAL_CUTS)]

    def refine(self, tolerance: float, max_gradients: int) -> None:
        """Split the segment with the largest error until the tolerance or `max_gradients` is
        reached."""
        while self.gradients + 2 * NODES <= max_gradients and sum(
            part.gap for part in self.segments
        ) > self.allowed(tolerance):
            worst = max(self.segments, key=lambda part: part.gap)
            self.segments.remove(worst)
            if worst.start == 0 and worst.end <= SMALLEST_STEP:
                self.begins = worst.end
                continue
            middle = split_point(worst.start, worst.end)
            self.segments += [self.segment(worst.start, middle), self.segment(middle, worst.end)]

    def segment(self, start: float, end: float) -> Segment:
        """The integral from start to end, by Gauss–Legendre quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        places = [start + (end - start) * (node + 1) / 2 for node in nodes.tolist()]
        integral = {stack: torch.zeros_like(x) for stack, x in self.change.items()}
        batch_size = max(1, MAX_TOKENS_PER_BATCH // sum(len(x) for x in self.change.values()))
        for first in range(0, NODES, batch_size):
            batch = places[first : first + batch_size]
            gradients, _ = self.target.gradients(self.points(batch))
            share = torch.tensor(weights[first : first + batch_size] * (end - start) / 2)
            for stack, gradient in gradients.items():
                integral[stack] += torch.einsum("n,ntw->tw", share.to(gradient), gradient)
        self.gradients += NODES
        total = float(sum((integral[stack] * x).double().sum() for stack, x in self.change.items()))
        return Segment(start, end, integral, abs(total - (self.value(end) - self.value(start))))

    def points(self, places: list[float]) -> Embeddings:
        """x' + a (x − x') for each a of `places`."""
        return {
            stack: torch.stack([self.start[stack] + place * x for place in places])
            for stack, x in self.change.items()
        }

    @torch.no_grad()
    def value(self, place: float) -> float:
        """f at a point of the path."""
        if place not in self.values:
            self.values[place] = float(self.target(self.points([place])))
        return self.values[place]

    @property
    def difference(self) -> float:
        return self.values[1.0] - self.values[self.begins]

    def allowed(self, tolerance: float) -> float:
        return tolerance * max(1.0, abs(self.difference))

    def integral(self) -> Embeddings:
        """The integral over the whole path."""
        parts = [part.integral for part in self.segments]
        return {stack: torch.stack([part[stack] for part in parts]).sum(0) for stack in self.change}


def split_point(start: float, end: float) -> float:
    """Where to split a segment: in the middle, near zero at the geometric mean."""
    if start == 0:
        return end / 16
    return math.sqrt(start * end) if end > 4 * start else (start + end) / 2
