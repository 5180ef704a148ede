"""Views as Matplotlib figures: SVG, PNG or PDF. The same view gives the same bytes.

Colours are viridis, and a blue–orange diverging map for cosines: both work for colour-blind readers
and in grey.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.lens.draw.fonts import font_settings
from sightline.lens.draw.view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
METADATA = {
    ".svg": {"Date": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
}  # no dates, so that bytes are reproducible
MAX_LABELS = 72  # more tokens get a label every n-th
DPI = 150
INK = "#1f2430"
PALE = "#8a93a6"


def write_figure(view: View, file: str | Path) -> Path:
    """Write a view to a file; its suffix selects the format."""
    file = Path(file)
    if file.suffix.lower() not in ENDINGS:
        raise InputError(
            f"a picture as {file.suffix or file.name!r}",
            expected=", ".join(ENDINGS),
            fix=f"{file.stem}.svg",
        )
    matplotlib = import_matplotlib()
    with matplotlib.rc_context(font_settings(text_of(view))), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font"
        )  # reported by `fonts_for`
        figure = fix_layout(figure_of(view))
        try:
            figure.savefig(
                file,
                dpi=DPI,
                facecolor=figure.get_facecolor(),
                metadata=METADATA[file.suffix.lower()],
            )
        except OSError as error:
            raise InputError(
                f"{file} cannot be written: {error.strerror or error}",
                fix="give a place that can be written to",
            ) from None
    return file


def view_figure(view: View) -> Figure:
    """A view as a figure with the fonts and settings of the files."""
    matplotlib = import_matplotlib()
    with matplotlib.rc_context(font_settings(text_of(view))):
        return figure_of(view)


def fix_layout(figure: Figure) -> Figure:
    """Compute the layout once and round it: the solver's last digits differ from run to run, and
    output must be reproducible."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, low, width, height = (
            round(float(side), 4) for side in axes.get_position(original=True).bounds
        )
        axes.set_position((left, low, width, height))
    return figure


def import_matplotlib() -> Any:
    """Matplotlib, or an error with the fix."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError(
            "no matplotlib, which draws .svg, .png and .pdf",
            fix="pip install matplotlib, or --out x.html",
        ) from None
    return mpl


def text_of(view: View) -> str:
    """All text of the figure."""
    return "".join(
        [
            view.title,
            view.caption,
            *view.notes,
            *view.rows,
            *view.columns,
            *(word for row in view.cells for word in row),
        ]
    )


def figure_of(view: View) -> Figure:
    """The Matplotlib figure of a view, not attached to any window."""
    return RENDERERS[view.kind](view)


def map_figure(view: View) -> Figure:
    """The map as an image."""
    figure, axes = figure_with_axes(view, *map_inches(view))
    colour_bar(figure, axes, draw_image(axes, view), view)
    return figure


def map_inches(view: View) -> tuple[float, float]:
    """The size of a map in inches, by the number of labels."""
    rows, columns = view.values.shape[-2:]
    return min(10.0, max(3.2, 0.34 * columns)), min(10.0, max(3.0, 0.30 * rows))


def figure_with_axes(view: View, width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with title and caption, and empty axes."""
    figure = titled_figure(view, width + 2.4, height + 1.9)
    return figure, figure.add_subplot()


def titled_figure(
    view: View, width: float, height: float, *, ink: str = INK, paper: str = "white"
) -> Figure:
    """An empty figure with its title above and caption and notes below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=paper)
    characters = max(40, int(width * 15))
    figure.suptitle(
        textwrap.fill(view.title, int(characters * 0.6)),
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
        color=ink,
    )
    footer = "\n".join(
        line for text in (view.caption, *view.notes) for line in wrap_text(text, characters)
    )
    figure.supxlabel(
        escape_dollar(footer), x=0.01, ha="left", fontsize=7.5, color=PALE, linespacing=1.4
    )
    return figure


def wrap_text(text: str, cells: int) -> list[str]:
    """Text wrapped to a number of cells; wide characters count two."""
    from rich.cells import cell_len

    narrow = cells if cell_len(text) == len(text) else int(cells * len(text) / cell_len(text))
    return textwrap.wrap(text, max(20, narrow))


def escape_dollar(text: str) -> str:
    """Escape `$`, which starts math text in Matplotlib."""
    return text.replace("$", r"\$")


def draw_image(axes: Axes, view: View) -> Any:
    """The values as an image; grey where masked. Weights are coloured by their square root, so that
    small ones are visible."""
    from matplotlib.colors import PowerNorm

    low, high = view.limits
    axes.set_facecolor("#e9ebf0")
    scale: Mapping[str, Any] = (
        {"vmin": low, "vmax": high} if view.signed else {"norm": PowerNorm(0.5, low, high)}
    )
    image = axes.imshow(
        view.values, cmap=colour_map(view), aspect="auto", interpolation="nearest", **scale
    )
    name_axes(axes, view)
    return image


def colour_map(view: View) -> Any:
    """Viridis, or blue–white–orange for signed values."""
    from matplotlib.colors import LinearSegmentedColormap

    return (
        LinearSegmentedColormap.from_list(
            "cosine", ["#08306b", "#4a90c4", "#f7f5f0", "#e08b3c", "#6b2500"]
        )
        if view.signed
        else "viridis"
    )


def name_axes(axes: Axes, view: View) -> None:
    """Token labels along both axes."""
    label_ticks(axes.set_yticks, view.rows, view.across[0])
    label_ticks(
        axes.set_xticks, view.columns, view.across[1], rotation=90 if len(view.columns) > 6 else 0
    )
    axes.set_ylabel(view.row_axis, fontsize=8, color=PALE)
    axes.set_xlabel(view.column_axis, fontsize=8, color=PALE)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def label_ticks(
    set_ticks: Callable[..., object], names: Sequence[str], across: int, **options: Any
) -> None:
    """A label per token, or for every n-th with its number."""
    step = max(1, -(-len(names) // MAX_LABELS))
    size = 8.0 if len(names) <= 36 else 6.0
    tick_labels = [
        escape_dollar(name) if step * across == 1 else f"{n * step * across} {escape_dollar(name)}"
        for n, name in enumerate(names[::step])
    ]
    set_ticks(range(0, len(names), step), tick_labels, fontsize=size, **options)


def colour_bar(figure: Figure, axes: Any, image: Any, view: View, *, shrink: float = 1.0) -> None:
    """The colour bar."""
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, aspect=30, shrink=shrink)
    bar.set_label(
        view.value_name + ("" if view.signed else " (colour by square root)"),
        fontsize=7.5,
        color=PALE,
    )
    bar.ax.tick_params(labelsize=7, colors=INK, length=2)
    bar.outline.set_visible(False)


def heads_figure(view: View) -> Figure:
    """All heads as thumbnails: one row per layer."""
    from matplotlib.colors import PowerNorm

    layers, heads, rows, columns = view.values.shape
    gap = max(1, round(0.12 * rows))
    whole = np.full(
        (layers * (rows + gap) - gap, heads * (columns + gap) - gap), np.nan, dtype=np.float32
    )
    for layer in range(layers):
        for head in range(heads):
            top = layer * (rows + gap)
            left = head * (columns + gap)
            whole[top : top + rows, left : left + columns] = view.values[layer, head]
    inch = min(0.75, 16 / layers, 14 / heads) if layers * heads > 1 else 3.0
    figure, axes = figure_with_axes(view, max(2.6, inch * heads), max(2.0, inch * layers))
    image = axes.imshow(
        whole,
        cmap="viridis",
        norm=PowerNorm(0.5, *view.limits),
        interpolation="nearest",
        aspect="equal",
    )
    name_axes(axes, view)
    axes.set_facecolor("white")
    axes.set_xticks(
        [n * (columns + gap) + (columns - 1) / 2 for n in range(heads)],
        view.columns,
        fontsize=7,
        rotation=0,
    )
    axes.set_yticks(
        [n * (rows + gap) + (rows - 1) / 2 for n in range(layers)], view.rows, fontsize=7
    )
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    colour_bar(figure, axes, image, view, shrink=min(1.0, heads / layers))
    return figure


def lines_figure(view: View) -> Figure:
    """Queries on the left, keys on the right; the opacity and width of a line show its weight."""
    from matplotlib.collections import LineCollection

    rows, columns = view.values.shape
    longest = max(rows, columns)
    figure, axes = figure_with_axes(view, 4.6, min(13.0, max(2.6, 0.27 * longest)))
    weights = np.nan_to_num(view.values)
    query, key = np.nonzero(weights >= 0.01)
    line_weights = weights[query, key]
    order = np.argsort(line_weights, kind="stable")
    x = np.linspace(0, 1, 32)
    ease = (1 - np.cos(np.pi * x)) / 2
    curves = [np.stack((x, query[n] * (1 - ease) + key[n] * ease), axis=1) for n in order]
    inks = [(0.11, 0.29, 0.55, float(np.clip(line_weights[n], 0.04, 1))) for n in order]
    axes.add_collection(
        LineCollection(
            curves, colors=inks, linewidths=0.4 + 2.6 * line_weights[order], capstyle="round"
        )
    )
    size = 8.5 if longest <= 48 else max(4.0, 400 / longest)
    for names, at, side in ((view.rows, -0.03, "right"), (view.columns, 1.03, "left")):
        for n, name in enumerate(names):
            axes.text(at, n, escape_dollar(name), ha=side, va="center", fontsize=size, color=INK)
    axes.set(xlim=(-0.55, 1.55), ylim=(longest - 0.2, -1.8))
    axes.text(-0.03, -1.2, "query", ha="right", fontsize=7.5, color=PALE)
    axes.text(1.03, -1.2, "key", ha="left", fontsize=7.5, color=PALE)
    axes.axis("off")
    return figure


def geometry_figure(view: View) -> Figure:
    """cos θ as a map, |q| beside its rows, |k| below its columns, and the shares above."""
    width, height = map_inches(view)
    figure = titled_figure(view, width + 3.6, height + 3.4)
    grid = figure.add_gridspec(3, 2, width_ratios=[1.1, width], height_ratios=[0.22, height, 0.8])
    middle = figure.add_subplot(grid[1, 1])
    left = figure.add_subplot(grid[1, 0])
    below = figure.add_subplot(grid[2, 1])
    colour_bar(figure, middle, draw_image(middle, view), view)
    left.barh(range(len(view.rows)), view.extra["query"], color="#3b6ea5", height=0.8)
    left.invert_xaxis()
    left.set_ylim(middle.get_ylim())
    below.bar(range(len(view.columns)), view.extra["key"], color="#c98a2b", width=0.8)
    below.set_xlim(middle.get_xlim())
    for axes, name in ((left, "|q|"), (below, "|k|")):
        axes.set_title(name, fontsize=8, color=INK, loc="right" if axes is left else "left", pad=2)
        axes.tick_params(labelsize=7, length=2, colors=INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
    label_ticks(left.set_yticks, view.rows, view.across[0])
    left.set_ylabel(view.row_axis, fontsize=8, color=PALE)
    label_ticks(
        below.set_xticks, view.columns, view.across[1], rotation=90 if len(view.columns) > 6 else 0
    )
    below.set_xlabel(view.column_axis, fontsize=8, color=PALE)
    middle.tick_params(labelbottom=False, labelleft=False)
    middle.set(xlabel="", ylabel="")
    draw_shares_bar(figure.add_subplot(grid[0, 1]), view.about["shares"])
    return figure


def draw_shares_bar(axes: Axes, shares: Mapping[str, float]) -> None:
    """Direction and length as parts of one bar; negative shares extend left of zero."""
    direction = shares["direction"]
    length = shares["length"]
    axes.axis("off")
    if not np.isfinite(direction):
        return
    parts = (("direction", direction, "#3b6ea5"), ("length", length, "#c98a2b"))
    begin = 0.0
    for name, part, colour in parts:
        axes.barh(0, part, left=0.0 if part < 0 else begin, color=colour, height=0.9)
        begin += max(part, 0.0)
        if abs(part) > 0.12:
            axes.text(
                (begin - part / 2) if part > 0 else part / 2,
                0,
                f"{name} {part:.0%}",
                ha="center",
                va="center",
                fontsize=7.5,
                color="white",
            )
    axes.set_xlim(min(0.0, direction, length), max(1.0, direction, length))


def logit_lens_figure(view: View) -> Figure:
    """The most likely token in each cell, coloured by its probability."""
    rows, columns = view.values.shape
    has_text = columns <= 40
    figure, axes = figure_with_axes(
        view, min(26.0, max(4.0, (0.78 if has_text else 0.12) * columns)), max(2.4, 0.22 * rows)
    )
    image = draw_image(axes, view)
    axes.set_xticks(
        axes.get_xticks(),
        [text.get_text() for text in axes.get_xticklabels()],
        rotation=45 if has_text else 90,
        ha="center",
    )
    for row in range(rows if has_text else 0):
        for column in range(columns):
            light = np.sqrt(max(0.0, view.values[row, column] / view.limits[1])) > 0.62
            word = view.cells[row][column]
            axes.text(
                column,
                row,
                escape_dollar(word[:9]),
                ha="center",
                va="center",
                fontsize=6.2,
                color="black" if light else "white",
            )
    colour_bar(figure, axes, image, view)
    return figure


def sphere_figure(view: View) -> Figure:
    from sightline.lens.draw.sphere_figure import draw_sphere_figure

    return draw_sphere_figure(view)


RENDERERS: dict[str, Callable[[View], Figure]] = {
    "map": map_figure,
    "alignment": map_figure,
    "rollout": map_figure,
    "heads": heads_figure,
    "lines": lines_figure,
    "geometry": geometry_figure,
    "sphere": sphere_figure,
    "logit-lens": logit_lens_figure,
}
