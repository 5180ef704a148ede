"""The sphere view as a figure: queries as rings, keys as stars, attention as great-circle arcs
between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sightline.lens.draw.figure import escape_dollar, titled_figure
from sightline.lens.draw.view import Array, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BACKGROUND = "#0b1020"
GRID_COLOUR = "#26304d"
KEY_COLOUR = "#ffd479"
QUERY_COLOUR = "#7fd1e8"
LINE_COLOUR = (1.0, 0.93, 0.75)
TEXT_COLOUR = "#dfe5f5"
MIN_WEIGHT = 0.02  # smaller weights are not drawn
MAX_NAMES = 48
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def draw_sphere_figure(view: View) -> Figure:
    """The sphere with grid, attention lines, rings, stars, and as many names as fit."""
    figure = titled_figure(view, 7.4, 7.9, ink=TEXT_COLOUR, paper=BACKGROUND)
    axes = figure.add_subplot()
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.2, 1.2), aspect="equal")
    axes.axis("off")
    query = view.extra["query"]
    key = view.extra["key"]
    weights = np.nan_to_num(view.values)
    draw_grid(axes)
    draw_attention(axes, query, key, weights)
    draw_points(axes, query, key, weights)
    draw_names(axes, view, weights)
    return figure


def arc(start: Array, end: Array, count: int = 24) -> Array:
    """The great-circle arc between two points; a straight line between (nearly) equal or opposite
    ones."""
    angle = float(np.arccos(np.clip(start @ end, -1, 1)))
    t = np.linspace(0, 1, count)[:, None]
    if angle < 1e-3 or angle > np.pi - 1e-3:
        return np.asarray(start * (1 - t) + end * t, dtype=start.dtype)
    return np.asarray(
        (np.sin((1 - t) * angle) * start + np.sin(t * angle) * end) / np.sin(angle),
        dtype=start.dtype,
    )


def draw_grid(axes: Axes) -> None:
    """The outline, and tilted circles of latitude and longitude; the far half is fainter."""
    from matplotlib.patches import Circle

    axes.add_patch(
        Circle((0, 0), 1, facecolor="#101731", edgecolor="#3d4a75", linewidth=0.9, zorder=0)
    )
    around = np.linspace(0, 2 * np.pi, 181)
    tilt = np.radians(18)
    rotation = np.array(
        [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    )
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
        x, y, z = rotation @ circle
        axes.plot(
            np.where(z >= 0, x, np.nan),
            np.where(z >= 0, y, np.nan),
            color=GRID_COLOUR,
            linewidth=0.6,
            zorder=1,
        )
        axes.plot(
            np.where(z < 0, x, np.nan),
            np.where(z < 0, y, np.nan),
            color=GRID_COLOUR,
            linewidth=0.4,
            alpha=0.45,
            zorder=1,
        )


def draw_attention(axes: Axes, query: Array, key: Array, weights: Array) -> None:
    """One arc per pair, with opacity and width by weight."""
    from matplotlib.collections import LineCollection

    at, to = np.nonzero(weights >= MIN_WEIGHT)
    order = np.argsort(weights[at, to], kind="stable")[-4000:]
    curves = [arc(query[at[n]], key[to[n]])[:, :2] for n in order]
    strong = weights[at[order], to[order]]
    opacity = 1.0 if len(order) < 300 else 0.6
    axes.add_collection(
        LineCollection(
            curves,
            colors=[(*LINE_COLOUR, float(min(1.0, opacity * w))) for w in strong],
            linewidths=0.5 + 1.3 * strong,
            zorder=3,
        )
    )


def draw_points(axes: Axes, query: Array, key: Array, weights: Array) -> None:
    """Keys as stars, sized by their mean weight; queries as rings. Points on the far side are
    dimmer."""
    total_weight = weights.sum(0) / max(1, len(weights))
    near_key = 0.45 + 0.55 * (key[:, 2] >= 0)
    near_query = 0.4 + 0.6 * (query[:, 2] >= 0)
    density = min(1.0, 60 / max(1, len(key)))
    size = (26 + 240 * np.sqrt(total_weight)) * max(0.35, density)
    for glow, alpha in ((7.0, 0.05), (3.0, 0.10)):
        axes.scatter(
            key[:, 0],
            key[:, 1],
            s=size * glow,
            c=with_alpha(KEY_COLOUR, near_key * alpha),
            linewidths=0,
            zorder=4,
        )
    axes.scatter(
        key[:, 0],
        key[:, 1],
        s=size,
        c=with_alpha(KEY_COLOUR, near_key),
        marker="*",
        linewidths=0,
        zorder=6,
    )
    axes.scatter(
        query[:, 0],
        query[:, 1],
        s=34 * max(0.35, density),
        facecolors="none",
        edgecolors=with_alpha(QUERY_COLOUR, near_query),
        linewidths=1.0,
        zorder=5,
    )
    axes.scatter([], [], s=60, c=KEY_COLOUR, marker="*", linewidths=0, label="key")
    axes.scatter([], [], s=34, facecolors="none", edgecolors=QUERY_COLOUR, label="query")
    axes.legend(loc="lower right", fontsize=7.5, frameon=False, labelcolor=TEXT_COLOUR)


def with_alpha(colour: str, strengths: Array) -> list[tuple[float, float, float, float]]:
    """One colour with each of these alphas."""
    from matplotlib.colors import to_rgb

    return [(*to_rgb(colour), float(strength)) for strength in strengths]


def draw_names(axes: Axes, view: View, weights: Array) -> None:
    """Labels in order of total weight, without overlaps; labels that do not fit are left out."""
    total_weight = weights.sum(0)
    taken = list[tuple[float, float, float, float]]()
    stars = [
        (total_weight[n] + 1, view.extra["key"][n], view.columns[n], KEY_COLOUR)
        for n in np.argsort(-total_weight)[:MAX_NAMES]
    ]
    rings = [
        (0.0, view.extra["query"][n], view.rows[n], QUERY_COLOUR)
        for n in range(min(len(view.rows), MAX_NAMES))
    ]
    size = 7.5 if len(view.columns) <= 60 else 6.0
    for _, point, name, colour in (*stars, *rings):
        away = (0.03, 0.06, 0.1) if colour is KEY_COLOUR else (0.02,)
        place = next((box for box in boxes(point, name, size, away) if is_free(box, taken)), None)
        if place is not None:
            taken.append(place)
            x = (place[0] + place[2]) / 2
            y = (place[1] + place[3]) / 2
            axes.text(
                x,
                y,
                escape_dollar(name),
                ha="center",
                va="center",
                fontsize=size,
                color=colour,
                zorder=7,
            )


def boxes(
    point: Array, name: str, size: float, distances: Sequence[float]
) -> Iterator[tuple[float, float, float, float]]:
    """Candidate boxes for a label: right, left, above, below, diagonal; then farther away."""
    from rich.cells import cell_len

    wide = 0.0052 * size * cell_len(name) + 0.01
    high = 0.0085 * size
    for away in distances:
        for x, y in SIDES:
            at = float(point[0]) + x * (away + wide / 2), float(point[1]) + y * (away + high / 2)
            yield at[0] - wide / 2, at[1] - high / 2, at[0] + wide / 2, at[1] + high / 2


def is_free(
    box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]]
) -> bool:
    """Whether a box overlaps no other."""
    return all(
        box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
        for other in taken
    )
