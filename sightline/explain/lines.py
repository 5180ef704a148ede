"""What an explanation is made of: dimensions, weights, equations with their shapes, sections.

Everything else follows from these: the parameters of a model are the weights that its equations
name, and its FLOPs are the matrix products in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Dimension:
    """One axis: its letter in the papers and its size here. `h * d_k` is the axis `h·d_k`."""

    symbol: str
    size: int

    def __mul__(self, other: Dimension) -> Dimension:
        return Dimension(f"{self.symbol}·{other.symbol}", self.size * other.size)


Shape = tuple[Dimension, ...]


def symbols(shape: Shape) -> str:
    """`[h, T, d_k]`"""
    return "[" + ", ".join(axis.symbol for axis in shape) + "]"


def sizes(shape: Shape) -> str:
    """`12 × 1024 × 64`"""
    return " × ".join(str(axis.size) for axis in shape)


@dataclass(frozen=True, slots=True)
class Weight:
    """One trained tensor: W_Q, the part it belongs to, its place in the model, and its shape as the
    papers write it (x W).

    `path` is the parameter's name within its stack, or within the model's output for a head; `{n}`
    stands for the layer.
    """

    symbol: str
    part: str
    path: str
    shape: Shape

    @property
    def count(self) -> int:
        return math.prod(axis.size for axis in self.shape)

    @property
    def formula(self) -> str:
        return "·".join(axis.symbol for axis in self.shape)


Definition = tuple[str, str]  # a letter, and what it means


@dataclass(frozen=True, slots=True)
class Line:
    """One equation, the shape of its left side, the weights that it brings in, and two times its
    multiply-adds.

    `flops` counts the pairs that a mask allows, `square_flops` all of them; `where` explains
    letters that stand in the equation; `reuses` is "tied" or "shared" where a line works with a
    matrix that came in before.
    """

    equation: str
    shape: Shape
    weights: tuple[Weight, ...] = field(default=(), kw_only=True)
    part: str = field(default="", kw_only=True)
    flops: int = field(default=0, kw_only=True)
    square_flops: int = field(default=0, kw_only=True)
    where: tuple[Definition, ...] = field(default=(), kw_only=True)
    reuses: str = field(default="", kw_only=True)

    @property
    def count(self) -> int:
        return sum(weight.count for weight in self.weights)

    @property
    def counted(self) -> str:
        """`590,592`, `tied`, or nothing."""
        return f"{self.count:,}" if self.count else self.reuses


@dataclass(frozen=True, slots=True)
class Section:
    """The lines of one sub-layer. `block` numbers the pattern that repeats; `times` is how many
    layers follow it."""

    stack: str
    name: str
    lines: tuple[Line, ...]
    block: int | None = None
    times: int = 1

    @property
    def dimensions(self) -> dict[str, int]:
        """Every letter in the shapes and weights of this section, and its size."""
        shapes = [line.shape for line in self.lines] + [
            weight.shape for line in self.lines for weight in line.weights
        ]
        return {
            axis.symbol: axis.size for shape in shapes for axis in shape if "·" not in axis.symbol
        }
