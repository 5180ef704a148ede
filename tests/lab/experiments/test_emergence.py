"""Exact answers are the eighth power of right digits; what counts as a jump is computed."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, verdict_of
from sightline.lab.experiments import emergence
from sightline.lab.experiments.emergence import DIGITS, LENGTHS, EmergencePlan


def planted(*, seeds: int = 3, correlated: bool = False, straight: bool = False) -> dict[str, Any]:
    """Models whose digits become right at a steady pace over log parameters, independently of each
    other unless said otherwise."""
    numbers: dict[str, Any] = {}
    for seed in range(seeds):
        for step, parameters in enumerate(2.0 ** np.arange(9)):
            p = 0.2 + 0.8 * step / 8 - 0.001 * seed * (step < 8)
            exact = {str(length): p if correlated or straight else p**length for length in LENGTHS}
            row = {
                "step": 1,
                "nats": -math.log(10) * (p - 1),
                "right": [p] * DIGITS,
                "exact": exact,
            }
            numbers[f"width-{step}.names-9.steps-1.seed-{seed}"] = {
                "width": step,
                "parameters": 100 * parameters,
                "course": [row],
            }
    return numbers


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """Real models, taught a book of 24 names."""
    plan = EmergencePlan((2, 8, 40), 24, 160, 1)
    return {
        f"width-{width}.seed-0": emergence.train_on_book(plan, width, 0) for width in plan.widths
    }


def test_independent_digits_look_like_emergence() -> None:
    checks = emergence.judge_emergence(planted())
    assert [check.holds for check in checks] == [True] * 4
    assert verdict_of(checks) == "supported"


def test_answers_that_rise_like_their_digits_do_not() -> None:
    checks = emergence.judge_emergence(planted(correlated=True))
    assert [check.holds for check in checks] == [False] * 4


def test_a_book_that_is_not_learned_leaves_it_open() -> None:
    numbers = {name: row for name, row in planted().items() if row["width"] < 6}
    assert [check.holds for check in emergence.judge_emergence(numbers)] == [None, None, True, None]


def test_what_is_known_is_counted_by_hand() -> None:
    """Against NumPy, from the logits, with answers decoded digit by digit."""
    tokens, digits = emergence.phone_book(20, 3)
    model = trained_model(tokens, digits)
    found = emergence.recall_scores(model, tokens, digits)
    with torch.no_grad():
        logits = model(tokens).double().numpy()
        said = tokens[:, :1]
        for _ in range(DIGITS):
            said = torch.cat([said, model(said)[:, -1:].argmax(-1)], 1)
    likely = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.take_along_axis(likely, digits.numpy()[..., None], -1)
    assert found["nats"] == pytest.approx(-np.log(chosen).mean(), rel=1e-6)
    for length in LENGTHS:
        assert found["exact"][str(length)] == np.mean(
            (said[:, 1 : length + 1] == digits[:, :length]).all(1).numpy()
        )
    assert 0 < found["exact"]["2"] < 1


def trained_model(tokens: torch.Tensor, digits: torch.Tensor) -> Any:
    """Half taught, so that some answers are right and some are not."""
    from sightline.architectures import gpt
    from sightline.lab.learning import GeneratedTask, labelled_batch, train_model

    config = gpt(width=8, layers=1, heads=1, vocab_size=30, max_positions=DIGITS, tied=False)
    return train_model(
        config, GeneratedTask(lambda _: labelled_batch(tokens, digits)), steps=60, lr=1e-2
    ).transformer


def test_the_measures_of_a_curve() -> None:
    x = list(np.linspace(0, 10, 11))
    assert emergence.first_crossing(x, x, 2.5) == pytest.approx(2.5)
    assert math.isnan(emergence.first_crossing(x, x, 11))
    assert emergence.rise_width(x, [value / 10 for value in x]) == pytest.approx(8)
    assert emergence.rise_width(x, [0.5 + value / 20 for value in x]) == pytest.approx(
        8
    )  # from the first point
    jump = [0.0] * 5 + [1.0] * 6
    assert emergence.rise_width(x, jump) == pytest.approx(0.8)
    assert emergence.power_law([0.5, 1.0, 0.0], 2) == 0.75**2


def test_real_models_improve_and_what_they_do_not_reach_is_open(small: dict[str, Any]) -> None:
    poor, middling, good = (row["course"][-1] for row in small.values())
    assert poor["nats"] > middling["nats"] > good["nats"]
    assert poor["exact"]["8"] == 0.0 < 0.1 < good["exact"]["8"] < 0.5
    assert [emergence.judge_emergence(small)[n].holds for n in (0, 1, 3)] == [None] * 3
    assert float(np.mean([abs(a - b) for a, b in emergence.power_law_points(small)])) < 0.1


def test_real_numbers_made_to_contradict(small: dict[str, Any]) -> None:
    edited = copy.deepcopy(small)
    for row in edited.values():
        for one in row["course"]:
            one["exact"] = dict.fromkeys(one["exact"], min(one["right"]))
    assert emergence.judge_emergence(edited)[2].holds is False
    assert verdict_of(emergence.judge_emergence(edited)) != "supported"


def test_summary_and_figures(small: dict[str, Any]) -> None:
    words = emergence.summarize_emergence(small)
    assert "nats per digit" in words.en
    assert "ナット" in words.ja
    assert set(emergence.draw_emergence(small)) == {"emergence"}
    names = [part.name for part in emergence.emergence_parts(Plan("quick", 4))]
    assert len(set(names)) == len(names)
    assert names[0].endswith("seed-4")
