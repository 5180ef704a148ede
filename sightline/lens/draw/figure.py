"""A view as a figure: SVG, PNG or PDF with axes, title and caption. The same view gives the same
bytes.

Colours are viridis, and vik-like blue to orange for cosines: both can be told apart by colour-blind
eyes, and in grey.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.errors import InputError
from sightline.lens.draw.fonts import settings
from sightline.lens.draw.view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
UNDATED = {
    ".svg": {"Date": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
}  # the same view, the same bytes
LABELLED = 72  # so many tokens have a label each; of more, every n-th
DPI = 150
INK = "#1f2430"
PALE = "#8a93a6"


def write_figure(view: View, file: str | Path) -> Path:
    """The view in a file; its ending says how."""
    file = Path(file)
    if file.suffix.lower() not in ENDINGS:
        raise InputError(
            f"a picture as {file.suffix or file.name!r}",
            expected=", ".join(ENDINGS),
            fix=f"{file.stem}.svg",
        )
    matplotlib = needed()
    with matplotlib.rc_context(settings(text_of(view))), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font"
        )  # `fonts_for` says so in one line
        figure = settled(figure_of(view))
        try:
            figure.savefig(
                file,
                dpi=DPI,
                facecolor=figure.get_facecolor(),
                metadata=UNDATED[file.suffix.lower()],
            )
        except OSError as error:
            raise InputError(
                f"{file} cannot be written: {error.strerror or error}",
                fix="give a place that can be written to",
            ) from None
    return file


def settled(figure: Figure) -> Figure:
    """The layout made once and rounded: the solver's last digits differ from run to run, and the
    same picture shall be the same bytes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, low, width, height = (
            round(float(side), 4) for side in axes.get_position(original=True).bounds
        )
        axes.set_position((left, low, width, height))
    return figure


def needed() -> Any:
    """Matplotlib, if it is installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InputError(
            "no matplotlib, which draws .svg, .png and .pdf",
            fix="pip install matplotlib, or --out x.html",
        ) from None
    return mpl


def text_of(view: View) -> str:
    """All that is written in the picture."""
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
    """The figure itself, not bound to any window."""
    return DRAWN[view.kind](view)


def draw_map(view: View) -> Figure:
    """A square for each pair of tokens."""
    figure, axes = framed(view, *sides(view))
    colour_bar(figure, axes, image(axes, view), view)
    return figure


def sides(view: View) -> tuple[float, float]:
    """Inches of a map, as large as its labels need."""
    rows, columns = view.values.shape[-2:]
    return min(10.0, max(3.2, 0.34 * columns)), min(10.0, max(3.0, 0.30 * rows))


def framed(view: View, width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure with title and caption, and room for labels around it."""
    figure = blank(view, width + 2.4, height + 1.9)
    return figure, figure.add_subplot()


def blank(
    view: View, width: float, height: float, *, ink: str = INK, paper: str = "white"
) -> Figure:
    """A figure with its title above and its caption and notes below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=paper)
    across = max(40, int(width * 15))
    figure.suptitle(
        textwrap.fill(view.title, int(across * 0.6)),
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
        color=ink,
    )
    under = "\n".join(
        line for text in (view.caption, *view.notes) for line in wrapped(text, across)
    )
    figure.supxlabel(plain(under), x=0.01, ha="left", fontsize=7.5, color=PALE, linespacing=1.4)
    return figure


def wrapped(text: str, across: int) -> list[str]:
    """Lines of so many cells; a Japanese letter takes two."""
    from rich.cells import cell_len

    narrow = across if cell_len(text) == len(text) else int(across * len(text) / cell_len(text))
    return textwrap.wrap(text, max(20, narrow))


def plain(text: str) -> str:
    """A dollar is a dollar, not the beginning of mathematics."""
    return text.replace("$", r"\$")


def image(axes: Axes, view: View) -> Any:
    """The values as colours; grey where a token may not look. Weights by their root, so that small
    ones are seen."""
    from matplotlib.colors import PowerNorm

    low, high = view.limits
    axes.set_facecolor("#e9ebf0")
    scale: Mapping[str, Any] = (
        {"vmin": low, "vmax": high} if view.signed else {"norm": PowerNorm(0.5, low, high)}
    )
    drawn = axes.imshow(
        view.values, cmap=colours(view), aspect="auto", interpolation="nearest", **scale
    )
    name_axes(axes, view)
    return drawn


def colours(view: View) -> Any:
    """Viridis, or blue through white to orange."""
    from matplotlib.colors import LinearSegmentedColormap

    return (
        LinearSegmentedColormap.from_list(
            "cosine", ["#08306b", "#4a90c4", "#f7f5f0", "#e08b3c", "#6b2500"]
        )
        if view.signed
        else "viridis"
    )


def name_axes(axes: Axes, view: View) -> None:
    """Tokens along both sides."""
    ticks(axes.set_yticks, view.rows, view.across[0])
    ticks(
        axes.set_xticks, view.columns, view.across[1], rotation=90 if len(view.columns) > 6 else 0
    )
    axes.set_ylabel(view.row_axis, fontsize=8, color=PALE)
    axes.set_xlabel(view.column_axis, fontsize=8, color=PALE)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def ticks(place: Callable[..., object], names: Sequence[str], across: int, **options: Any) -> None:
    """A label for each token, or for every n-th with its number."""
    step = max(1, -(-len(names) // LABELLED))
    size = 8.0 if len(names) <= 36 else 6.0
    shown = [
        plain(name) if step * across == 1 else f"{n * step * across} {plain(name)}"
        for n, name in enumerate(names[::step])
    ]
    place(range(0, len(names), step), shown, fontsize=size, **options)


def colour_bar(figure: Figure, axes: Any, drawn: Any, view: View, *, shrink: float = 1.0) -> None:
    """What the colours stand for."""
    bar = figure.colorbar(drawn, ax=axes, fraction=0.04, pad=0.02, aspect=30, shrink=shrink)
    bar.set_label(
        view.value_name + ("" if view.signed else " (colour by its root)"), fontsize=7.5, color=PALE
    )
    bar.ax.tick_params(labelsize=7, colors=INK, length=2)
    bar.outline.set_visible(False)


def draw_heads(view: View) -> Figure:
    """All heads as one picture of small maps: a row of them for each layer."""
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
    figure, axes = framed(view, max(2.6, inch * heads), max(2.0, inch * layers))
    drawn = axes.imshow(
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
    colour_bar(figure, axes, drawn, view, shrink=min(1.0, heads / layers))
    return figure


def draw_lines(view: View) -> Figure:
    """Tokens that look on the left, tokens that are looked at on the right; a line is the stronger,
    the more weight it carries."""
    from matplotlib.collections import LineCollection

    rows, columns = view.values.shape
    longest = max(rows, columns)
    figure, axes = framed(view, 4.6, min(13.0, max(2.6, 0.27 * longest)))
    heavy = np.nan_to_num(view.values)
    query, key = np.nonzero(heavy >= 0.01)
    strong = heavy[query, key]
    order = np.argsort(strong, kind="stable")
    x = np.linspace(0, 1, 32)
    bend = (1 - np.cos(np.pi * x)) / 2
    curves = [np.stack((x, query[n] * (1 - bend) + key[n] * bend), axis=1) for n in order]
    inks = [(0.11, 0.29, 0.55, float(np.clip(strong[n], 0.04, 1))) for n in order]
    axes.add_collection(
        LineCollection(curves, colors=inks, linewidths=0.4 + 2.6 * strong[order], capstyle="round")
    )
    size = 8.5 if longest <= 48 else max(4.0, 400 / longest)
    for names, at, side in ((view.rows, -0.03, "right"), (view.columns, 1.03, "left")):
        for n, name in enumerate(names):
            axes.text(at, n, plain(name), ha=side, va="center", fontsize=size, color=INK)
    axes.set(xlim=(-0.55, 1.55), ylim=(longest - 0.2, -1.8))
    axes.text(-0.03, -1.2, "looks", ha="right", fontsize=7.5, color=PALE)
    axes.text(1.03, -1.2, "is looked at", ha="left", fontsize=7.5, color=PALE)
    axes.axis("off")
    return figure


def draw_geometry(view: View) -> Figure:
    """cos θ as a map, |q| beside its rows, |k| below its columns, and above it what tells keys
    apart."""
    width, height = sides(view)
    figure = blank(view, width + 3.6, height + 3.4)
    grid = figure.add_gridspec(3, 2, width_ratios=[1.1, width], height_ratios=[0.22, height, 0.8])
    middle = figure.add_subplot(grid[1, 1])
    left = figure.add_subplot(grid[1, 0])
    under = figure.add_subplot(grid[2, 1])
    colour_bar(figure, middle, image(middle, view), view)
    left.barh(range(len(view.rows)), view.extra["query"], color="#3b6ea5", height=0.8)
    left.invert_xaxis()
    left.set_ylim(middle.get_ylim())
    under.bar(range(len(view.columns)), view.extra["key"], color="#c98a2b", width=0.8)
    under.set_xlim(middle.get_xlim())
    for axes, name in ((left, "|q|"), (under, "|k|")):
        axes.set_title(name, fontsize=8, color=INK, loc="right" if axes is left else "left", pad=2)
        axes.tick_params(labelsize=7, length=2, colors=INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
    ticks(left.set_yticks, view.rows, view.across[0])
    left.set_ylabel(view.row_axis, fontsize=8, color=PALE)
    ticks(
        under.set_xticks, view.columns, view.across[1], rotation=90 if len(view.columns) > 6 else 0
    )
    under.set_xlabel(view.column_axis, fontsize=8, color=PALE)
    middle.tick_params(labelbottom=False, labelleft=False)
    middle.set(xlabel="", ylabel="")
    _split_bar(figure.add_subplot(grid[0, 1]), view.about["shares"])
    return figure


def _split_bar(axes: Axes, shares: Mapping[str, float]) -> None:
    """Direction and length as parts of one bar; a part that works against the other lies left of
    zero."""
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


def draw_logit_lens(view: View) -> Figure:
    """The likeliest token in each cell, coloured by its probability."""
    rows, columns = view.values.shape
    written = columns <= 40
    figure, axes = framed(
        view, min(26.0, max(4.0, (0.78 if written else 0.12) * columns)), max(2.4, 0.22 * rows)
    )
    drawn = image(axes, view)
    axes.set_xticks(
        axes.get_xticks(),
        [text.get_text() for text in axes.get_xticklabels()],
        rotation=45 if written else 90,
        ha="center",
    )
    for row in range(rows if written else 0):
        for column in range(columns):
            light = np.sqrt(max(0.0, view.values[row, column] / view.limits[1])) > 0.62
            word = view.cells[row][column]
            axes.text(
                column,
                row,
                plain(word[:9]),
                ha="center",
                va="center",
                fontsize=6.2,
                color="black" if light else "white",
            )
    colour_bar(figure, axes, drawn, view)
    return figure


def draw_sphere(view: View) -> Figure:
    from sightline.lens.draw.planetarium import planetarium

    return planetarium(view)


DRAWN: dict[str, Callable[[View], Figure]] = {
    "map": draw_map,
    "alignment": draw_map,
    "rollout": draw_map,
    "heads": draw_heads,
    "lines": draw_lines,
    "geometry": draw_geometry,
    "sphere": draw_sphere,
    "logit-lens": draw_logit_lens,
}
