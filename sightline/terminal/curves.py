"""Curves over each other: in a terminal's dots (⠁ to ⣿, two by four in a character), in letters
where there are no colours, as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from sightline.errors import InputError

COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of Braille, by row and column
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HEIGHT = 16
MARGIN = 9


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through (x, y), with its name."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Frame:
    """The part of the plane that is shown, on so many dots."""

    left: float
    right: float
    low: float
    high: float
    columns: int
    rows: int

    def place(self, x: float, y: float) -> tuple[int, int]:
        """Column and row of a point, the first row being the top."""
        across = (x - self.left) / (self.right - self.left or 1)
        down = (self.high - y) / (self.high - self.low or 1)
        return round(across * (self.columns - 1)), min(
            self.rows - 1, max(0, round(down * (self.rows - 1)))
        )


def frame(curves: Sequence[Curve], columns: int, rows: int) -> Frame:
    """Everything; of many points the highest 2 % are cut, for a loss begins far above where it
    goes."""
    x = [point[0] for curve in curves for point in curve.points]
    y = sorted(point[1] for curve in curves for point in curve.points)
    high = y[-1] if len(y) < 20 else y[int(0.98 * (len(y) - 1))]
    return Frame(min(x), max(x), y[0], high, columns, rows)


def draw(curves: Sequence[Curve], *, width: int, colours: bool, along: str) -> list[Text]:
    """The plot, its axes and its legend."""
    room = max(20, min(120, width - MARGIN - 2))
    across, down = (2, 4) if colours else (1, 1)
    shown = frame(curves, room * across, HEIGHT * down)
    cells = dotted(curves, shown) if colours else lettered(curves, shown)
    lines = list[Text]()
    for row, line in enumerate(cells):
        value = shown.high - (shown.high - shown.low) * row / (HEIGHT - 1)
        label = (
            f"{value:{MARGIN}.4f} │" if row % 5 == 0 or row == HEIGHT - 1 else f"{'':{MARGIN}} │"
        )
        lines.append(Text.assemble(label, *line))
    lines.append(Text(f"{'':{MARGIN}} └{'─' * room}"))
    left = f"{shown.left:.3g}"
    right = f"{shown.right:,.6g} {along}"
    lines.append(Text(f"{'':{MARGIN}}  {left}{right:>{max(1, room - len(left))}}"))
    return [*lines, *legend(curves, colours=colours)]


def legend(curves: Sequence[Curve], *, colours: bool) -> list[Text]:
    """Which line is whose."""
    signs = [("━━ ", colour(n)) if colours else (f"{mark(n)} ", "") for n in range(len(curves))]
    return [
        Text.assemble(f"{'':{MARGIN}}  ", sign, curve.name)
        for sign, curve in zip(signs, curves, strict=True)
    ]


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def mark(number: int) -> str:
    return LETTERS[number % len(LETTERS)]


def dotted(curves: Sequence[Curve], shown: Frame) -> list[list[tuple[str, str]]]:
    """Cells of dots; one that several curves pass has the colour of the last."""
    dots = dict[tuple[int, int], int]()
    styles = dict[tuple[int, int], str]()
    for number, curve in enumerate(curves):
        for column, row in trace(curve, shown):
            cell = row // 4, column // 2
            dots[cell], styles[cell] = dots.get(cell, 0) | DOTS[row % 4][column % 2], colour(number)
    places = [
        [(row, column) for column in range(shown.columns // 2)] for row in range(shown.rows // 4)
    ]
    return [
        [(chr(0x2800 + dots[cell]) if cell in dots else " ", styles.get(cell, "")) for cell in line]
        for line in places
    ]


def lettered(curves: Sequence[Curve], shown: Frame) -> list[list[tuple[str, str]]]:
    """Cells with the curve's letter; * where they meet."""
    cells = [[" "] * shown.columns for _ in range(shown.rows)]
    for number, curve in enumerate(curves):
        for column, row in trace(curve, shown):
            cells[row][column] = mark(number) if cells[row][column] in (" ", mark(number)) else "*"
    return [[("".join(line), "")] for line in cells]


def trace(curve: Curve, shown: Frame) -> set[tuple[int, int]]:
    """The dots of the line from point to point."""
    places = [shown.place(x, y) for x, y in curve.points]
    found = set(places)
    for (a, b), (c, d) in itertools.pairwise(places):
        many = max(abs(c - a), abs(d - b))
        found |= {
            (round(a + (c - a) * n / many), round(b + (d - b) * n / many)) for n in range(many)
        }
    return found


def save(curves: Sequence[Curve], path: Path, *, along: str, what: str) -> None:
    """A picture, by matplotlib: .svg, .png, .pdf, as the name says."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "a picture needs matplotlib, which is not installed",
            fix="pip install matplotlib, or leave --out out",
        ) from None
    mpl.rcParams["svg.hashsalt"] = "sightline"
    figure: Any = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.plot(*zip(*curve.points, strict=True), label=curve.name, linewidth=1.5)
    shown = frame(curves, 2, 2)
    spread = (shown.high - shown.low) or math.fabs(shown.high) or 1.0
    axes.set(
        xlabel=along, ylabel=what, ylim=(shown.low - 0.05 * spread, shown.high + 0.05 * spread)
    )
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except ValueError:
        raise InputError(
            f"{path}: no picture ends like that",
            expected=".svg, .png or .pdf",
            fix=f"--out {path.stem}.svg",
        ) from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror})", fix="--out another file"
        ) from None
