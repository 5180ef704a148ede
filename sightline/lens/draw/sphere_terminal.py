"""The sphere view in a terminal: attention as Braille dots (2 × 4 per cell), keys as stars, queries
as rings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from sightline.lens.draw.sphere_figure import arc
from sightline.lens.draw.view import Array, View

BACKGROUND = "#0b1020"
OUTLINE = "#3d4a75"
KEY_COLOUR = "#ffd479"
QUERY_COLOUR = "#7fd1e8"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
MIN_WEIGHT = 0.05
MAX_NAMES = 24
MIN_WEIGHT_WITHOUT_COLOUR = 0.1
MAX_WIDTH = 96  # cells


@dataclass(slots=True)
class BrailleCanvas:
    """A canvas of cells: Braille dots with the largest weight through each, and characters on
    top."""

    columns: int
    rows: int
    dots: np.ndarray
    weight: np.ndarray
    characters: dict[tuple[int, int], tuple[str, str]] = field(
        default_factory=dict[tuple[int, int], tuple[str, str]]
    )

    def cell(self, point: Array) -> tuple[int, int]:
        """The (row, column) of a point of the unit disc."""
        x = (float(point[0]) + 1.1) / 2.2
        y = (1.1 - float(point[1])) / 2.2
        return min(self.rows - 1, max(0, int(y * self.rows))), min(
            self.columns - 1, max(0, int(x * self.columns))
        )

    def line(self, points: Array, weight: float) -> None:
        """Draw dots along a curve."""
        x = (points[:, 0] + 1.1) / 2.2 * self.columns * 2
        y = (1.1 - points[:, 1]) / 2.2 * self.rows * 4
        for column, row in zip(x.astype(int).tolist(), y.astype(int).tolist(), strict=True):
            at = row // 4, column // 2
            if 0 <= at[0] < self.rows and 0 <= at[1] < self.columns:
                self.dots[at] |= DOTS[row % 4][column % 2]
                self.weight[at] = max(self.weight[at], weight)

    def write(self, at: tuple[int, int], text: str, style: str) -> bool:
        """Write a name to the right of a cell, if there is space."""
        from_column = at[1] + 2
        to_column = at[1] + 2 + cell_len(text)
        if to_column > self.columns or any(
            (at[0], n) in self.characters for n in range(from_column - 1, to_column)
        ):
            return False
        column = from_column
        for letter in text:
            self.characters[at[0], column] = letter, style
            for more in range(1, cell_len(letter)):
                self.characters[at[0], column + more] = "", style
            column += max(1, cell_len(letter))
        return True


def sphere_lines(view: View, *, width: int, colours: bool) -> list[Text]:
    """The sphere as lines of text."""
    columns = max(20, min(MAX_WIDTH, width))
    shape = columns // 2, columns
    canvas = BrailleCanvas(columns, columns // 2, np.zeros(shape, dtype=int), np.zeros(shape))
    query = view.extra["query"]
    key = view.extra["key"]
    weights = np.nan_to_num(view.values)
    angle = np.linspace(0, 2 * np.pi, 8 * columns)
    canvas.line(np.stack((np.cos(angle), np.sin(angle)), axis=1), 0.0)
    for at, to in sorted(
        np.argwhere(weights >= (MIN_WEIGHT if colours else MIN_WEIGHT_WITHOUT_COLOUR)).tolist(),
        key=lambda pair: weights[pair[0], pair[1]],
    ):
        canvas.line(arc(query[at], key[to], 4 * columns), float(weights[at, to]))
    for point in query:
        canvas.characters[canvas.cell(point)] = "○", QUERY_COLOUR
    for point in key:
        canvas.characters[canvas.cell(point)] = "✦", KEY_COLOUR
    for n in np.argsort(-weights.sum(0), kind="stable")[:MAX_NAMES]:
        canvas.write(canvas.cell(key[n]), view.columns[n], KEY_COLOUR)
    return [canvas_line(canvas, row, colours) for row in range(canvas.rows)]


def canvas_line(canvas: BrailleCanvas, row: int, colours: bool) -> Text:
    """One line of the canvas."""
    line = Text()
    for column in range(canvas.columns):
        character, style = canvas.characters.get(
            (row, column),
            (chr(0x2800 + canvas.dots[row, column]) if canvas.dots[row, column] else " ", ""),
        )
        weight = float(canvas.weight[row, column])
        style = style or (
            OUTLINE
            if weight == 0
            else (
                f"#{int(70 + 185 * weight):02x}{int(70 + 168 * weight):02x}"
                f"{int(80 + 110 * weight):02x}"
            )
        )
        line.append(character, style=f"{style} on {BACKGROUND}" if colours else "")
    if not colours:
        line.rstrip()
    return line
