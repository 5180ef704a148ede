"""The quality report as a table, as bars in a terminal, and as a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sightline.terminal.progress import megabytes

if TYPE_CHECKING:
    from sightline.engine.quality import Quality

HEAD = ("precision", "weights", "perplexity", "KL a token", "same token", "largest logit error")
TITLES = {
    "attention.joined": "q, k, v",
    "attention.output": "output",
    "feed_forward.joined": "gate, up",
    "feed_forward.up": "up",
    "feed_forward.down": "down",
    "block": "after block",
}
EIGHTHS = " ▏▎▍▌▋▊▉█"
MARGIN = 11
NUMBER = 8
LONGEST = 14
COLOURS = {
    "float32": "#777777",
    "float16": "#1b6ca8",
    "int8": "#2e8b57",
    "int8_groups": "#8a5fbf",
    "int4": "#d1495b",
    "int4_min": "#e08e45",
}


def table(truth: dict[str, Any], found: Sequence[Quality]) -> list[str]:
    """A line for float32 and for each precision."""
    rows = [
        HEAD,
        ("float32", megabytes(truth["bytes"]), f"{truth['perplexity']:.4f}", "–", "–", "–"),
    ]
    for one in found:
        figures = (
            f"{one.perplexity:.4f}",
            f"{one.divergence:.6f}",
            f"{one.agreement:.2%}",
            f"{one.largest:.4f}",
        )
        rows.append((one.precision, megabytes(one.bytes), *figures))
    wide = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return [
        "  ".join(
            [
                row[0].ljust(wide[0]),
                *(cell.rjust(size) for cell, size in zip(row[1:], wide[1:], strict=True)),
            ]
        )
        for row in rows
    ]


def errors_of(one: Quality) -> tuple[dict[str, float], dict[str, dict[int, float]]]:
    """Errors of matrices outside of the layers, by name; and those within, by column and layer, the
    blocks' last."""
    alone = dict[str, float]()
    columns = dict[str, dict[int, float]]()
    for matrix in one.matrices:
        found = re.fullmatch(r"(?:.*\.)?(\d+)\.(\D+)", matrix.name)
        if found is None:
            alone[matrix.name] = matrix.error
        else:
            columns.setdefault(found[2], {})[int(found[1])] = matrix.error
    return alone, columns | {"block": dict(enumerate(one.blocks))}


def chart(one: Quality, *, width: int) -> list[str]:
    """A line for each layer, a bar for each of its matrices and for the stream after it."""
    alone, columns = errors_of(one)
    cell = max(NUMBER + 3, min(NUMBER + LONGEST, (width - MARGIN) // len(columns)))
    most = max(
        [
            *alone.values(),
            *(max(column.values()) for name, column in columns.items() if name != "block"),
        ]
    )
    lines = [
        f"{one.precision}: ‖W − Ŵ‖ / ‖W‖ of each matrix, ‖h − ĥ‖ / ‖h‖ after each block"
        f" ({one.looked_at} tokens)"
    ]
    lines.append(
        "layer".ljust(MARGIN)
        + "".join(TITLES.get(name, name)[: cell - 1].ljust(cell) for name in columns)
    )
    lines += [name.ljust(MARGIN) + bar(error, most, cell) for name, error in alone.items()]
    for layer in range(len(one.blocks)):
        cells = [
            (
                bar(column[layer], max(column.values()) if name == "block" else most, cell)
                if layer in column
                else " " * cell
            )
            for name, column in columns.items()
        ]
        lines.append(str(layer).ljust(MARGIN) + "".join(cells))
    return [line.rstrip() for line in lines]


def bar(value: float, most: float, cell: int) -> str:
    """A bar of at most `cell` − 8 characters, and its number."""
    room = cell - NUMBER
    eighths = round(8 * room * value / most) if most else 0
    drawn = "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"{drawn} {value:.2%}".ljust(cell)


def figure(title: str, found: Sequence[Quality]) -> Any:
    """Two panels: a dot for each matrix with the layer's mean as a line, and the error after each
    block."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "sightline"
    made: Any = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = made.subplots(1, 2)
    for one in found:
        columns = errors_of(one)[1]
        blocks = columns.pop("block")
        colour = COLOURS[one.precision]
        layers = sorted({layer for column in columns.values() for layer in column})
        means = [
            mean([column[layer] for column in columns.values() if layer in column])
            for layer in layers
        ]
        for column in columns.values():
            left.plot(
                list(column), list(column.values()), ".", color=colour, alpha=0.45, markersize=4
            )
        left.plot(layers, means, color=colour, label=one.precision)
        right.plot(
            list(blocks), list(blocks.values()), color=colour, marker=".", label=one.precision
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
    made.suptitle(title)
    return made


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
