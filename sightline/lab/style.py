"""How the laboratory's figures look: colours that the colour-blind tell apart, light frames, axes
with names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.lab.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def figure(
    panels: int = 1, *, width: float = 4.6, height: float = 3.4
) -> tuple[Figure, list[Axes]]:
    """A figure with its panels side by side."""
    from matplotlib.figure import Figure as Made

    made = Made(figsize=(width * panels, height), layout="constrained")
    axes = made.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(True, color="0.92", linewidth=0.6)
    return made, list(axes)


def line(axes: Axes, x: list[float], found: list[Interval], *, label: str, number: int) -> None:
    """Means with their intervals as a band."""
    colour = COLOURS[number % len(COLOURS)]
    mark = MARKS[number % len(MARKS)]
    axes.plot(
        x,
        [one.mean for one in found],
        marker=mark,
        markersize=4,
        color=colour,
        label=label,
        linewidth=1.4,
    )
    axes.fill_between(
        x,
        [one.low for one in found],
        [one.high for one in found],
        color=colour,
        alpha=0.18,
        linewidth=0,
    )


def plain_numbers(*axes: Axis) -> None:
    """Logarithmic axes that say 1, 2, 5, 10, 20 instead of powers."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())


def save(made: Figure, stem: Path, endings: Sequence[str] = (".svg", ".png")) -> list[Path]:
    """As SVG and PNG, the same bytes each time."""
    import matplotlib as mpl

    found: list[Path] = []
    with mpl.rc_context({"svg.hashsalt": "sightline", "svg.fonttype": "none"}):
        for ending in endings:
            metadata: dict[str, Any] = {"Date": None} if ending == ".svg" else {"Software": None}
            path = stem.with_name(stem.name + ending)
            made.savefig(path, dpi=130, metadata=metadata)
            found.append(path)
    return found
