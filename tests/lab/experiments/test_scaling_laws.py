"""Scaling laws: what a run costs is counted, the verdict follows the losses, and real losses give
the verdict that they gave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.architectures import gpt
from sightline.core.model import build
from sightline.lab import learning
from sightline.lab.experiment import Plan, Tier, TunedRate, verdict_of
from sightline.lab.experiments import scaling_laws
from sightline.lab.experiments.scaling_laws import (
    EXPERIMENT,
    cost_of,
    judge_scaling_laws,
    parameters_of,
    scaling_parts,
    train_run,
)
from sightline.lab.measures.chinchilla_points import PUBLISHED
from sightline.lab.measures.fitting import Chinchilla
from sightline.lab.statistics import Interval
from sightline.training.data.batch import Batch
from sightline.training.data.packed import PackedText, Tokens
from sightline.training.flops import step_flops

LAW = Chinchilla(1.1, 12.0, 77.0, 0.3, 0.4)
"""Made up; its best sizes lie among those that are trained."""


MEASURED = {
    "sweep.flops-2e+09.width-12.steps-108.seed-100": 2.5703,
    "sweep.flops-2e+09.width-16.steps-68.seed-100": 2.6420,
    "sweep.flops-4e+09.width-12.steps-216.seed-100": 2.3978,
    "sweep.flops-4e+09.width-16.steps-136.seed-100": 2.4065,
    "sweep.flops-4e+09.width-24.steps-69.seed-100": 2.5089,
    "sweep.flops-4e+09.width-32.steps-41.seed-100": 2.6401,
    "sweep.flops-8e+09.width-12.steps-432.seed-100": 2.2928,
    "sweep.flops-8e+09.width-16.steps-272.seed-100": 2.2669,
    "sweep.flops-8e+09.width-24.steps-137.seed-100": 2.3397,
    "sweep.flops-8e+09.width-32.steps-83.seed-100": 2.4383,
    "sweep.flops-8e+09.width-48.steps-40.seed-100": 2.5316,
    "held-out.flops-1.6e+10.width-12.steps-865.seed-100": 2.2294,
    "held-out.flops-1.6e+10.width-20.steps-375.seed-100": 2.1699,
    "held-out.flops-1.6e+10.width-32.steps-166.seed-100": 2.2361,
    "held-out.flops-1.6e+10.width-12.steps-865.seed-101": 2.1903,
    "held-out.flops-1.6e+10.width-20.steps-375.seed-101": 2.1683,
    "held-out.flops-1.6e+10.width-32.steps-166.seed-101": 2.2368,
}
"""Losses of the quick tier on Shakespeare."""


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rough interval serves here."""
    monkeypatch.setattr(scaling_laws, "RESAMPLED", 25)


@pytest.fixture(scope="module")
def refit() -> dict[str, Any]:
    return scaling_laws.refit_published(10)


def plan(tier: Tier, seed: int = 100) -> Plan:
    """With the learning rates that pilots would choose."""
    arms = [scaling_laws.arm_of(width) for width in scaling_laws.PLANS[tier].arms]
    return Plan(tier, seed, {arm: TunedRate(arm, 0.04, False, ()) for arm in arms})


def numbers(
    law: Callable[[float, float], float], refit: dict[str, Any], *, noise: float = 0.002
) -> dict[str, Any]:
    """As if the default tier's models obeyed a law, but for noise."""
    random, result = np.random.default_rng(0), dict[str, Any]()
    for part in scaling_parts(plan("default")):
        row = row_of(part.name, 1.0) if "width" in part.name else refit
        if "loss" in row:
            row["loss"] = law(row["parameters"], row["tokens"]) * float(
                np.exp(noise * random.standard_normal())
            )
        result[part.name] = row
    return result


def row_of(name: str, loss: float) -> dict[str, Any]:
    """What a part of this name gives, where its loss is known."""
    width, steps = (int(name.split(f".{what}-")[1].split(".")[0]) for what in ("width", "steps"))
    tokens = steps * 512
    return {
        "width": width,
        "parameters": parameters_of(width),
        "tokens": tokens,
        "flops": cost_of(width) * tokens,
        "loss": loss,
    }


def holds(result: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in judge_scaling_laws(result)]


def test_real_losses_are_judged(refit: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """So few runs leave most of it open; nothing contradicts."""
    monkeypatch.setattr(scaling_laws, "RESAMPLED", 100)  # as in the verdict
    result = {
        "published.samples-20": refit,
        **{name: row_of(name, loss) for name, loss in MEASURED.items()},
    }
    checks = judge_scaling_laws(result)
    assert checks[0].holds is True
    assert checks[-1].holds is True
    assert verdict_of(checks) == "inconclusive", checks
    assert scaling_laws.held_out_budget(result).chosen == 20


def test_losses_that_obey_a_law_support_the_claim(refit: dict[str, Any]) -> None:
    result = numbers(LAW, refit)
    checks = judge_scaling_laws(result)
    assert verdict_of(checks) == "supported", checks
    interval = scaling_laws.law_intervals(result)["exponent"]
    assert interval.low < LAW.exponent < interval.high
    output = EXPERIMENT.summarize(result) if EXPERIMENT.summarize else None
    assert output is not None
    assert "20" in output.ja
    assert "nan" not in output.en


def test_losses_that_break_off_do_not(refit: dict[str, Any]) -> None:
    result = numbers(LAW, refit)
    for name, row in result.items():
        if name.startswith("held-out"):
            result[name] = {**row, "loss": 1.1 * row["loss"]}
    checks = judge_scaling_laws(result)
    assert checks[2].holds is False
    assert verdict_of(checks) == "not supported"


def test_no_change_does_not_pass(refit: dict[str, Any]) -> None:
    """The held-out losses stay at the best of the largest fitted budget, within 3% of the law."""
    result = numbers(LAW, refit)
    before = scaling_laws.reference_loss(result)
    for n, (name, row) in enumerate(result.items()):
        if name.startswith("held-out"):
            result[name] = {**row, "loss": before * (1 + 0.001 * (n % 3))}
    check = judge_scaling_laws(result)[2]
    assert check.holds is False, check.measured


def test_a_best_size_that_does_not_grow_is_seen(refit: dict[str, Any]) -> None:
    """A law in which size does not matter, or hurts; and one whose best size grows faster."""
    assert holds(numbers(lambda n, d: 1.2 + 60 / d**0.4, refit))[1] is not True
    assert holds(numbers(lambda n, d: 1.2 + 60 / d**0.4 + n / 1e6, refit))[1] is False
    assert holds(numbers(Chinchilla(0.8, 3.0, 500.0, 0.1, 0.6), refit))[5] is False
    assert "excludes" in scaling_laws.exponent_sentence(Interval(0.3, 0.2, 0.4, 9)).en
    assert "contains" in scaling_laws.exponent_sentence(Interval(0.5, 0.2, 0.6, 9)).en


def test_a_wrong_best_size_is_seen(refit: dict[str, Any]) -> None:
    """The larger the better, at the held-out budget alone."""
    result = numbers(LAW, refit)
    for name, row in result.items():
        if name.startswith("held-out"):
            result[name] = {**row, "loss": row["loss"] * (row["parameters"] / 3e4) ** -0.1}
    assert holds(result)[3] is not True
    assert holds(result)[4] is False


def test_losses_without_order_leave_no_law(refit: dict[str, Any]) -> None:
    result = numbers(lambda n, d: 2.0 + 0.3 * np.sin(37 * np.log(n * d)), refit)
    assert holds(result)[0] is False


def test_the_printed_numbers_would_not_pass_as_the_fit(refit: dict[str, Any]) -> None:
    printed = {name: getattr(PUBLISHED, name) for name in refit["best"]}
    result = numbers(LAW, {"best": printed, "others": [printed] * 3, "points": 240})
    assert holds(result)[-1] is False
    assert holds(numbers(LAW, refit))[-1] is True


@pytest.mark.parametrize("width", [12, 48, 112])
def test_parameters_and_flops_are_those_of_the_model(width: int) -> None:
    config = gpt(
        width=width,
        layers=2,
        heads=2,
        vocab_size=86,
        max_positions=32,
        positions="rotary",
        bias=False,
    )
    model, tokens = build(config), torch.zeros(16, 32, dtype=torch.long)
    matrices = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name
    )
    assert parameters_of(width) == matrices
    assert cost_of(width) * 16 * 32 == step_flops(
        model, Batch(tokens=tokens, targets=tokens, count=512)
    )


def test_the_best_width_beats_its_neighbours() -> None:
    wide = scaling_laws.best_width(LAW, 1e11)
    losses = [
        LAW(parameters_of(one), 1e11 / cost_of(one)) for one in (0.9 * wide, wide, 1.1 * wide)
    ]
    assert losses[1] < min(losses[0], losses[2])


@pytest.mark.parametrize("tier", ["quick", "default", "full"])
def test_every_budget_is_spent_and_none_is_held_out_and_swept(tier: Any) -> None:
    names = [part.name for part in scaling_parts(plan(tier))]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("sweep") for name in names) >= (10 if tier == "quick" else 20)
    for name in names[1:]:
        assert ".rate-0.04." in name
        flops, width, steps = (
            name.split(f"{what}-")[1].split(".width")[0].split(".steps")[0]
            for what in ("flops", "width", "steps")
        )
        spent = int(steps.split(".")[0]) * 512 * cost_of(int(width))
        assert spent == pytest.approx(float(flops), rel=0.02)
    pilots = [part.name for part in scaling_laws.scaling_pilots(tier)]
    assert len(set(pilots)) == len(pilots)
    largest = max(scaling_laws.PLANS[tier].sweep)
    assert scaling_laws.PLANS[tier].held_out >= 2 * largest


def test_a_run_learns_and_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a small text of its own: the plays need not be there."""
    words = np.array(
        [ord(letter) - 32 for letter in "the cat sat on the mat. " * 200], dtype="uint16"
    )
    (tmp_path / "text").write_bytes(words.tobytes())
    text = Tokens.open(tmp_path / "text", dtype="uint16", vocab_size=97)

    def small(context: int, batch: int, seed: int) -> tuple[PackedText, int]:
        return PackedText(text, text, context, batch, seed), 97

    monkeypatch.setattr(learning, "shakespeare", small)
    short, long, again = (train_run(12, steps, 0.04, 0) for steps in (5, 40, 40))
    assert long == again
    assert long["loss"] < short["loss"] < 5
    assert (long["parameters"], long["tokens"]) == (24 * 12**2, 40 * 512)


def test_the_figures_are_drawn(refit: dict[str, Any]) -> None:
    made = EXPERIMENT.draw(numbers(LAW, refit))
    assert set(made) == {"scaling-laws", "scaling-laws-budgets"}
    assert all(
        axes.get_xlabel() and axes.get_ylabel() for one in made.values() for axes in one.axes
    )
