"""Intervals and the comparisons that they allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from sightline.lab.statistics import (
    Interval,
    lies_above,
    lies_below,
    lies_within,
    paired_difference,
)


def test_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(3, 2, 9)
    found = Interval.of(values.tolist())
    low, high = scipy.stats.t.interval(0.95, 8, loc=values.mean(), scale=scipy.stats.sem(values))
    assert (found.mean, found.low, found.high, found.count) == pytest.approx(
        (values.mean(), low, high, 9)
    )
    assert Interval.of([2.0]) == Interval(2.0, 2.0, 2.0, 1)
    assert math.isnan(Interval.of([]).mean)


def test_it_holds_the_true_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    inside = [
        (one := Interval.of(random.normal(0, 1, 5).tolist())).low <= 0 <= one.high
        for _ in range(2000)
    ]
    assert 0.93 < np.mean(inside) < 0.97


@pytest.mark.parametrize(
    ("low", "high", "over", "under", "between"),
    [(2, 3, True, False, False), (-1, 0, False, True, False), (0.5, 1.5, None, None, None)],
)
def test_comparisons_may_be_undecided(
    low: float, high: float, over: bool | None, under: bool | None, between: bool | None
) -> None:
    found = Interval((low + high) / 2, low, high, 5)
    assert lies_above(found, 1) is over
    assert lies_below(found, 1) is under
    assert lies_within(found, 0.9, 1.1) is between
    assert lies_within(found, -5, 5) is True
    assert lies_above(Interval.of([]), 1) is None


def test_differences_are_seed_by_seed() -> None:
    assert paired_difference([3.0, 5.0], [2.0, 4.0]) == Interval(1.0, 1.0, 1.0, 2)
