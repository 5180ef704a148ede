"""Equal models, the training and its outcome, and verdicts that follow per-seed losses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, TunedRate
from sightline.lab.experiments import post_ln_ends_better as experiment
from sightline.lab.learning import GeneratedTask, labelled_batch
from sightline.lab.results import to_json_numbers
from sightline.lab.tuning import tuned_rates
from sightline.training.data.batch import Batch

SYMBOLS = 6
UNIFORM = [float(np.log(SYMBOLS))] * SYMBOLS


@lru_cache(maxsize=128)
def counting(step: int) -> Batch:
    """Rows that count upwards from a random symbol: each token tells the next."""
    starts = np.random.default_rng(step).integers(SYMBOLS, size=(8, 1))
    rows = torch.from_numpy((starts + np.arange(17)) % SYMBOLS)
    return labelled_batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


def train(form: experiment.Form, rate: float) -> dict[str, Any]:
    model = experiment.equal_model(form, 1, 16, SYMBOLS, 0)
    task = GeneratedTask(counting, held_out=[counting(1000), counting(1001)])
    return to_json_numbers(
        experiment.train_and_compare(model, task, UNIFORM, steps=40, rate=rate, seed=0)
    )


@pytest.mark.parametrize("form", ["pre", "post"])
def test_a_real_run_trains_and_a_real_run_does_not(form: experiment.Form) -> None:
    good, idle = train(form, 0.02), train(form, 1e-6)
    assert good["trained"] is True
    assert good["score"] < 1.0 < idle["score"]
    assert good["training"] == pytest.approx(good["score"], abs=0.5)
    assert idle["trained"] is False


@pytest.mark.parametrize("depth", [1, 3])
def test_both_forms_have_equal_parameters(depth: int) -> None:
    models = [experiment.equal_model(form, depth, 16, SYMBOLS, 0) for form in experiment.FORMS]
    shapes = [sorted(tuple(w.shape) for w in model.parameters()) for model in models]
    assert shapes[0] == shapes[1]
    with torch.no_grad():  # Post-LN normalises its output, Pre-LN its branches and its output
        states = [model.hidden(counting(0).tokens) for model in models]
    for state in states:
        assert float(state.mean(-1).abs().max()) < 1e-5


def numbers(
    *, shallow: float, deep: float, trained: bool = True, parameters: int = 5, noise: float = 0.01
) -> dict[str, Any]:
    """Pilots, and per-seed losses: Post-LN's differ from Pre-LN's by these gaps, give or take the
    noise; a seed's difficulty is common to both."""
    result: dict[str, Any] = {
        f"pilot.{form}-{depth}.rate-{rate:g}.seed-0": {"score": abs(np.log(rate / 0.01))}
        for depth in (2, 6)
        for form in experiment.FORMS
        for rate in (0.005, 0.01, 0.02)
    }
    random = np.random.default_rng(0)
    for seed in range(100, 112):
        text = random.normal(0, 0.5)
        for depth, lead in ((2, shallow), (6, deep)):
            for form in experiment.FORMS:
                is_post = form == "post"
                loss = 2.2 + text + is_post * lead + random.normal(0, noise)
                result[f"run.{form}-{depth}.rate-0.01.seed-{seed}"] = {
                    "score": loss if trained or not is_post else None,
                    "training": loss,
                    "trained": trained or not is_post,
                    "parameters": parameters if is_post else 5,
                }
    return result


def holds(result: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in experiment.judge_post_ln(result)]


def test_the_verdict_follows_the_losses() -> None:
    assert holds(numbers(shallow=-0.03, deep=0.05)) == [True] * 4
    assert holds(numbers(shallow=0.03, deep=-0.05)) == [True, True, False, False]
    assert holds(numbers(shallow=0.0, deep=0.0)) == [True, True, None, None]
    assert holds(numbers(shallow=-0.03, deep=0.05, parameters=6))[0] is False
    never = holds(numbers(shallow=-0.03, deep=0.05, trained=False))
    assert never[1:] == [False, None, None]


def test_it_can_be_drawn_and_told() -> None:
    result = numbers(shallow=-0.03, deep=0.05)
    assert set(experiment.draw_post_ln(result)) == {"post-ln-ends-better"}
    words = experiment.summarize_post_ln(result)
    assert "Post-LN, 2 layers 2." in words.en
    assert "Post-LN、6層 2." in words.ja


def test_parts_use_the_tuned_rate_of_each_arm() -> None:
    for tier in ("quick", "default", "full"):
        rates = {
            arm: TunedRate(arm, 0.001 * (n + 1), False, ())
            for n, arm in enumerate(experiment.arms_of(tier))
        }
        names = [part.name for part in experiment.post_ln_parts(Plan(tier, 100, rates))]
        assert len(set(names)) == len(names) == 4 * experiment.SEEDS[tier]
        assert all(f"rate-{rates[name.split('.')[1]].rate:g}." in name for name in names)
        pilots = {part.name: {"score": 1.0} for part in experiment.post_ln_pilots(tier)}
        assert set(tuned_rates(pilots)) == set(rates) <= set(experiment.ARMS)
