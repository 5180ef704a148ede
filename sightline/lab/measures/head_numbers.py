"""What the runs of `single-vs-multi-head` say, read from its saved numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sightline.lab.experiment import Numbers
from sightline.lab.measures.two_relations import division_of_work, has_learned, steps_to_learn
from sightline.lab.statistics import Interval, paired_ratio
from sightline.lab.tuning import tuned_rates

# Of the grid: the two above one head's best on the pilot seeds.
HIGH_RATES = (8e-3, 1.6e-2)


def runs_of(numbers: Numbers) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith("run.")]


def head_counts(numbers: Numbers) -> list[int]:
    return sorted({row["heads"] for row in runs_of(numbers)})


def runs_at(numbers: Numbers, heads: int, rate: float) -> list[Mapping[str, Any]]:
    """The runs of all seeds with this number of heads, at this rate."""
    return [row for row in runs_of(numbers) if (row["heads"], row["rate"]) == (heads, rate)]


def tuned_runs(numbers: Numbers, heads: int) -> list[Mapping[str, Any]]:
    return runs_at(numbers, heads, tuned_rates(numbers)[f"heads-{heads}"].rate)


def high_rates(numbers: Numbers) -> list[float]:
    """The high rates at which every number of heads was trained."""
    return [
        rate
        for rate in HIGH_RATES
        if all(runs_at(numbers, heads, rate) for heads in head_counts(numbers))
    ]


def step_ratio(numbers: Numbers, heads: int) -> Interval:
    """Steps of this many heads / steps of one head, by seed, each at its tuned rate."""
    ours, theirs = (
        [steps_to_learn(row) for row in tuned_runs(numbers, count)] for count in (heads, 1)
    )
    return paired_ratio(ours, theirs)


def work_of(row: Mapping[str, Any]) -> float:
    return division_of_work(row["to content"], row["to place"])


def seeds_that_differ(numbers: Numbers, heads: int) -> tuple[int, int]:
    """At how many seeds several heads learn at more of the high rates than one head, and at how
    many seeds the two differ."""
    counts = {
        count: [
            sum(map(has_learned, rows))
            for rows in zip(
                *(runs_at(numbers, count, rate) for rate in high_rates(numbers)), strict=True
            )
        ]
        for count in (1, heads)
    }
    gaps = [several - one for several, one in zip(counts[heads], counts[1], strict=True)]
    return sum(gap > 0 for gap in gaps), sum(gap != 0 for gap in gaps)


def cost_rows(numbers: Numbers) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith("cost.")]


def time_ratio(numbers: Numbers, kernel: str, heads: int) -> Interval:
    """CPU time of a layer with this many heads / with one head."""
    rows = [row["layer"][kernel] for row in cost_rows(numbers)]
    return paired_ratio([row[str(heads)] for row in rows], [row["1"] for row in rows])


def call_ratio(numbers: Numbers, tokens: int) -> Interval:
    """CPU time of one call per head / of one call for all heads."""
    rows = [row["calls"][str(tokens)] for row in cost_rows(numbers)]
    return paired_ratio([row["many calls"] for row in rows], [row["one call"] for row in rows])
