"""Column sums against Python's integers; the verdict on worlds of planted logits, in which exact
answers do or do not jump."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, TunedRate, verdict_of
from sightline.lab.experiments import emergence
from sightline.lab.experiments.emergence import ARM, EmergencePlan
from sightline.lab.learning import seeded_generator
from sightline.lab.measures import column_sums, curves
from sightline.lab.measures.column_sums import DIGITS, LENGTHS

BASE = 5
SMALL = EmergencePlan(12, BASE, 40, 2, 1)
ANSWERS = 500


def planted_logits(digits: torch.Tensor, share: float, how: str, seed: int) -> torch.Tensor:
    """Logits that are right with the given chance: each digit by itself, or all digits of an answer
    together."""
    random = torch.Generator().manual_seed(seed)
    shape = (len(digits), 1 if how == "together" else DIGITS)
    right = torch.rand(shape, generator=random).expand(-1, DIGITS) < share
    confident = math.log((BASE - 1) * max(share, 0.21) / max(1 - share, 0.003))
    answer = torch.where(right, digits, (digits + 1) % BASE)
    return confident * torch.nn.functional.one_hot(answer, BASE).double()


def planted(how: str, *, seeds: int = 4, looks: int = 25, steep: bool = False) -> dict[str, Any]:
    """Courses in which digits become right at a steady pace over log steps, or within one."""
    numbers: dict[str, Any] = {}
    for seed in range(100, 100 + seeds):
        _, digits = column_sums.random_sums(ANSWERS, BASE, seeded_generator(seed, 5))
        course = list[dict[str, Any]]()
        for n in range(looks):
            share = 0.2 + 0.799 * n / 24
            if steep:
                share = 0.2 if n < 10 else 0.999
            logits = planted_logits(digits, share, how, 100 * seed + n)
            scores = column_sums.answer_scores(logits, digits)
            course.append({"step": 10 * 1.2**n + seed % 3} | scores)
        numbers[f"width-1.seed-{seed}"] = {"base": BASE, "course": course}
    return numbers


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in emergence.judge_emergence(numbers)]


def test_digits_that_are_right_one_by_one_look_like_emergence() -> None:
    checks = emergence.judge_emergence(planted("alone"))
    assert [check.holds for check in checks] == [True] * 4, [check.measured for check in checks]
    assert verdict_of(checks) == "supported"


def test_digits_that_are_right_together_do_not() -> None:
    """Exact answers rise with the digits, far above p^8, and at the same time for 2 digits."""
    numbers = planted("together")
    result = holds(numbers)
    assert result[0] is not True
    assert result[2] is False
    assert result[3] is not True
    assert min(emergence.error_correlations(numbers)) > 0.9


def test_a_loss_that_jumps_too_is_not_called_gradual() -> None:
    """The loss jumps between two measurements, and exact answers with it: neither is sharper or
    later, and hardly any likelihood was there before."""
    result = holds(planted("together", steep=True))
    assert result[0] is not True
    assert result[3] is not True


def test_answers_before_likelihood_are_seen() -> None:
    """Exact answers rise while the model is hardly surer than a guess, as slowly as it becomes
    sure."""
    numbers = planted("alone")
    for seed, row in enumerate(numbers.values()):
        _, digits = column_sums.random_sums(ANSWERS, BASE, seeded_generator(100 + seed, 5))
        for n, look in enumerate(row["course"]):
            logits = planted_logits(digits, (n + 1) / 26, "together", seed)
            unsure = column_sums.answer_scores(0.003 * logits * (1 + seed / 9), digits)
            look.update(unsure)
    assert holds(numbers)[1] is False


def test_sums_that_are_not_learned_leave_it_open() -> None:
    numbers = planted("alone", looks=12)
    assert [holds(numbers)[n] for n in (0, 1, 3)] == [None] * 3


@pytest.mark.parametrize("base", [5, 10])
def test_sums_are_those_of_python(base: int) -> None:
    tokens, digits = column_sums.random_sums(50, base, seeded_generator(1))
    place = [base**n for n in range(DIGITS)]
    for columns, answer in zip(tokens.tolist(), digits.tolist(), strict=True):
        a = sum(column // base * value for column, value in zip(columns, place, strict=True))
        b = sum(column % base * value for column, value in zip(columns, place, strict=True))
        whole = sum(digit * value for digit, value in zip(answer, place, strict=True))
        assert whole == (a + b) % base**DIGITS


def test_scores_are_those_of_numpy() -> None:
    logits = torch.randn(60, DIGITS, BASE, generator=seeded_generator(2)).double()
    digits = logits.argmax(-1)
    digits[::3, 2:] = (digits[::3, 2:] + 1) % BASE
    result = column_sums.answer_scores(logits, digits)
    odds = np.exp(logits.numpy())
    odds /= odds.sum(-1, keepdims=True)
    chosen = np.take_along_axis(odds, digits.numpy()[..., None], -1)
    assert result["nats"] == pytest.approx(-np.log(chosen).mean())
    assert result["exact"] == {"1": 1.0, "2": 1.0, "4": 40 / 60, "8": 40 / 60}
    assert result["right"] == [1.0, 1.0] + [pytest.approx(40 / 60)] * 6
    assert set(result["exact"]) == {str(length) for length in LENGTHS}
    errors = (logits.argmax(-1) == digits).double().numpy()
    covariance = np.cov(errors.T)
    between = covariance.sum() - np.trace(covariance)
    assert result["together"] == pytest.approx(between / (DIGITS - 1) / np.trace(covariance))


def test_the_measures_of_a_curve() -> None:
    x = list(np.linspace(0, 10, 11))
    assert curves.first_crossing(x, x, 2.5) == pytest.approx(2.5)
    assert math.isnan(curves.first_crossing(x, x, 11))
    assert curves.rise_width(x, [value / 10 for value in x]) == pytest.approx(8)
    jump = [0.0] * 5 + [1.0] * 6
    assert curves.rise_width(x, jump) == pytest.approx(0.8)
    assert column_sums.power_law([0.5, 1.0, 0.0], 2) == 0.75**2
    when = sorted(curves.log_spaced_steps(700, 1.1))
    assert (when[0], when[-1]) == (1, 700)


def test_real_models_learn_to_add() -> None:
    """Really trained, judged, summarised and drawn."""
    numbers = {
        f"width-12.seed-{seed}": emergence.train_on_sums(SMALL, 0.04, seed) for seed in (100, 101)
    }
    numbers["pilot.x.rate-0.1.seed-0"] = {"score": 1.0}
    course = numbers["width-12.seed-100"]["course"]
    assert course[0]["nats"] > math.log(BASE) - 0.1 > course[-1]["nats"] > 0
    assert emergence.mean_loss(numbers["width-12.seed-100"]) < course[0]["nats"]
    assert verdict_of(emergence.judge_emergence(numbers)) == "inconclusive"
    words = emergence.summarize_emergence(numbers)
    assert "0 of 2 models" in words.en
    assert "2個のモデル" in words.ja
    learned = emergence.summarize_emergence(planted("alone"))
    assert "8 columns" in learned.en
    assert "nan" not in learned.en
    assert "進数" in learned.ja
    assert set(emergence.draw_emergence(numbers)) == {"emergence"}


def test_part_names_state_the_rate_and_the_sums() -> None:
    plan = Plan("quick", 104, {ARM: TunedRate(ARM, 0.03, False, ())})
    names = [part.name for part in emergence.emergence_parts(plan)]
    assert len(set(names)) == len(names)
    assert names[0] == "width-24.base-5.steps-400.rate-0.03.seed-104"
    pilots = [part.name for part in emergence.emergence_pilots("default")]
    assert len(set(pilots)) == len(emergence.RATES) * 3
