"""Learning rates are tuned per arm before anything is judged.

    pilots (seeds 0 … 99)  →  one rate per arm  →  runs on fresh seeds (100 and up)  →  verdict

Every arm is trained at every rate of a stated grid on pilot seeds; the rate with the best mean
score is the arm's. If that is the lowest or highest rate tried, a better one may lie outside: the
experiment is then undecided. Runs with pilot seeds are never judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.errors import InputError
from sightline.lab.experiment import ExperimentPart, Numbers, TunedRate, Words

PILOT = "pilot."
PILOT_SEED = 0  # of the file with the pilots' results


@dataclass(frozen=True, slots=True)
class Grid:
    """The arms, the rates that each is tried at, and how many pilot seeds."""

    arms: Sequence[str]
    rates: Sequence[float]
    seeds: int
    detail: str = ""  # what the pilots depend on besides: "width-48.steps-400"

    def __post_init__(self) -> None:
        if len(self.rates) < 3:
            raise InputError(
                f"{len(self.rates)} learning rates",
                expected="at least 3, or the best is at the edge",
                fix="a wider grid",
            )


def pilot_parts(
    grid: Grid, measure: Callable[[str, float, int], Mapping[str, Any]]
) -> list[ExperimentPart]:
    """One part per arm, rate and pilot seed. `measure(arm, rate, seed)` returns numbers with a
    `score`, of which less is better; a score that is not finite is a run that failed."""
    detail = f".{grid.detail}" if grid.detail else ""
    return [
        ExperimentPart(
            f"{PILOT}{arm}.rate-{rate:g}{detail}.seed-{seed}",
            lambda arm=arm, rate=rate, seed=seed: measure(arm, rate, seed),
        )
        for arm in grid.arms
        for rate in grid.rates
        for seed in range(grid.seeds)
    ]


def tuned_rates(numbers: Numbers) -> dict[str, TunedRate]:
    """The best rate of each arm among the pilots."""
    scores: dict[str, dict[float, list[float]]] = {}
    for name, row in numbers.items():
        if name.startswith(PILOT):
            arm, rest = name.removeprefix(PILOT).split(".rate-", 1)
            rate = rate_in(rest)
            score = row["score"]
            scores.setdefault(arm, {}).setdefault(rate, []).append(
                math.inf if score is None else float(score)
            )
    return {arm: best_rate(arm, rates) for arm, rates in scores.items()}


def rate_in(text: str) -> float:
    """`0.003.width-48.seed-0` → 0.003."""
    words = text.split(".")
    whole = words[0] if len(words) == 1 or not words[1][:1].isdigit() else f"{words[0]}.{words[1]}"
    return float(whole)


def best_rate(arm: str, scores: Mapping[float, Sequence[float]]) -> TunedRate:
    means = {rate: sum(row) / len(row) for rate, row in sorted(scores.items())}
    rate = min(means, key=means.__getitem__)
    return TunedRate(arm, rate, rate in (min(means), max(means)), tuple(means.items()))


def rate_text(rates: Mapping[str, TunedRate], names: Mapping[str, Words] | None = None) -> Words:
    """`ReLU 0.008, GELU 0.008 (of 0.002 … 0.016)`."""
    if not rates:
        return Words("", "")
    tried = sorted({rate for tuned in rates.values() for rate, _ in tuned.scores})
    grid = f"{tried[0]:g} … {tried[-1]:g}"

    def listed(language: str) -> str:
        return ", ".join(
            f"{names[arm][language] if names and arm in names else arm} {tuned.rate:g}"
            for arm, tuned in rates.items()
        )

    return Words(f"{listed('en')} (of {grid})", f"{listed('ja')}（{grid} から）")
