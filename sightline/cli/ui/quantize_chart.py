"""The quality report as a table, as bars in a terminal, and as a figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sightline.terminal.ink import bar
from sightline.terminal.progress import megabytes

if TYPE_CHECKING:
    from sightline.engine.quality import Quality

HEADINGS = (
    "precision",
    "weights",
    "perplexity",
    "KL per token",
    "same token",
    "largest logit error",
)
TITLES = {
    "attention.joined": "q, k, v",
    "attention.output": "output",
    "feed_forward.joined": "gate, up",
    "feed_forward.up": "up",
    "feed_forward.down": "down",
    "block": "after block",
}
MARGIN = 11
NUMBER = 8
LONGEST_BAR = 14
COLOURS = {
    "float32": "#777777",
    "float16": "#1b6ca8",
    "int8": "#2e8b57",
    "int8_groups": "#8a5fbf",
    "int4": "#d1495b",
    "int4_min": "#e08e45",
}


def quality_table(float32: dict[str, Any], qualities: Sequence[Quality]) -> list[str]:
    """A line for float32 and for each precision."""
    size = megabytes(float32["bytes"])
    rows = [HEADINGS, ("float32", size, f"{float32['perplexity']:.4f}", "–", "–", "–")]
    for quality in qualities:
        figures = (
            f"{quality.perplexity:.4f}",
            f"{quality.divergence:.6f}",
            f"{quality.agreement:.2%}",
            f"{quality.largest:.4f}",
        )
        rows.append((quality.precision, megabytes(quality.bytes), *figures))
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEADINGS))]
    return ["  ".join(padded_cells(row, widths)) for row in rows]


def padded_cells(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """The first cell left-aligned, the others right-aligned."""
    first, *others = row
    numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return [first.ljust(widths[0]), *numbers]


def errors_by_place(quality: Quality) -> tuple[dict[str, float], dict[str, dict[int, float]]]:
    """Errors of the matrices outside the layers, by name; and of those inside, by column and layer,
    with the error after each block as the last column."""
    outside = dict[str, float]()
    columns = dict[str, dict[int, float]]()
    for matrix in quality.matrices:
        match = re.fullmatch(r"(?:.*\.)?(\d+)\.(\D+)", matrix.name)
        if match is None:
            outside[matrix.name] = matrix.error
        else:
            columns.setdefault(match[2], {})[int(match[1])] = matrix.error
    return outside, columns | {"block": dict(enumerate(quality.blocks))}


def error_chart(quality: Quality, *, width: int) -> list[str]:
    """A line per layer, with a bar for each of its matrices and for the residual stream after
    it."""
    outside, columns = errors_by_place(quality)
    cell = max(NUMBER + 3, min(NUMBER + LONGEST_BAR, (width - MARGIN) // len(columns)))
    inside = [max(column.values()) for name, column in columns.items() if name != "block"]
    most = max([*outside.values(), *inside])
    lines = [
        f"{quality.precision}: ‖W − Ŵ‖ / ‖W‖ of each matrix, ‖h − ĥ‖ / ‖h‖ after each block"
        f" ({quality.looked_at} tokens)"
    ]
    lines.append(
        "layer".ljust(MARGIN)
        + "".join(TITLES.get(name, name)[: cell - 1].ljust(cell) for name in columns)
    )
    lines += [name.ljust(MARGIN) + error_bar(error, most, cell) for name, error in outside.items()]
    for layer in range(len(quality.blocks)):
        cells = [
            (
                error_bar(column[layer], max(column.values()) if name == "block" else most, cell)
                if layer in column
                else " " * cell
            )
            for name, column in columns.items()
        ]
        lines.append(str(layer).ljust(MARGIN) + "".join(cells))
    return [line.rstrip() for line in lines]


def error_bar(value: float, most: float, cell: int) -> str:
    """A bar of at most `cell` − 8 characters, and its number."""
    cells = bar(value / most if most else 0.0, cell - NUMBER).rstrip()
    return f"{cells} {value:.2%}".ljust(cell)


def error_figure(title: str, qualities: Sequence[Quality]) -> Any:
    """Two panels: a dot per matrix with the layer's mean as a line, and the error after each
    block."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "sightline"
    figure: Any = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for quality in qualities:
        columns = errors_by_place(quality)[1]
        blocks = columns.pop("block")
        colour = COLOURS[quality.precision]
        layers = sorted({layer for column in columns.values() for layer in column})
        means = [
            mean([column[layer] for column in columns.values() if layer in column])
            for layer in layers
        ]
        for column in columns.values():
            left.plot(
                list(column), list(column.values()), ".", color=colour, alpha=0.45, markersize=4
            )
        left.plot(layers, means, color=colour, label=quality.precision)
        right.plot(
            list(blocks), list(blocks.values()), color=colour, marker=".", label=quality.precision
        )
    for axes, name, about in (
        (left, "matrices", "‖W − Ŵ‖ / ‖W‖"),
        (right, "after each block", "mean ‖h − ĥ‖ / ‖h‖"),
    ):
        axes.set(title=name, xlabel="layer", ylabel=about)
        if all(line.get_ydata().min() > 0 for line in axes.get_lines()):
            axes.set_yscale("log")
        axes.grid(alpha=0.25)
    right.legend(frameon=False)
    figure.suptitle(title)
    return figure


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
