"""Numbers in columns: a vector, a matrix or one matrix per head, cut and set side by side so that
they fit a width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sightline.explain.block.steps import Values

BETWEEN = 2  # columns between panels


@dataclass(frozen=True, slots=True)
class Panel:
    """A matrix, or some columns of it, as text; `cell` is the width of a number."""

    title: str
    values: list[list[float]]
    cell: int
    signed: bool

    @property
    def rows(self) -> list[list[str]]:
        return [[number_text(value, signed=self.signed) for value in row] for row in self.values]

    @property
    def columns(self) -> int:
        return len(self.values[0])

    @property
    def width(self) -> int:
        return self.columns * self.cell

    def split(self, columns: int) -> list[Panel]:
        """The panel in pieces of so many columns."""
        return [
            Panel(
                f"{self.title} columns {start + 1}–{start + columns}".strip(),
                [row[start : start + columns] for row in self.values],
                self.cell,
                self.signed,
            )
            for start in range(0, self.columns, columns)
        ]


def panels_of(values: Values) -> list[Panel]:
    """One panel for a vector or a matrix, one per head for a stack of matrices."""
    matrices = panel_matrices(values)
    numbers = [value for _, matrix in matrices for row in matrix for value in row]
    signed = any(value < 0 and math.isfinite(value) for value in numbers)
    cell = 2 + max(len(number_text(value, signed=signed)) for value in numbers)
    return [Panel(title, matrix, cell, signed) for title, matrix in matrices]


def panel_matrices(values: Values) -> list[tuple[str, list[list[float]]]]:
    """Titles and matrices: a vector is a matrix of one row."""
    if not isinstance(values[0], list):
        return [("", [values])]
    if not isinstance(values[0][0], list):
        return [("", values)]
    return [(f"head {n}", matrix) for n, matrix in enumerate(values, 1)]


def number_text(value: float, *, signed: bool) -> str:
    """+0.123, −∞; without a sign where no number of a step is negative."""
    if math.isinf(value):
        return "−∞"
    rounded = round(value, 3) + 0.0  # no −0
    return f"{rounded:+.3f}" if signed else f"{rounded:.3f}"


def arrange(panels: list[Panel], width: int) -> list[list[Panel]]:
    """Bands of panels side by side, each as wide as fits; a panel that is too wide is cut into
    equal pieces."""
    fit = max((width - BETWEEN) // panels[0].cell, 1)
    pieces = [
        piece
        for panel in panels
        for piece in (
            [panel] if panel.columns <= fit else panel.split(largest_part(panel.columns, fit))
        )
    ]
    side_by_side = max(width // (pieces[0].width + BETWEEN), 1)
    return [pieces[n : n + side_by_side] for n in range(0, len(pieces), side_by_side)]


def largest_part(whole: int, most: int) -> int:
    """The largest divisor of `whole` up to `most`."""
    return next(part for part in range(most, 0, -1) if whole % part == 0)
