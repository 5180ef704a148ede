"""The first experiments' known results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import run
from sightline.lab.experiments import three_words


def test_three_words(tmp_path: Path) -> None:
    found = run("three-words", out=tmp_path, tier="quick")
    assert found.verdict == "supported"
    x = np.array(three_words.X)
    scores = x @ x.T / 2
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(found.numbers["by-hand"]["weights"], weights, atol=1e-12)
    np.testing.assert_allclose(found.numbers["masked"], [0.0900, 0.2447, 0, 0.6652], atol=5e-5)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_speaks_both_languages_and_names_its_source(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for words in (experiment.title, experiment.claim, experiment.look_for, *experiment.corrections):
        assert words.en
        assert any("\u3040" <= sign <= "\u9fff" for sign in words.ja)
    assert experiment.source
    assert experiment.equation
