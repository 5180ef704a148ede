"""The ratios as a bar chart: one bar per ratio with its range, the goal as a mark, a line at 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AHEAD = "#0072B2"
BEHIND = "#D55E00"
INCONCLUSIVE = "#999999"


def colour_of(ratio: Mapping[str, float]) -> str:
    if ratio["low"] <= 1 <= ratio["high"]:
        return INCONCLUSIVE
    return AHEAD if ratio["median"] > 1 else BEHIND


def goal_on_the_axis(row: Mapping[str, Any]) -> float:
    """A goal set against a peer other than the best, converted to a multiple of the best."""
    return (
        row["goal"] * row["ratio"]["median"] / row["promised"]["median"]
        if "promised" in row
        else row["goal"]
    )


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """The rows of the results file; those without a ratio are left out."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if "ratio" in row][::-1]
    figure, axes = plt.subplots(figsize=(8.5, 1.2 + 0.34 * len(shown)), layout="constrained")
    for place, row in enumerate(shown):
        ratio = row["ratio"]
        axes.barh(place, ratio["median"], color=colour_of(ratio), height=0.6)
        axes.plot([ratio["low"], ratio["high"]], [place, place], color="black", linewidth=1)
        if "goal" in row:
            axes.plot(
                [goal_on_the_axis(row)] * 2,
                [place - 0.4, place + 0.4],
                color="#CC79A7",
                linewidth=2,
            )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(
        range(len(shown)),
        [
            f"{row['work']} · {row['model']} · {row['ours'].removeprefix('ours ')}\nagainst"
            f" {row['peer']}"
            for row in shown
        ],
    )
    axes.tick_params(axis="y", labelsize=7)
    axes.set(
        xlabel="times the best peer (median, range of the rounds, goal)",
        title="Sightline's native engine against its peers",
    )
    axes.set_xlim(left=0)
    axes.set_ylim(-0.7, len(shown) - 0.3)
    figure.savefig(path)
    plt.close(figure)
    return path
