"""Estimates over seeds with 95% intervals by the kind of number, and comparisons that may be
undecided.

    Interval.of         Student's t                        losses, differences: roughly normal
    Interval.ratio      t of the logarithms                steps, times: positive, multiplicative
    Interval.share      t of arcsin √p                     accuracies, weights: between 0 and 1
    Interval.count_of   exact binomial (Clopper–Pearson)   successes in independent trials
    Interval.bootstrap  resampled means                    many values of unknown shape

Values that are all equal say nothing about how much others would vary: `decide_…` leaves them
undecided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

CONFIDENCE = 0.95
POWER = 0.8  # the chance to decide that "enough seeds" means
MOST_SEEDS = 10_000
RESAMPLES = 10_000
FEWEST_TO_RESAMPLE = 20  # with fewer values a bootstrap interval is too narrow


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95% confidence interval. A single value, or NaN, is its own
    interval.

    `centre` and `spread` are mean and standard deviation on the scale on which the interval was
    computed, `scale` maps a bound onto it; None for counts."""

    mean: float
    low: float
    high: float
    count: int
    centre: float | None = None
    spread: float | None = None
    scale: Callable[[float], float] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The mean, with Student's t."""
        return student(values, identity, identity)

    @classmethod
    def ratio(cls, values: Sequence[float]) -> Interval:
        """The geometric mean of positive values, with Student's t of their logarithms."""
        if any(value <= 0 for value in values):
            return cls.of(values)
        return student(values, math.log, math.exp)

    @classmethod
    def share(cls, values: Sequence[float]) -> Interval:
        """The mean of values between 0 and 1, with Student's t of their angles arcsin √p, on which
        their variance depends little on p. It never leaves [0, 1]."""
        if any(not 0 <= value <= 1 for value in values):
            return cls.of(values)
        return replace(student(values, angle, from_angle), mean=mean_of(values))

    @classmethod
    def count_of(cls, successes: int, trials: int) -> Interval:
        """The share of successes with the exact binomial interval of Clopper and Pearson."""
        if trials == 0:
            return cls(math.nan, math.nan, math.nan, 0)
        from scipy.stats import beta

        tail = (1 - CONFIDENCE) / 2
        low = float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
        high = (
            float(beta.ppf(1 - tail, successes + 1, trials - successes))
            if successes < trials
            else 1.0
        )
        return cls(successes / trials, low, high, trials)

    @classmethod
    def bootstrap(cls, values: Sequence[float], *, seed: int = 0) -> Interval:
        """The mean with the percentiles of resampled means, for at least twenty values."""
        import numpy as np

        if len(values) < FEWEST_TO_RESAMPLE:
            return cls.of(values)
        array = np.asarray(values, dtype=np.float64)
        random = np.random.default_rng(seed)
        draws = random.integers(len(array), size=(RESAMPLES, len(array)))
        tail = 50 * (1 - CONFIDENCE)
        low, high = np.percentile(array[draws].mean(axis=1), [tail, 100 - tail])
        return cls(
            float(array.mean()), float(low), float(high), len(array),
            centre=float(array.mean()), spread=float(array.std(ddof=1)), scale=identity,
        )  # fmt: skip

    @property
    def decides(self) -> bool:
        """Whether it may be compared with a bound: a number, and not the same value every time."""
        if math.isnan(self.mean):
            return False
        return self.count < 2 or self.spread is None or self.spread > 0

    def effect(self, bound: float) -> float | None:
        """The distance of the mean from a bound in standard deviations between seeds."""
        if not self.spread or self.centre is None or self.scale is None:
            return None
        return (self.centre - self.scale(bound)) / self.spread

    def __str__(self) -> str:
        return (
            f"{self.mean:.4g}"
            if self.count < 2
            else f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"
        )


def identity(value: float) -> float:
    return value


def angle(share: float) -> float:
    return math.asin(math.sqrt(min(1.0, max(0.0, share))))


def from_angle(value: float) -> float:
    return math.sin(min(math.pi / 2, max(0.0, value))) ** 2


def mean_of(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def student(
    values: Sequence[float], scale: Callable[[float], float], back: Callable[[float], float]
) -> Interval:
    """Student's interval on a scale, mapped back."""
    if not values:
        return Interval(math.nan, math.nan, math.nan, 0)
    scaled = [scale(value) for value in values]
    centre = statistics.fmean(scaled)
    mean = back(centre)
    if len(values) == 1 or math.isnan(centre):
        return Interval(mean, mean, mean, len(values))
    spread = statistics.stdev(scaled)
    half = t_quantile(len(values) - 1) * spread / math.sqrt(len(values))
    return Interval(
        mean, back(centre - half), back(centre + half), len(values), centre, spread, scale
    )


@cache
def t_quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


# ------------------------------------------------------------------------------------ comparisons


@dataclass(frozen=True, slots=True)
class Decision:
    """An interval compared with a bound: whether the claim holds (None: undecided), the effect, and
    how many seeds would probably decide it."""

    holds: bool | None
    interval: Interval
    bound: float
    is_count: bool = False

    @property
    def effect(self) -> float | None:
        """Standard deviations between the mean and the bound."""
        return self.interval.effect(self.bound)

    @property
    def seeds(self) -> int:
        return self.interval.count

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds decide with a chance of 80%, if the effect is what it seems; None where no
        number of up to 10,000 would, or where nothing can be said."""
        if self.is_count:
            return trials_needed(self.interval.mean, self.bound)
        effect = self.effect
        return None if effect is None else seeds_for_effect(abs(effect))


def seeds_for_effect(effect: float) -> int | None:
    """The smallest number of seeds at which a two-sided 95% interval excludes the bound with a
    chance of 80%."""
    return smallest(lambda seeds: chance_to_decide(effect, seeds) >= POWER, first=2)


def chance_to_decide(effect: float, seeds: int) -> float:
    """The power of a one-sample t test at an effect in standard deviations."""
    from scipy.stats import nct

    shift = effect * math.sqrt(seeds)
    if shift > 30:
        return 1.0
    return 1.0 - float(nct.cdf(t_quantile(seeds - 1), seeds - 1, shift))


def trials_needed(share: float, bound: float) -> int | None:
    """The number of trials at which the exact interval around this share excludes the bound."""

    def excluded(trials: int) -> bool:
        interval = Interval.count_of(round(share * trials), trials)
        return interval.low > bound or interval.high < bound

    return smallest(excluded, first=2)


def smallest(holds: Callable[[int], bool], *, first: int) -> int | None:
    """The smallest count for which it holds, if it holds for all larger ones."""
    high = first
    while not holds(high):
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = max(first, high // 2)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high


def decide_above(interval: Interval, bound: float) -> Decision:
    """Whether the mean is above the bound; undecided where the interval contains the bound, or
    where values that are all equal say nothing."""
    holds = lies_above(interval, bound) if interval.decides else None
    return Decision(holds, interval, bound)


def decide_below(interval: Interval, bound: float) -> Decision:
    """Whether the mean is below the bound; undecided as for `decide_above`."""
    holds = lies_below(interval, bound) if interval.decides else None
    return Decision(holds, interval, bound)


def decide_count_above(successes: int, trials: int, bound: float) -> Decision:
    """Whether the chance of success is above the bound."""
    interval = Interval.count_of(successes, trials)
    return Decision(lies_above(interval, bound), interval, bound, is_count=True)


def decide_count_below(successes: int, trials: int, bound: float) -> Decision:
    """Whether the chance of success is below the bound."""
    interval = Interval.count_of(successes, trials)
    return Decision(lies_below(interval, bound), interval, bound, is_count=True)


def lies_above(interval: Interval, bound: float) -> bool | None:
    """Whether the mean is above the bound; None where the interval contains the bound."""
    if math.isnan(interval.mean):
        return None
    if interval.low > bound:
        return True
    return False if interval.high <= bound else None


def lies_below(interval: Interval, bound: float) -> bool | None:
    """Whether the mean is below the bound; None where the interval contains the bound."""
    if math.isnan(interval.mean):
        return None
    if interval.high < bound:
        return True
    return False if interval.low >= bound else None


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


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interval of ours / theirs, paired by seed."""
    return Interval.ratio([a / b for a, b in zip(ours, theirs, strict=True)])
