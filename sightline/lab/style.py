"""The style of the laboratory's figures: a colour-blind-safe palette and labelled axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.lab.japanese import to_japanese
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


def new_figure(
    panels: int = 1, *, width: float = 4.6, height: float = 3.4
) -> tuple[Figure, list[Axes]]:
    """A figure with a row of panels."""
    from matplotlib.figure import Figure as Created

    created = Created(figsize=(width * panels, height), layout="constrained")
    axes = created.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(True, color="0.92", linewidth=0.6)
    return created, list(axes)


def plot_mean(
    axes: Axes, x: list[float], intervals: list[Interval], *, label: str, number: int
) -> None:
    """Plot means as a line and their intervals as a band."""
    colour = COLOURS[number % len(COLOURS)]
    mark = MARKS[number % len(MARKS)]
    axes.plot(
        x,
        [interval.mean for interval in intervals],
        marker=mark,
        markersize=4,
        color=colour,
        label=label,
        linewidth=1.4,
    )
    axes.fill_between(
        x,
        [interval.low for interval in intervals],
        [interval.high for interval in intervals],
        color=colour,
        alpha=0.18,
        linewidth=0,
    )


def plain_log_ticks(*axes: Axis) -> None:
    """Label logarithmic axes with 1, 2, 5, 10, 20 instead of powers of ten."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())


def has_japanese_font() -> bool:
    """Whether Matplotlib can draw Japanese with an installed font."""
    from sightline.lens.draw.fonts import missing_glyphs

    return not missing_glyphs("日本語カナかな")


def draw_in_japanese(draw: Callable[[], Mapping[str, Figure]]) -> Mapping[str, Figure]:
    """Draw figures with all their texts translated."""
    import matplotlib as mpl

    from sightline.lens.draw.fonts import fonts_for

    with mpl.rc_context({"font.family": fonts_for("日本語")}):
        figures = draw()
        for drawing in figures.values():
            translate_figure(drawing)
    return figures


def translate_figure(drawing: Figure) -> None:
    """Translate labels, legends, titles and tick labels in place."""
    from matplotlib.text import Text

    for axes in drawing.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            translated = [to_japanese(label) for label in labels]
            if translated != labels:
                axis.set_ticks(axis.get_ticklocs(), labels=translated)
    for text in drawing.findobj(Text):
        if isinstance(text, Text):
            text.set_text(to_japanese(text.get_text()))


def save_figure(
    drawing: Figure, stem: Path, endings: Sequence[str] = (".svg", ".png")
) -> list[Path]:
    """Save as SVG and PNG, with reproducible bytes."""
    import matplotlib as mpl

    paths: list[Path] = []
    with mpl.rc_context({"svg.hashsalt": "sightline", "svg.fonttype": "none"}):
        for ending in endings:
            metadata: dict[str, Any] = {"Date": None} if ending == ".svg" else {"Software": None}
            path = stem.with_name(stem.name + ending)
            drawing.savefig(path, dpi=130, metadata=metadata)
            paths.append(path)
    return paths
