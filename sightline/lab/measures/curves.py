"""Curves over training: when to measure, where one crosses a level, how sharply it rises."""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_spaced_steps(steps: int, ratio: float) -> set[int]:
    """Measurement steps, each `ratio` times the one before."""
    return {min(steps, round(ratio**n)) for n in range(math.ceil(math.log(steps, ratio)) + 1)}


def first_crossing(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """Where a curve first reaches the level, by linear interpolation; NaN if it never does."""
    if y[0] >= level:
        return x[0]
    for n in range(1, len(x)):
        if y[n - 1] < level <= y[n]:
            return x[n - 1] + (x[n] - x[n - 1]) * (level - y[n - 1]) / (y[n] - y[n - 1])
    return math.nan


def rise_width(x: Sequence[float], y: Sequence[float]) -> float:
    """The distance between the first crossings of 10% and 90% of the highest value; from the first
    point where that is already above 10%."""
    top = max(y)
    return first_crossing(x, y, 0.9 * top) - first_crossing(x, y, 0.1 * top)
