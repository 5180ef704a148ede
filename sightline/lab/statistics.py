"""Numbers with their doubt: means over seeds, 95% intervals, and comparisons that may be
undecided."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SURE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and where the true one lies with 95% confidence (Student's t). One value
    alone, or NaN, is taken as it is."""

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
            float(t.ppf((1 + SURE) / 2, len(values) - 1))
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


def above(found: Interval, bound: float) -> bool | None:
    """Whether it is greater; None where the interval holds the bound."""
    if math.isnan(found.mean):
        return None
    if found.low > bound:
        return True
    return False if found.high <= bound else None


def below(found: Interval, bound: float) -> bool | None:
    """Whether it is smaller; None where the interval holds the bound."""
    return above(Interval(-found.mean, -found.high, -found.low, found.count), -bound)


def within(found: Interval, low: float, high: float) -> bool | None:
    """Whether it lies between; None where the interval holds one of the bounds."""
    sides = above(found, low), below(found, high)
    return False if False in sides else None if None in sides else True


def differences(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Seed by seed: ours − theirs."""
    return Interval.of([a - b for a, b in zip(ours, theirs, strict=True)])
