"""Curves in one plot: in Braille dots (two by four per character) on a terminal with colours, in
letters without colours, or as a figure."""

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
    """The range of x and y that is drawn, and the number of dots it is drawn on."""

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
        row = min(self.rows - 1, max(0, round(down * (self.rows - 1))))
        return round(across * (self.columns - 1)), row


def frame_curves(curves: Sequence[Curve], columns: int, rows: int) -> Frame:
    """The range of all points; of many points the highest 2 % are cut off, because a loss starts
    far above where it ends."""
    x = [point[0] for curve in curves for point in curve.points]
    y = sorted(point[1] for curve in curves for point in curve.points)
    high = y[-1] if len(y) < 20 else y[int(0.98 * (len(y) - 1))]
    return Frame(min(x), max(x), y[0], high, columns, rows)


def draw_curves(curves: Sequence[Curve], *, width: int, colours: bool, x_label: str) -> list[Text]:
    """The plot, its axes and its legend."""
    room = max(20, min(120, width - MARGIN - 2))
    across, down = (2, 4) if colours else (1, 1)
    frame = frame_curves(curves, room * across, HEIGHT * down)
    cells = braille_cells(curves, frame) if colours else letter_cells(curves, frame)
    lines = list[Text]()
    for row, line in enumerate(cells):
        value = frame.high - (frame.high - frame.low) * row / (HEIGHT - 1)
        label = (
            f"{value:{MARGIN}.4f} │" if row % 5 == 0 or row == HEIGHT - 1 else f"{'':{MARGIN}} │"
        )
        lines.append(Text.assemble(label, *line))
    lines.append(Text(f"{'':{MARGIN}} └{'─' * room}"))
    left = f"{frame.left:.3g}"
    right = f"{frame.right:,.6g} {x_label}"
    lines.append(Text(f"{'':{MARGIN}}  {left}{right:>{max(1, room - len(left))}}"))
    return [*lines, *curve_legend(curves, colours=colours)]


def curve_legend(curves: Sequence[Curve], *, colours: bool) -> list[Text]:
    """The sign and the name of each curve."""
    signs = [
        ("━━ ", curve_colour(n)) if colours else (f"{curve_letter(n)} ", "")
        for n in range(len(curves))
    ]
    return [
        Text.assemble(f"{'':{MARGIN}}  ", sign, curve.name)
        for sign, curve in zip(signs, curves, strict=True)
    ]


def curve_colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def curve_letter(number: int) -> str:
    return LETTERS[number % len(LETTERS)]


def braille_cells(curves: Sequence[Curve], frame: Frame) -> list[list[tuple[str, str]]]:
    """Cells of dots; a cell shared by several curves has the colour of the last."""
    dots = dict[tuple[int, int], int]()
    styles = dict[tuple[int, int], str]()
    for number, curve in enumerate(curves):
        for column, row in line_dots(curve, frame):
            cell = row // 4, column // 2
            dots[cell] = dots.get(cell, 0) | DOTS[row % 4][column % 2]
            styles[cell] = curve_colour(number)
    places = [
        [(row, column) for column in range(frame.columns // 2)] for row in range(frame.rows // 4)
    ]
    return [
        [(chr(0x2800 + dots[cell]) if cell in dots else " ", styles.get(cell, "")) for cell in line]
        for line in places
    ]


def letter_cells(curves: Sequence[Curve], frame: Frame) -> list[list[tuple[str, str]]]:
    """Cells with the curve's letter; * where curves cross."""
    cells = [[" "] * frame.columns for _ in range(frame.rows)]
    for number, curve in enumerate(curves):
        letter = curve_letter(number)
        for column, row in line_dots(curve, frame):
            cells[row][column] = letter if cells[row][column] in (" ", letter) else "*"
    return [[("".join(line), "")] for line in cells]


def line_dots(curve: Curve, frame: Frame) -> set[tuple[int, int]]:
    """The dots of the line from point to point."""
    places = [frame.place(x, y) for x, y in curve.points]
    dots = set(places)
    for (a, b), (c, d) in itertools.pairwise(places):
        steps = max(abs(c - a), abs(d - b))
        dots |= {
            (round(a + (c - a) * n / steps), round(b + (d - b) * n / steps)) for n in range(steps)
        }
    return dots


def save_curves(curves: Sequence[Curve], path: Path, *, x_label: str, y_label: str) -> None:
    """A matplotlib figure, in the format of the file's suffix."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "a figure needs matplotlib, which is not installed",
            fix="pip install matplotlib, or leave --out out",
        ) from None
    mpl.rcParams["svg.hashsalt"] = "sightline"
    figure: Any = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        axes.plot(*zip(*curve.points, strict=True), label=curve.name, linewidth=1.5)
    frame = frame_curves(curves, 2, 2)
    spread = (frame.high - frame.low) or math.fabs(frame.high) or 1.0
    limits = (frame.low - 0.05 * spread, frame.high + 0.05 * spread)
    axes.set(xlabel=x_label, ylabel=y_label, ylim=limits)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except ValueError:
        raise InputError(
            f"{path}: not a figure format",
            expected=".svg, .png or .pdf",
            fix=f"--out {path.stem}.svg",
        ) from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror})", fix="--out another file"
        ) from None
