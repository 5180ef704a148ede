"""Queries and keys as rings and stars on a sphere, seen from far away; attention as light along the
shortest way between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sightline.lens.draw.figure import blank, plain
from sightline.lens.draw.view import Array, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NIGHT, GRID, STAR, RING, LIGHT, WORD = (
    "#0b1020",
    "#26304d",
    "#ffd479",
    "#7fd1e8",
    (1.0, 0.93, 0.75),
    "#dfe5f5",
)
FAINT = 0.02  # weights that are drawn, labels that are tried
NAMED = 48
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def planetarium(view: View) -> Figure:
    """The sphere with its grid, the light, the rings, the stars, and as many names as have room."""
    figure = blank(view, 7.4, 7.9, ink=WORD, paper=NIGHT)
    axes = figure.add_subplot()
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.2, 1.2), aspect="equal")
    axes.axis("off")
    query = view.extra["query"]
    key = view.extra["key"]
    weights = np.nan_to_num(view.values)
    draw_grid(axes)
    draw_light(axes, query, key, weights)
    draw_points(axes, query, key, weights)
    draw_names(axes, view, weights)
    return figure


def arc(start: Array, end: Array, count: int = 24) -> Array:
    """The great circle between two points of the sphere; a straight line between opposite ones."""
    angle = float(np.arccos(np.clip(start @ end, -1, 1)))
    t = np.linspace(0, 1, count)[:, None]
    if angle < 1e-3 or angle > np.pi - 1e-3:
        return np.asarray(start * (1 - t) + end * t, dtype=start.dtype)
    return np.asarray(
        (np.sin((1 - t) * angle) * start + np.sin(t * angle) * end) / np.sin(angle),
        dtype=start.dtype,
    )


def draw_grid(axes: Axes) -> None:
    """The outline, and circles of equal latitude and longitude, tilted a little; the far half
    fainter."""
    from matplotlib.patches import Circle

    axes.add_patch(
        Circle((0, 0), 1, facecolor="#101731", edgecolor="#3d4a75", linewidth=0.9, zorder=0)
    )
    around = np.linspace(0, 2 * np.pi, 181)
    tilt = np.radians(18)
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    parallels = [
        np.stack(
            (
                np.cos(a) * np.cos(around),
                np.full_like(around, np.sin(a)),
                np.cos(a) * np.sin(around),
            )
        )
        for a in np.radians((-60, -30, 0, 30, 60))
    ]
    meridians = [
        np.stack((np.cos(around) * np.cos(a), np.sin(around), np.cos(around) * np.sin(a)))
        for a in np.radians((0, 45, 90, 135))
    ]
    for circle in (*parallels, *meridians):
        x, y, z = turn @ circle
        axes.plot(
            np.where(z >= 0, x, np.nan),
            np.where(z >= 0, y, np.nan),
            color=GRID,
            linewidth=0.6,
            zorder=1,
        )
        axes.plot(
            np.where(z < 0, x, np.nan),
            np.where(z < 0, y, np.nan),
            color=GRID,
            linewidth=0.4,
            alpha=0.45,
            zorder=1,
        )


def draw_light(axes: Axes, query: Array, key: Array, weights: Array) -> None:
    """A line for each pair, as strong as the weight."""
    from matplotlib.collections import LineCollection

    at, to = np.nonzero(weights >= FAINT)
    order = np.argsort(weights[at, to], kind="stable")[-4000:]
    curves = [arc(query[at[n]], key[to[n]])[:, :2] for n in order]
    strong = weights[at[order], to[order]]
    crowd = 1.0 if len(order) < 300 else 0.6
    axes.add_collection(
        LineCollection(
            curves,
            colors=[(*LIGHT, float(min(1.0, crowd * w))) for w in strong],
            linewidths=0.5 + 1.3 * strong,
            zorder=3,
        )
    )


def draw_points(axes: Axes, query: Array, key: Array, weights: Array) -> None:
    """Keys as stars, the larger the more they are looked at; queries as rings. What is behind is
    dimmer."""
    looked = weights.sum(0) / max(1, len(weights))
    near_key = 0.45 + 0.55 * (key[:, 2] >= 0)
    near_query = 0.4 + 0.6 * (query[:, 2] >= 0)
    few = min(1.0, 60 / max(1, len(key)))
    size = (26 + 240 * np.sqrt(looked)) * max(0.35, few)
    for glow, alpha in ((7.0, 0.05), (3.0, 0.10)):
        axes.scatter(
            key[:, 0],
            key[:, 1],
            s=size * glow,
            c=lit(STAR, near_key * alpha),
            linewidths=0,
            zorder=4,
        )
    axes.scatter(
        key[:, 0], key[:, 1], s=size, c=lit(STAR, near_key), marker="*", linewidths=0, zorder=6
    )
    axes.scatter(
        query[:, 0],
        query[:, 1],
        s=34 * max(0.35, few),
        facecolors="none",
        edgecolors=lit(RING, near_query),
        linewidths=1.0,
        zorder=5,
    )
    axes.scatter([], [], s=60, c=STAR, marker="*", linewidths=0, label="key: is looked at")
    axes.scatter([], [], s=34, facecolors="none", edgecolors=RING, label="query: looks")
    axes.legend(loc="lower right", fontsize=7.5, frameon=False, labelcolor=WORD)


def lit(colour: str, strengths: Array) -> list[tuple[float, float, float, float]]:
    """One colour, as strong as each of these."""
    from matplotlib.colors import to_rgb

    return [(*to_rgb(colour), float(strength)) for strength in strengths]


def draw_names(axes: Axes, view: View, weights: Array) -> None:
    """The most looked at first, each where no other name is; a name without room is left out."""
    looked = weights.sum(0)
    taken = list[tuple[float, float, float, float]]()
    stars = [
        (looked[n] + 1, view.extra["key"][n], view.columns[n], STAR)
        for n in np.argsort(-looked)[:NAMED]
    ]
    rings = [
        (0.0, view.extra["query"][n], view.rows[n], RING) for n in range(min(len(view.rows), NAMED))
    ]
    size = 7.5 if len(view.columns) <= 60 else 6.0
    for _, point, name, colour in (*stars, *rings):
        away = (0.03, 0.06, 0.1) if colour is STAR else (0.02,)
        place = next((box for box in boxes(point, name, size, away) if free(box, taken)), None)
        if place is not None:
            taken.append(place)
            x = (place[0] + place[2]) / 2
            y = (place[1] + place[3]) / 2
            axes.text(
                x, y, plain(name), ha="center", va="center", fontsize=size, color=colour, zorder=7
            )


def boxes(
    point: Array, name: str, size: float, distances: Sequence[float]
) -> Iterator[tuple[float, float, float, float]]:
    """Where a name could stand beside its point: right, left, above, below, and between these; then
    a little further."""
    from rich.cells import cell_len

    wide = 0.0052 * size * cell_len(name) + 0.01
    high = 0.0085 * size
    for away in distances:
        for x, y in SIDES:
            at = float(point[0]) + x * (away + wide / 2), float(point[1]) + y * (away + high / 2)
            yield at[0] - wide / 2, at[1] - high / 2, at[0] + wide / 2, at[1] + high / 2


def free(
    box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]]
) -> bool:
    """Whether nothing is written there."""
    return all(
        box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
        for other in taken
    )
