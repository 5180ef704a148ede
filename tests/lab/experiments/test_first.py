"""The first experiments' known results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiments import softmax_saturation, three_words
from sightline.lab.running import run


def test_three_words(tmp_path: Path) -> None:
    found = run("three-words", out=tmp_path, tier="quick")
    assert found.verdict == "supported"
    x = np.array(three_words.X)
    scores = x @ x.T / 2
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(found.numbers["by-hand"]["weights"], weights, atol=1e-12)
    np.testing.assert_allclose(found.numbers["masked"], [0.0900, 0.2447, 0, 0.6652], atol=5e-5)


def test_saturation_by_brute_force() -> None:
    """The measures of one sample against NumPy and a gradient by differences."""
    found = softmax_saturation.measured(16, 0, "quick")
    assert found["variance"] == pytest.approx(16, rel=0.03)
    assert found["raw"]["largest"] > found["scaled"]["largest"]
    assert found["raw"]["entropy"] < found["scaled"]["entropy"] < np.log(softmax_saturation.KEYS)


def test_a_wrong_variance_is_not_supported() -> None:
    numbers = {
        f"width-{width}.seed-{seed}": {
            "variance": 1.1 * width + 0.001 * seed,
            "raw": {"largest": 0.95 + 1e-4 * seed, "entropy": 0.1, "gradient": 0.1},
            "scaled": {"largest": 0.1 + 1e-4 * seed, "entropy": 3.0, "gradient": 0.3},
        }
        for width in softmax_saturation.WIDTHS
        for seed in range(3)
    }
    holds = [check.holds for check in softmax_saturation.judge(numbers)]
    assert holds == [False, True, True, True, True]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_speaks_both_languages_and_names_its_source(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for words in (experiment.title, experiment.claim, experiment.look_for, *experiment.corrections):
        assert words.en
        assert any("\u3040" <= sign <= "\u9fff" for sign in words.ja)
    assert experiment.source
    assert experiment.equation
