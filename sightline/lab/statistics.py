"""Means over seeds with 95% confidence intervals, and comparisons that may be undecided."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95% confidence interval (Student's t). A single value, or NaN, is
    its own interval."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        if not values:
            return cls(math.nan, math.nan, math.nan, 0)
        mean = statistics.fmean(values)
        if len(values) == 1 or math.isnan(mean):
            return cls(mean, mean, mean, len(values))
        from scipy.stats import t

        half = (
            float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
            * statistics.stdev(values)
            / math.sqrt(len(values))
        )
        return cls(mean, mean - half, mean + half, len(values))

    def __str__(self) -> str:
        return (
            f"{self.mean:.4g}"
            if self.count < 2
            else f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"
        )


def lies_above(interval: Interval, bound: float) -> bool | None:
    """Whether the mean is above the bound; None where the interval contains the bound."""
    if math.isnan(interval.mean):
        return None
    if interval.low > bound:
        return True
    return False if interval.high <= bound else None


def lies_below(interval: Interval, bound: float) -> bool | None:
    """Whether the mean is below the bound; None where the interval contains the bound."""
    return lies_above(
        Interval(-interval.mean, -interval.high, -interval.low, interval.count), -bound
    )


def lies_within(interval: Interval, low: float, high: float) -> bool | None:
    """Whether the mean lies between the bounds; None where the interval contains one of them."""
    return all_hold([lies_above(interval, low), lies_below(interval, high)])


def all_hold(claims: Sequence[bool | None]) -> bool | None:
    """Three-valued and: False where one claim fails, else None where one is undecided."""
    if False in claims:
        return False
    return None if None in claims else True


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of ours − theirs, paired by seed."""
    return Interval.of([a - b for a, b in zip(ours, theirs, strict=True)])
