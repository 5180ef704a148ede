"""The building blocks of an explanation: dimensions, weights, equations with shapes, sections.

Counts follow from these: the parameters of a model are the weights in its equations, and its FLOPs
are the matrix products in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Dimension:
    """One axis: its symbol in the papers and its size. `h * d_k` is the axis `h·d_k`."""

    symbol: str
    size: int

    def __mul__(self, other: Dimension) -> Dimension:
        return Dimension(f"{self.symbol}·{other.symbol}", self.size * other.size)


Shape = tuple[Dimension, ...]


def symbol_text(shape: Shape) -> str:
    """`[h, T, d_k]`"""
    return "[" + ", ".join(axis.symbol for axis in shape) + "]"


def size_text(shape: Shape) -> str:
    """`12 × 1024 × 64`"""
    return " × ".join(str(axis.size) for axis in shape)


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter: its symbol (W_Q), the part it belongs to, its path in the model, and its shape
    as in the papers (x W).

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


Definition = tuple[str, str]  # a symbol and its meaning


@dataclass(frozen=True, slots=True)
class Line:
    """One equation, the shape of its left side, the weights it introduces, and its FLOPs (two per
    multiply-add).

    `flops` counts the pairs that a mask allows, `square_flops` all pairs; `where` defines symbols
    of the equation; `reuses` is "tied" or "shared" where it uses a matrix introduced earlier.
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
    """The equations of one sub-layer. `block` is its index in the repeating pattern; `times` is the
    number of layers that use it."""

    stack: str
    name: str
    lines: tuple[Line, ...]
    block: int | None = None
    times: int = 1

    @property
    def dimensions(self) -> dict[str, int]:
        """Every symbol in the shapes and weights of this section, and its size."""
        shapes = [line.shape for line in self.lines] + [
            weight.shape for line in self.lines for weight in line.weights
        ]
        return {
            axis.symbol: axis.size for shape in shapes for axis in shape if "·" not in axis.symbol
        }
