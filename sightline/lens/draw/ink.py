"""Values as colours of a terminal, as shades where there are none, and as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from sightline.lens.draw.view import View

# Viridis, and blue through white to orange, at equal steps
WEIGHTS = (
    (68, 1, 84),
    (72, 40, 120),
    (62, 74, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (109, 205, 89),
    (253, 231, 37),
)
COSINES = ((8, 48, 107), (74, 144, 196), (247, 245, 240), (224, 139, 60), (107, 37, 0))
SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.08, "░"), (0.0, "·"))
AGAINST = ((0.5, "="), (0.1, "-"), (0.0, "·"))  # below zero
EIGHTHS = " ▏▎▍▌▋▊▉█"


def has_colours(console: Console) -> bool:
    """Whether a terminal shows as many colours as a map needs; NO_COLOR says no."""
    return not console.no_color and console.color_system in ("truecolor", "256")


def fraction(view: View, value: float) -> float:
    """Where a value stands on its scale of colours, 0 to 1: weights by their root, so that small ones are seen."""
    low, high = view.limits
    part = min(1.0, max(0.0, (value - low) / (high - low)))
    return part if view.signed else math.sqrt(part)


def colour(view: View, value: float) -> str:
    """A value as `#rrggbb`."""
    stops = COSINES if view.signed else WEIGHTS
    at = fraction(view, value) * (len(stops) - 1)
    below = min(int(at), len(stops) - 2)
    mixed = (round(a + (b - a) * (at - below)) for a, b in zip(stops[below], stops[below + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def on_colour(view: View, value: float) -> str:
    """Letters that can be read on a value's colour."""
    red, green, blue = (int(colour(view, value)[n : n + 2], 16) for n in (1, 3, 5))
    return f"{'#000000' if 0.3 * red + 0.59 * green + 0.11 * blue > 130 else '#ffffff'} on {colour(view, value)}"


def shade(view: View, value: float) -> str:
    """A value without colours: the darker, the more; - and = below zero, a blank where there is none."""
    if math.isnan(value):
        return " "
    part = value / view.limits[1]
    steps = SHADES if part >= 0 else AGAINST
    return next((sign for least, sign in steps if abs(part) >= least), "·")


def legend(view: View, *, colours: bool) -> Text:
    """What the colours or shades stand for."""
    low, high = view.limits
    if colours:
        line = Text(f"{low:.3g} ")
        for n in range(24):
            part = n / 23 if view.signed else (n / 23) ** 2
            line.append("█", style=colour(view, low + part * (high - low)))
        return line.append(f" {high:.3g}  {view.value_name}" + ("" if view.signed else ", colour by its root"))
    steps = "  ".join(f"{sign} {least * high:.2g}" for least, sign in SHADES[:-1])
    below = "".join(f"  {sign} −{least * high:.2g}" for least, sign in reversed(AGAINST[:-1])) if view.signed else ""
    return Text(f"{view.value_name}: {steps}  · less{below}")


def bar(part: float, cells: int) -> str:
    """A part of 1 as a bar of so many cells, to an eighth of one."""
    eighths = round(min(1.0, max(0.0, part if math.isfinite(part) else 0.0)) * cells * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(cells)


def fitted(text: str, cells: int) -> str:
    """A text in exactly so many cells of a terminal; a Japanese letter takes two."""
    return set_cell_size(text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…", cells)


def right(text: str, cells: int) -> str:
    """The same, at the right."""
    shown = fitted(text, cells).rstrip()
    return " " * (cells - cell_len(shown)) + shown


def widest(names: Sequence[str], most: int) -> int:
    """The cells that names need, up to a limit."""
    return min(most, max(map(cell_len, names), default=1))
