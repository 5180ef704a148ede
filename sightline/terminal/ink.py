"""Values as terminal colours, as shades where there are no colours, and as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len, set_cell_size
from rich.console import Console  # noqa: TID251  any console may be asked
from rich.text import Text

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
# The same for terminals with 256 colours: each step brighter than the one before (cosines: up to
# white)
WEIGHTS_256 = (
    "#5f005f",
    "#5f0087",
    "#5f5f87",
    "#5f5faf",
    "#008787",
    "#00af87",
    "#5faf87",
    "#5fd787",
    "#87d75f",
    "#afd75f",
    "#d7d75f",
    "#ffd700",
)
COSINES_256 = (
    "#00005f",
    "#005f87",
    "#5f87af",
    "#87afd7",
    "#ffffff",
    "#ffaf5f",
    "#d78700",
    "#af5f00",
    "#5f0000",
)
SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.08, "░"), (0.0, "·"))
NEGATIVE_SHADES = ((0.5, "="), (0.1, "-"), (0.0, "·"))  # below zero
EIGHTHS = " ▏▎▍▌▋▊▉█"


class Scale(Protocol):
    """How values are coloured: their range, whether they are signed, and their name."""

    @property
    def limits(self) -> tuple[float, float]: ...

    @property
    def signed(self) -> bool: ...

    @property
    def value_name(self) -> str: ...


def colour_count(console: Console) -> int:
    """The number of colours of a terminal; 0 if it has fewer than 256, or with NO_COLOR."""
    if console.no_color:
        return 0
    return {"truecolor": 1 << 24, "256": 256}.get(str(console.color_system), 0)


def fraction(scale: Scale, value: float) -> float:
    """The position of a value on its colour scale, 0 to 1; weights by their square root, so that
    small ones are visible."""
    low, high = scale.limits
    part = min(1.0, max(0.0, (value - low) / (high - low)))
    return part if scale.signed else math.sqrt(part)


def colour(scale: Scale, value: float, colours: int = 1 << 24) -> str:
    """A value as `#rrggbb`. With 256 colours it is one of the terminal's own, because the nearest
    match to an arbitrary colour may be darker than its neighbours."""
    if colours == 256:
        steps = COSINES_256 if scale.signed else WEIGHTS_256
        return steps[round(fraction(scale, value) * (len(steps) - 1))]
    stops = COSINES if scale.signed else WEIGHTS
    at = fraction(scale, value) * (len(stops) - 1)
    below = min(int(at), len(stops) - 2)
    mixed = (
        round(a + (b - a) * (at - below))
        for a, b in zip(stops[below], stops[below + 1], strict=True)
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)


def on_colour(scale: Scale, value: float, colours: int) -> str:
    """Black or white text on a value's colour, whichever has the contrast."""
    ground = colour(scale, value, colours)
    red, green, blue = (int(ground[n : n + 2], 16) for n in (1, 3, 5))
    return f"{'#000000' if 0.3 * red + 0.59 * green + 0.11 * blue > 130 else '#ffffff'} on {ground}"


def shade(scale: Scale, value: float) -> str:
    """A value without colours: darker for larger; - and = below zero, a blank for NaN."""
    if math.isnan(value):
        return " "
    part = value / scale.limits[1]
    steps = SHADES if part >= 0 else NEGATIVE_SHADES
    return next((sign for least, sign in steps if abs(part) >= least), "·")


def legend(scale: Scale, *, colours: int) -> Text:
    """The meaning of the colours or shades."""
    low, high = scale.limits
    if colours:
        line = Text(f"{low:.3g} ")
        for n in range(24):
            part = n / 23 if scale.signed else (n / 23) ** 2
            line.append("█", style=colour(scale, low + part * (high - low), colours))
        return line.append(
            f" {high:.3g}  {scale.value_name}" + ("" if scale.signed else ", colour by its root")
        )
    steps = "  ".join(f"{sign} {least * high:.2g}" for least, sign in SHADES[:-1])
    below = (
        "".join(f"  {sign} −{least * high:.2g}" for least, sign in reversed(NEGATIVE_SHADES[:-1]))
        if scale.signed
        else ""
    )
    return Text(f"{scale.value_name}: {steps}  · less{below}")


def probability_colour(logprob: float) -> str:
    """From green (p = 1) through yellow to red (p ≤ 0.01)."""
    share = min(1.0, max(0.0, 1 + logprob / 4.6))
    red = round(255 * min(1.0, 2 - 2 * share))
    green = round(200 * min(1.0, 2 * share))
    return f"rgb({red},{green},60)"


def bar(part: float, cells: int) -> str:
    """A fraction as a bar of at most `cells` cells, to an eighth of a cell."""
    eighths = round(min(1.0, max(0.0, part if math.isfinite(part) else 0.0)) * cells * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(cells)


def fitted(text: str, cells: int) -> str:
    """A text cut or padded to exactly `cells` terminal cells; a Japanese character takes two."""
    return set_cell_size(
        text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…", cells
    )


def right(text: str, cells: int) -> str:
    """The same, right-aligned."""
    shown = fitted(text, cells).rstrip()
    return " " * (cells - cell_len(shown)) + shown


def widest(names: Sequence[str], most: int) -> int:
    """The cells of the longest name, at most `most`."""
    return min(most, max(map(cell_len, names), default=1))
