"""The learning rate, by tables worked out by hand."""

from __future__ import annotations

import math

import pytest

from sightline.training.config import Schedule, Shape
from sightline.training.schedules import factor, factor_by_clock

TABLES: dict[Shape, dict[int, float]] = {
    "constant": {0: 1 / 5, 1: 2 / 5, 3: 4 / 5, 4: 1, 10: 1, 19: 1, 30: 1},
    "linear": {
        0: 1 / 5,
        3: 4 / 5,
        4: 1,
        8: 1 - 0.9 / 4,
        12: 0.55,
        16: 0.1 + 0.9 / 4,
        20: 0.1,
        30: 0.1,
    },
    "cosine": {
        0: 1 / 5,
        4: 1,
        8: 0.1 + 0.45 * (1 + math.sqrt(0.5)),
        12: 0.55,
        16: 0.1 + 0.45 * (1 - math.sqrt(0.5)),
        20: 0.1,
        30: 0.1,
    },
    "wsd": {0: 1 / 5, 4: 1, 10: 1, 16: 1, 18: 0.55, 19: 0.1 + 0.9 / 4, 20: 0.1, 30: 0.1},
    "inverse_sqrt": {0: 1 / 5, 3: 4 / 5, 4: 1, 16: 0.5, 100: 0.2},
}


@pytest.mark.parametrize("shape", TABLES)
def test_each_shape(shape: Shape) -> None:
    """Four steps of warm-up, twenty in all, down to a tenth; wsd falls in the last quarter of the
    sixteen."""
    schedule = Schedule(shape=shape, warmup=4, final=0.1, decay=0.25)
    assert {step: factor(schedule, step, 20) for step in TABLES[shape]} == pytest.approx(
        TABLES[shape], abs=1e-12
    )


@pytest.mark.parametrize("shape", TABLES)
def test_without_warm_up_it_begins_at_the_top(shape: Shape) -> None:
    assert factor(Schedule(shape=shape, warmup=0), 0, 20) == 1


def test_a_warm_up_longer_than_the_run() -> None:
    schedule = Schedule(warmup=100)
    assert [factor(schedule, step, 3) for step in range(3)] == pytest.approx(
        [1 / 101, 2 / 101, 3 / 101]
    )


def test_noam() -> None:
    """The 2017 paper's formula, but for its scale: min(step^-½, step · warmup^-1½) · √warmup, where
    steps count from 1."""
    schedule = Schedule(shape="inverse_sqrt", warmup=400)
    for step in (500, 1000, 4000):
        assert factor(schedule, step, 10_000) == pytest.approx(
            min(step**-0.5, step * 400**-1.5) * math.sqrt(400)
        )


def test_by_the_clock() -> None:
    schedule = Schedule(shape="linear", warmup=4, final=0.0)
    assert factor_by_clock(schedule, 0, 0.0) == pytest.approx(1 / 5)
    assert factor_by_clock(schedule, 1, 0.5) == pytest.approx(2 / 5 * 0.5)
    assert factor_by_clock(schedule, 50, 0.75) == pytest.approx(0.25)
    assert factor_by_clock(schedule, 50, 1.2) == 0
    assert factor_by_clock(Schedule(shape="inverse_sqrt", warmup=4), 16, 0.9) == pytest.approx(0.5)
