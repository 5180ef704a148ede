"""Fitting scaling laws: known numbers are found again, derivatives are right, the best size is the
best."""

from __future__ import annotations

import numpy as np
import pytest

from sightline.errors import InputError
from sightline.lab.measures.chinchilla_points import KEPT, POINTS
from sightline.lab.measures.fitting import (
    Chinchilla,
    Kaplan,
    Law,
    LossPoint,
    bootstrap,
    bootstrap_interval,
    fit_law,
    log_rows,
    objective,
    parabola_vertex,
    r_squared,
)

CHINCHILLA = Chinchilla(1.69, 406.4, 410.7, 0.34, 0.28)
SMALL = Chinchilla(1.2, 8.0, 60.0, 0.25, 0.4)
KAPLAN = Kaplan(8.8e13, 5.4e13, 0.076, 0.095)


def made(
    law: Law,
    sizes: tuple[float, float],
    tokens: tuple[float, float],
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> list[LossPoint]:
    """Runs that obey a law, but for noise."""
    random = np.random.default_rng(seed)
    grid = [(float(n), float(d)) for n in np.geomspace(*sizes, 6) for d in np.geomspace(*tokens, 5)]
    return [
        LossPoint(n, d, law(n, d) * float(np.exp(noise * random.standard_normal())))
        for n, d in grid
    ]


@pytest.mark.parametrize(
    ("law", "sizes", "tokens"),
    [
        (CHINCHILLA, (5e7, 1e10), (1e9, 3e11)),
        (SMALL, (3e3, 3e5), (3e4, 3e6)),
        (KAPLAN, (1e6, 1e9), (2e7, 2e10)),
    ],
)
def test_known_numbers_are_found_again(
    law: Law, sizes: tuple[float, float], tokens: tuple[float, float]
) -> None:
    result = fit_law(type(law), made(law, sizes, tokens))
    np.testing.assert_allclose(result.theta, law.theta, rtol=2e-3)


def test_noise_widens_the_interval_and_the_truth_lies_within() -> None:
    result = [
        (fit_law(Chinchilla, runs), bootstrap(Chinchilla, runs, samples=30))
        for runs in (
            made(SMALL, (3e3, 3e5), (3e4, 3e6), noise=noise, seed=1) for noise in (0.001, 0.01)
        )
    ]
    quiet, loud = (
        bootstrap_interval(best.exponent, [one.exponent for one in others])
        for best, others in result
    )
    assert quiet.high - quiet.low < loud.high - loud.low
    assert loud.low < SMALL.exponent < loud.high


def test_one_wild_run_hardly_moves_the_fit() -> None:
    runs = made(SMALL, (3e3, 3e5), (3e4, 3e6))
    runs[7] = LossPoint(runs[7].parameters, runs[7].tokens, 1.5 * runs[7].loss)
    assert fit_law(Chinchilla, runs).exponent == pytest.approx(SMALL.exponent, rel=0.02)


@pytest.mark.parametrize("law", [SMALL, Kaplan(2e8, 4e7, 0.08, 0.12)])
def test_the_law_as_logarithms_is_the_law_and_its_derivatives_are_right(law: Law) -> None:
    runs = made(law, (3e3, 3e5), (3e4, 3e6), noise=0.02)
    known, theta = log_rows(runs), law.theta
    predicted, _ = type(law).log_loss(theta, known[0], known[1])
    np.testing.assert_allclose(
        np.exp(predicted), [law(run.parameters, run.tokens) for run in runs], rtol=1e-12
    )
    _, slope = objective(theta, type(law), known)
    step = 1e-7 * np.eye(len(theta))
    measured = [
        (objective(theta + one, type(law), known)[0] - objective(theta - one, type(law), known)[0])
        / 2e-7
        for one in step
    ]
    np.testing.assert_allclose(slope, measured, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("law", [CHINCHILLA, SMALL])
def test_the_best_size_is_the_best_of_many(law: Chinchilla) -> None:
    for flops in (1e10, 1e20):
        size, tokens = law.best(flops)
        assert 6 * size * tokens == pytest.approx(flops)
        sizes = size * np.geomspace(0.1, 10, 2001)
        losses = [law(float(one), flops / 6 / float(one)) for one in sizes]
        assert sizes[int(np.argmin(losses))] == pytest.approx(size, rel=2e-3)
        assert law.best(2 * flops)[0] / size == pytest.approx(2**law.exponent)


def test_a_parabola_finds_its_own_vertex_and_misses_the_laws() -> None:
    sizes = [float(one) for one in np.geomspace(1e3, 1e5, 7)]
    assert parabola_vertex(
        sizes, [2 + (np.log(one) - np.log(2e4)) ** 2 for one in sizes]
    ) == pytest.approx(2e4)
    assert parabola_vertex(sizes, [-(np.log(one) ** 2) for one in sizes]) is None
    missed = {
        law: parabola_vertex([law.best(1e12)[0] * one for one in (0.1, 0.2, 1, 5, 10)], on(law))
        for law in (EVEN, SMALL)
    }
    assert missed[EVEN] == pytest.approx(EVEN.best(1e12)[0], rel=1e-6)
    assert abs((missed[SMALL] or 0) / SMALL.best(1e12)[0] - 1) > 0.02


EVEN = Chinchilla(1.2, 8.0, 60.0, 0.3, 0.3)


def on(law: Chinchilla) -> list[float]:
    """An isoFLOP curve, its middle at the best size."""
    sizes = [law.best(1e12)[0] * one for one in (0.1, 0.2, 1, 5, 10)]
    return [law(size, 1e12 / 6 / size) for size in sizes]


def test_the_published_points_are_all_there() -> None:
    """Their count, and the standard deviations that Besiroglu et al. print."""
    columns = np.array(
        [[run.parameters, run.tokens, 6 * run.parameters * run.tokens, run.loss] for run in POINTS]
    )
    assert (len(POINTS), len(KEPT)) == (245, 240)
    np.testing.assert_allclose(
        columns.std(0, ddof=1), [2464560600.1, 38025506115.7, 1.08496379e21, 0.364386965], rtol=1e-6
    )


def test_the_published_points_give_the_refitted_law_and_not_the_printed_one() -> None:
    result, known = fit_law(Chinchilla, KEPT), log_rows(KEPT)
    refitted = Chinchilla(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
    np.testing.assert_allclose(result.theta, refitted.theta, rtol=0.01)
    costs = [
        float(objective(law.theta, Chinchilla, known)[0]) for law in (result, refitted, CHINCHILLA)
    ]
    assert costs[0] <= costs[1] < costs[2] / 2
    assert r_squared(result, KEPT) > 0.99


def test_too_few_runs_and_impossible_ones_are_refused() -> None:
    with pytest.raises(InputError, match="3 runs"):
        fit_law(Chinchilla, made(SMALL, (3e3, 3e5), (3e4, 3e6))[:3])
    with pytest.raises(InputError, match="above 0"):
        fit_law(Chinchilla, [LossPoint(1e3, 1e4, 0.0)] * 9)
