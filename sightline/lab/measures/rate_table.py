"""The figure of norm-placement's second half: how many seeds have which highest rate, per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from sightline.lab.measures.norm_measures import RATES
from sightline.lab.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_rates(rows: Mapping[str, Sequence[float]]) -> Figure:
    """A table of arms and rates, each cell shaded by its number of seeds; 0: no rate trains."""
    figure, (axes,) = new_figure(1, width=7.0, height=3.6)
    columns = [0.0, *sorted(RATES)]
    for (row, rates), (column, rate) in product(enumerate(rows.values()), enumerate(columns)):
        draw_cell(axes, column, row, rates.count(rate), len(rates))
    axes.set(
        xlim=(-0.5, len(columns) - 0.5),
        ylim=(len(rows) - 0.5, -0.5),
        xlabel="learning rate",
        title="Highest learning rate that trains: number of seeds",
    )
    labels = ["none trains", *(f"{rate:g}" for rate in columns[1:-1]), f"≥ {columns[-1]:g}"]
    axes.set_xticks(range(len(columns)), labels=labels)
    axes.set_yticks(range(len(rows)), labels=list(rows))
    axes.tick_params(left=False, bottom=False)
    axes.grid(False)
    return figure


def draw_cell(axes: Axes, column: int, row: int, count: int, seeds: int) -> None:
    from matplotlib.patches import Rectangle

    share = count / seeds
    box = ((column - 0.47, row - 0.45), 0.94, 0.9)
    axes.add_patch(Rectangle(*box, facecolor=COLOURS[0], alpha=share, linewidth=0))
    axes.add_patch(Rectangle(*box, fill=False, edgecolor="0.8", linewidth=0.6))
    if count:
        colour = "white" if share > 0.6 else "0.2"
        axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=colour)
