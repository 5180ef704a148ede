"""Grokking is said to be seen only where it is: late, with decay, in few waves that are all it
takes."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, verdict_of
from sightline.lab.experiments import grokking
from sightline.lab.experiments.grokking import DECAY, FEW, GrokkingSize
from sightline.lab.measures import waves

REAL = GrokkingSize(31, 0.5, 300, 1)


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """One seed that gets there early, with decay and without."""
    return {
        f"{how}.seed-1": grokking.train_on_sums(REAL, decay, 1)
        for how, decay in (("decay", DECAY), ("none", 0.0))
    }


def test_a_real_run_groks(real: dict[str, Any]) -> None:
    checks = grokking.judge_grokking(real)
    assert verdict_of(checks) == "supported", [
        (check.statement.en, check.measured) for check in checks
    ]
    decay, none = real["decay.seed-1"], real["none.seed-1"]
    assert grokking.log_delay(decay) > math.log(3)
    assert grokking.generalized_step(none) is None
    assert decay["kept"] > 0.9 > 0.2 > decay["removed"]
    assert abs(decay["random"] - grokking.strongest_share(decay["start"])) < 0.05
    assert decay["test"] == decay["curve"]["test"][-1]


def test_a_run_that_has_not_got_there_is_left_open(real: dict[str, Any]) -> None:
    edited = copy.deepcopy(real)
    row = edited["decay.seed-1"]
    row["curve"]["test"] = [min(value, 0.9) for value in row["curve"]["test"]]
    row["test"] = 0.9
    checks = grokking.judge_grokking(edited)
    assert [check.holds for check in checks] == [True] + [None] * 5
    assert verdict_of(checks) == "inconclusive"
    assert "1 of 1 runs had not generalised" in grokking.summarize_grokking(edited).en


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({"curve.test": [1.0] * 99}, [0, 1]),  # known at once
        ({"none.test": 0.9}, [2]),
        ({"end": [1 / 15] * 15}, [3]),
        ({"kept": 0.5}, [4]),
        ({"removed": 0.6}, [5]),
    ],
)
def test_contradictions_are_not_supported(
    real: dict[str, Any], change: dict[str, Any], fails: list[int]
) -> None:
    edited = copy.deepcopy(real)
    for path, value in change.items():
        row = edited["none.seed-1" if path.startswith("none.") else "decay.seed-1"]
        if path == "curve.test":
            row["curve"]["test"] = value[: len(row["curve"]["step"])]
        else:
            row[path.removeprefix("none.")] = value
    checks = grokking.judge_grokking(edited)
    assert [n for n, check in enumerate(checks) if check.holds is False] == fails
    assert verdict_of(checks) == "not supported"


def test_planted_waves_are_found_and_cut_out() -> None:
    """Against cosines made by hand and NumPy's sums."""
    prime, width, random = 23, 7, np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(prime)[:, None] / prime
    strong = {
        k: np.cos(k * angle + random.uniform(0, 6, (1, width))) * random.normal(size=(1, width))
        for k in (2, 9)
    }
    weak = 0.01 * np.cos(5 * angle) * random.normal(size=(1, width))
    table = torch.tensor(3.0 + sum(strong.values()) + weak)
    assert sorted(waves.strongest(table, 2)) == [2, 9]
    np.testing.assert_allclose(waves.waves(table, [2, 9]), 3.0 + sum(strong.values()), atol=1e-12)
    power = [
        float((np.abs((np.exp(-1j * k * angle) * table.numpy()).sum(0)) ** 2).sum())
        for k in range(1, 12)
    ]
    np.testing.assert_allclose(waves.spectrum(table), np.array(power) / sum(power), atol=1e-12)
    assert waves.top_share(waves.spectrum(table).tolist(), 2) > 0.999


def test_noise_is_flat() -> None:
    found = waves.noise_share(31, 64, FEW, random=torch.Generator().manual_seed(0))
    assert FEW / 15 < found < FEW / 15 + 0.1


def test_the_sums_and_the_weights() -> None:
    tokens, answers = grokking.all_sums(7)
    assert [(a + b) % 7 for a, b, _ in tokens.tolist()] == answers.tolist()
    assert len({tuple(row) for row in tokens.tolist()}) == 49
    learner = grokking.new_train_state(GrokkingSize(7, 0.5, 10, 1), 0.5, 0)
    groups = [group for part in learner.optimizers.parts for group in part.param_groups]
    assert {group["weight_decay"] for group in groups} == {0.5}
    assert sum(len(group["params"]) for group in groups) == len(
        list(learner.transformer.parameters())
    )


def test_measurements_are_spread_over_the_run() -> None:
    when = sorted(grokking.log_spaced_steps(700))
    assert (when[0], when[-1]) == (1, 700)
    assert max(b / a for a, b in itertools.pairwise(when[9:])) < 1.2


def test_summary_and_figures(real: dict[str, Any]) -> None:
    words = grokking.summarize_grokking(real)
    assert "Without weight decay" in words.en
    assert "重み減衰" in words.ja
    assert math.isfinite(grokking.frequency_progress(real["decay.seed-1"]))
    assert set(grokking.draw_grokking(real)) == {"grokking"}
    names = [part.name for part in grokking.grokking_parts(Plan("quick", 2))]
    assert len(set(names)) == len(names) == 6
