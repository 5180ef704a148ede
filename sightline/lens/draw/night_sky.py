"""The sphere in a terminal: light in Braille dots (two by four in a cell), keys as stars, queries
as rings, names where there is room."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from sightline.lens.draw.planetarium import arc
from sightline.lens.draw.view import Array, View

NIGHT = "#0b1020"
RIM = "#3d4a75"
STAR = "#ffd479"
RING = "#7fd1e8"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
FAINT = 0.05
NAMED = 24
LEAST = 0.1
MOST = 96  # cells across


@dataclass(slots=True)
class Sky:
    """A field of cells: dots with the strongest light through each, and signs on top."""

    columns: int
    rows: int
    dots: np.ndarray
    light: np.ndarray
    signs: dict[tuple[int, int], tuple[str, str]] = field(
        default_factory=dict[tuple[int, int], tuple[str, str]]
    )

    def cell(self, point: Array) -> tuple[int, int]:
        """Row and column of a point of the unit disc."""
        x = (float(point[0]) + 1.1) / 2.2
        y = (1.1 - float(point[1])) / 2.2
        return min(self.rows - 1, max(0, int(y * self.rows))), min(
            self.columns - 1, max(0, int(x * self.columns))
        )

    def line(self, points: Array, light: float) -> None:
        """Dots along a curve."""
        x = (points[:, 0] + 1.1) / 2.2 * self.columns * 2
        y = (1.1 - points[:, 1]) / 2.2 * self.rows * 4
        for column, row in zip(x.astype(int).tolist(), y.astype(int).tolist(), strict=True):
            at = row // 4, column // 2
            if 0 <= at[0] < self.rows and 0 <= at[1] < self.columns:
                self.dots[at] |= DOTS[row % 4][column % 2]
                self.light[at] = max(self.light[at], light)

    def write(self, at: tuple[int, int], text: str, style: str) -> bool:
        """A name right of a cell, if nothing is written there."""
        from_column = at[1] + 2
        to_column = at[1] + 2 + cell_len(text)
        if to_column > self.columns or any(
            (at[0], n) in self.signs for n in range(from_column - 1, to_column)
        ):
            return False
        column = from_column
        for letter in text:
            self.signs[at[0], column] = letter, style
            for more in range(1, cell_len(letter)):
                self.signs[at[0], column + more] = "", style
            column += max(1, cell_len(letter))
        return True


def night_sky(view: View, *, width: int, colours: bool) -> list[Text]:
    """The picture, line by line."""
    columns = max(20, min(MOST, width))
    shape = columns // 2, columns
    sky = Sky(columns, columns // 2, np.zeros(shape, dtype=int), np.zeros(shape))
    query = view.extra["query"]
    key = view.extra["key"]
    weights = np.nan_to_num(view.values)
    angle = np.linspace(0, 2 * np.pi, 8 * columns)
    sky.line(np.stack((np.cos(angle), np.sin(angle)), axis=1), 0.0)
    for at, to in sorted(
        np.argwhere(weights >= (FAINT if colours else LEAST)).tolist(),
        key=lambda pair: weights[pair[0], pair[1]],
    ):
        sky.line(arc(query[at], key[to], 4 * columns), float(weights[at, to]))
    for point in query:
        sky.signs[sky.cell(point)] = "○", RING
    for point in key:
        sky.signs[sky.cell(point)] = "✦", STAR
    for n in np.argsort(-weights.sum(0), kind="stable")[:NAMED]:
        sky.write(sky.cell(key[n]), view.columns[n], STAR)
    return [painted(sky, row, colours) for row in range(sky.rows)]


def painted(sky: Sky, row: int, colours: bool) -> Text:
    """One line of it."""
    line = Text()
    for column in range(sky.columns):
        sign, style = sky.signs.get(
            (row, column),
            (chr(0x2800 + sky.dots[row, column]) if sky.dots[row, column] else " ", ""),
        )
        light = float(sky.light[row, column])
        style = style or (
            RIM
            if light == 0
            else (
                f"#{int(70 + 185 * light):02x}{int(70 + 168 * light):02x}"
                f"{int(80 + 110 * light):02x}"
            )
        )
        line.append(sign, style=f"{style} on {NIGHT}" if colours else "")
    if not colours:
        line.rstrip()
    return line
