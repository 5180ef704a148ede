"""The first experiments' known results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import run
from sightline.lab.experiments import softmax_saturation, three_words
from sightline.lab.results import to_json_numbers
from sightline.record import Recorder


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
    found = softmax_saturation.measure_random_scores(16, 0, "quick")
    assert found["variance"] == pytest.approx(16, rel=0.03)
    assert found["raw"]["largest"] > found["scaled"]["largest"]
    assert found["raw"]["entropy"] < found["scaled"]["entropy"] < np.log(softmax_saturation.KEYS)


def saturated(*, variance: float = 1.0, loss: float = 0.1, end: float = 0.9) -> dict[str, Any]:
    """Numbers as they are expected, unless said otherwise."""
    found: dict[str, Any] = {
        f"width-{width}.seed-{seed}": {
            "variance": variance * width + 0.001 * seed,
            "raw": {"largest": 0.95 + 1e-4 * seed, "entropy": 0.1, "gradient": 0.1},
            "scaled": {"largest": 0.1 + 1e-4 * seed, "entropy": 3.0, "gradient": 0.3},
        }
        for width in softmax_saturation.WIDTHS
        for seed in range(3)
    }
    for width in softmax_saturation.HEADS_OF:
        for seed in range(3):
            raw = {
                "start": {"largest": 0.7, "entropy": 1.0},
                "end": {"largest": end, "entropy": 0.2},
                "loss": 2.8 + loss + 0.001 * seed,
            }
            scaled = {
                "start": {"largest": 0.05, "entropy": 3.8},
                "end": {"largest": 0.3, "entropy": 2.0},
                "loss": 2.8 - 0.001 * seed,
            }
            found |= {
                f"trained-{width}.raw.steps-1.seed-{seed}": raw,
                f"trained-{width}.scaled.steps-1.seed-{seed}": scaled,
            }
    return found


def test_saturation_is_judged_by_its_numbers() -> None:
    def holds(**wrong):
        return [check.holds for check in softmax_saturation.judge_saturation(saturated(**wrong))]

    assert holds() == [True] * 8
    assert holds(variance=1.1) == [False] + [True] * 7
    assert holds(loss=-0.1, end=0.3) == [True] * 6 + [False, False]
    assert holds(loss=0.0)[-1] is None


def test_a_trained_model_begins_saturated_without_the_scale() -> None:
    """Two real models after a few steps: the same but for the scale, with their weights measured
    before and after."""
    wide = softmax_saturation.HEADS_OF[-1]
    raw, scaled = (
        to_json_numbers(softmax_saturation.train_with_scale(wide, way, 3, 0))
        for way in ("raw", "scaled")
    )
    assert raw["start"]["largest"] > 0.4 > 0.1 > scaled["start"]["largest"]
    assert (
        raw["start"]["entropy"]
        < 2
        < scaled["start"]["entropy"]
        < np.log(softmax_saturation.CONTEXT)
    )
    assert raw["start"] != raw["end"]


def test_attention_of_by_hand() -> None:
    """The largest weight and the entropy by NumPy, from the weights of the equation."""
    from sightline.architectures import gpt
    from sightline.lab.learning import build_seeded, labelled_batch

    size = softmax_saturation.CONTEXT
    model = build_seeded(gpt(width=16, layers=2, heads=2, vocab_size=9, max_positions=size), 0)
    tokens = torch.randint(9, (2, size), generator=torch.Generator().manual_seed(0))
    found = softmax_saturation.attention_statistics(model, labelled_batch(tokens, tokens))
    recorder = Recorder({"query", "key"})
    with torch.no_grad():
        model.hidden(tokens, record=recorder)
    largest, entropy = [], []
    for layer in range(2):
        q, k = (recorder["decoder", layer, name].double().numpy() for name in ("query", "key"))
        scores = np.where(np.tri(size, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(8), -np.inf)[
            :, :, size // 2 :
        ]
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        largest.append(weights.max(-1).mean())
        entropy.append(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean())
    assert found["largest"] == pytest.approx(np.mean(largest), rel=1e-4)
    assert found["entropy"] == pytest.approx(np.mean(entropy), rel=1e-4)


def test_saturation_can_be_drawn_and_told() -> None:
    assert set(softmax_saturation.draw_saturation(saturated())) == {
        "softmax-saturation",
        "softmax-saturation-trained",
    }
    assert "higher without scaling" in softmax_saturation.summarize_saturation(saturated()).en


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_speaks_both_languages_and_names_its_source(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for words in (experiment.title, experiment.claim, experiment.look_for, *experiment.corrections):
        assert words.en
        assert any("\u3040" <= sign <= "\u9fff" for sign in words.ja)
    assert experiment.source
    assert experiment.equation
