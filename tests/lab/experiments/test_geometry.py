"""Direction and length: exact laws by NumPy, and a verdict that follows the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiments import geometry as lab
from sightline.lab.measures import kernel_smoother as kernel
from sightline.lab.results import to_json_numbers


@pytest.fixture(scope="module")
def smoother() -> dict[str, Any]:
    return to_json_numbers(lab.measure_smoother(0))


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    """Real runs of a few steps."""
    return {kind: to_json_numbers(lab.train_kind(kind, 1e-2, 6, 0)) for kind in lab.KINDS}


def numbers(
    runs: dict[str, Any],
    smoother: dict[str, Any],
    *,
    ngpt_lead: float = 0.5,
    cosine_loss: float = 0.0,
    dot_edge: float = 0.0,
) -> dict[str, Any]:
    """Real runs with the loss made to say what is wanted."""
    layer = {
        "query": 5.0,
        "key": 6.0,
        "cosine": 0.1,
        "direction": 0.9,
        "length": 0.1,
        "attention length": 0.1,
        "apart": 1e-6,
    }
    found: dict[str, Any] = {"real.minilm": [layer] * 3}
    for seed in range(3):
        found[f"smoother.seed-{seed}"] = smoother
        for kind in lab.KINDS:
            lead = {"dot": 0.0, "cosine": 0.0, "ngpt": ngpt_lead}[kind]
            course = [4 - lead - 0.02 * n - 0.001 * seed for n in range(50)]
            loss = 3.0 + (cosine_loss if kind == "cosine" else 0.0) + 0.001 * seed
            for rate, more in (
                (0.003, 0.1),
                (0.01, dot_edge if kind == "dot" else 0.0),
                (0.03, 0.1),
            ):
                found[f"trained.{kind}.rate-{rate}.steps-50.seed-{seed}"] = runs[kind] | {
                    "course": course,
                    "loss": loss + more,
                }
    return found


def test_the_smoother_is_nadaraya_and_watsons() -> None:
    """By a loop in NumPy, in three dimensions."""
    random = np.random.default_rng(0)
    x, places, values = (
        random.normal(size=(7, 3)),
        random.normal(size=(30, 3)),
        random.normal(size=(30, 2)),
    )
    wanted = np.zeros((7, 2))
    for n, point in enumerate(x):
        masses = [np.exp(-np.sum((point - place) ** 2) / (2 * 0.6**2)) for place in places]
        wanted[n] = sum(k * value for k, value in zip(masses, values, strict=True)) / sum(masses)
    given = [torch.from_numpy(one) for one in (x, places, values)]
    for formula in (kernel.attention_smoother, kernel.kernel_smoother):
        np.testing.assert_allclose(formula(*given, 0.6).numpy(), wanted, atol=1e-9)


def test_to_leave_oneself_out_is_a_mask() -> None:
    at, values = (
        torch.arange(6.0).double()[:, None],
        torch.randn(6, 1, generator=torch.Generator().manual_seed(1)).double(),
    )
    found = kernel.attention_smoother(at, at, values, 1.0, leave_out=True)
    for n in range(6):
        others = [i for i in range(6) if i != n]
        torch.testing.assert_close(
            found[n : n + 1], kernel.kernel_smoother(at[n : n + 1], at[others], values[others], 1.0)
        )


def test_the_smoother_finds_the_curve(smoother: dict[str, Any]) -> None:
    assert smoother["apart"] < 1e-9
    assert smoother["error"] < 0.5 * smoother["flat"]
    assert min(smoother["errors"]) < smoother["errors"][-1]


def test_length_has_no_say_in_cosine_attention(runs: dict[str, dict[str, Any]]) -> None:
    assert abs(runs["cosine"]["length"]) < 1e-6
    assert abs(runs["ngpt"]["length"]) < 0.05
    assert abs(runs["dot"]["length"]) > 1e-3
    assert runs["dot"]["parameters"] == pytest.approx(runs["ngpt"]["parameters"], rel=0.05)


def test_steps_to_a_loss() -> None:
    assert lab.steps_to_loss({"course": [3.0, 2.5, 2.0]}, 2.6) == 2
    assert lab.steps_to_loss({"course": [3.0, 2.5, 2.0]}, 1.0) == 3


def test_the_verdict_follows_the_numbers(runs: dict[str, Any], smoother: dict[str, Any]) -> None:
    assert [check.holds for check in lab.judge_geometry(numbers(runs, smoother))] == [True] * 7
    slow = lab.judge_geometry(numbers(runs, smoother, ngpt_lead=-0.3, cosine_loss=0.2))
    assert [check.holds for check in slow] == [True, True, True, False, False, True, True]
    edge = lab.judge_geometry(numbers(runs, smoother, dot_edge=0.2))
    assert [check.holds for check in edge] == [True, True, True, None, None, True, True]
    wrong = numbers(runs, smoother)
    wrong["real.minilm"] = [wrong["real.minilm"][0] | {"direction": 0.4, "apart": 1.0}]
    wrong["smoother.seed-0"] = wrong["smoother.seed-0"] | {"apart": 1e-3}
    assert [check.holds for check in lab.judge_geometry(wrong)] == [
        False,
        False,
        True,
        True,
        True,
        False,
        True,
    ]


def test_it_can_be_drawn_and_told(runs: dict[str, Any], smoother: dict[str, Any]) -> None:
    given = numbers(runs, smoother)
    assert set(lab.draw_geometry_figures(given)) == {
        "geometry-real",
        "geometry-trained",
        "geometry-smoother",
    }
    assert "nGPT" in lab.summarize_geometry(given).en


def test_a_real_model_by_layer() -> None:
    """minilm: the product is the score, and the shares sum to one."""
    layers = lab.measure_real_layers("minilm")
    assert len(layers) == 6
    assert max(layer["apart"] for layer in layers) < 1e-4
    assert all(layer["direction"] + layer["length"] == pytest.approx(1) for layer in layers)
    assert min(layer["direction"] for layer in layers) > 0.5
