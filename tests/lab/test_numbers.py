"""Intervals and the comparisons that they allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from scipy.stats import binom, t

from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    decide_count_above,
    decide_count_below,
    lies_above,
    lies_below,
    lies_within,
    paired_difference,
    paired_ratio,
    seeds_for_effect,
)


def test_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(3, 2, 9)
    result = Interval.of(values.tolist())
    low, high = scipy.stats.t.interval(0.95, 8, loc=values.mean(), scale=scipy.stats.sem(values))
    assert (result.mean, result.low, result.high, result.count) == pytest.approx(
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
    result = Interval((low + high) / 2, low, high, 5)
    assert lies_above(result, 1) is over
    assert lies_below(result, 1) is under
    assert lies_within(result, 0.9, 1.1) is between
    assert lies_within(result, -5, 5) is True
    assert lies_above(Interval.of([]), 1) is None


def test_differences_are_seed_by_seed() -> None:
    result = paired_difference([3.0, 5.0], [2.0, 4.0])
    assert (result.mean, result.low, result.high, result.count) == (1.0, 1.0, 1.0, 2)


# ------------------------------------------------------------------------- intervals by their kind


def test_a_count_has_clopper_and_pearsons_interval() -> None:
    """Their own tail probabilities: at the ends, the count is one of 2.5%."""
    for successes, trials in ((0, 27), (3, 9), (9, 9), (40, 100)):
        result = Interval.count_of(successes, trials)
        if successes:
            assert binom.sf(successes - 1, trials, result.low) == pytest.approx(0.025)
        if successes < trials:
            assert binom.cdf(successes, trials, result.high) == pytest.approx(0.025)
    assert Interval.count_of(0, 27).high == pytest.approx(0.1277, abs=1e-4)  # not below 10%
    assert Interval.count_of(6, 6).high == 1.0


def test_shares_stay_between_0_and_1_and_cover() -> None:
    assert Interval.share([0.005, 0.9, 1.0]).high <= 1.0
    assert Interval.of([0.005, 0.9, 1.0]).high > 1.5  # Student's t does not
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        values = random.beta(18, 2, 6)
        result = Interval.share(values.tolist())
        assert 0 <= result.low <= result.high <= 1
        inside += result.low <= 0.9 <= result.high
    assert inside / 400 == pytest.approx(0.95, abs=0.03)


def test_ratios_are_geometric() -> None:
    result = Interval.ratio([0.5, 2.0])
    assert result.mean == pytest.approx(1.0)
    assert result.low * result.high == pytest.approx(1.0)
    assert paired_ratio([1.0, 4.0, 9.0], [2.0, 8.0, 18.1]).mean == pytest.approx(0.5, abs=1e-3)


def test_a_bootstrap_covers_the_mean_of_skewed_values() -> None:
    random = np.random.default_rng(1)
    draws = [random.exponential(1.0, 60) for _ in range(100)]
    inside = sum(
        (one := Interval.bootstrap(values.tolist(), seed=n)).low <= 1.0 <= one.high
        for n, values in enumerate(draws)
    )
    assert inside / 100 == pytest.approx(0.93, abs=0.05)
    few = draws[0].tolist()[:6]
    assert Interval.bootstrap(few) == Interval.of(few)


def test_values_that_are_all_equal_decide_nothing() -> None:
    for interval in (Interval.of([0.9] * 5), Interval.share([1.0] * 5), Interval.ratio([2.0] * 3)):
        assert decide_above(interval, 0.1).holds is None
        assert decide_below(interval, 9.0).holds is None
    assert decide_above(Interval.of([0.9, 0.91, 0.9]), 0.1).holds is True
    assert decide_count_above(5, 5, 0.4).holds is True  # a count of runs may be all of them
    assert decide_count_below(0, 27, 0.1).holds is None
    assert decide_count_below(0, 36, 0.1).holds is True


def test_the_effect_is_in_standard_deviations_on_the_intervals_scale() -> None:
    decision = decide_above(Interval.of([1.0, 2.0, 3.0]), 0.5)
    assert decision.effect == pytest.approx(1.5)
    logs = np.log([2.0, 4.0, 16.0])
    ratio = decide_above(Interval.ratio([2.0, 4.0, 16.0]), 1.0)
    assert ratio.effect == pytest.approx(logs.mean() / logs.std(ddof=1))


@pytest.mark.parametrize("effect", [0.4, 1.0, 2.5])
def test_the_seeds_needed_decide_four_times_of_five(effect: float) -> None:
    """Simulated, with Student's interval computed here."""
    needed = seeds_for_effect(effect)
    assert needed is not None
    random = np.random.default_rng(3)

    def decided(seeds: int) -> float:
        values = random.normal(effect, 1.0, (4000, seeds))
        half = t.ppf(0.975, seeds - 1) * values.std(axis=1, ddof=1) / np.sqrt(seeds)
        return float((values.mean(axis=1) - half > 0).mean())

    assert decided(needed) > 0.78
    assert needed == 2 or decided(needed - 1) < 0.82


def test_no_number_of_seeds_shows_what_is_not_there() -> None:
    assert seeds_for_effect(0.0) is None
    assert decide_count_above(5, 10, 0.5).seeds_needed is None
    needed = decide_count_below(0, 27, 0.1).seeds_needed
    assert needed is not None
    assert Interval.count_of(0, needed).high < 0.1 < Interval.count_of(0, needed - 1).high
