"""Positions: the exact laws against NumPy, and verdicts that follow the losses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan
from sightline.lab.experiments import positions
from sightline.lab.measures import position_laws
from sightline.lab.results import to_json_numbers


def losses(by_length: list[float]) -> dict[str, Any]:
    return {"by_length": by_length, "along": [by_length[-1]] * positions.BINS}


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    """The quick tier's parts that train nothing."""
    return {
        part.name: to_json_numbers(part.measure())
        for part in positions.positions_parts(Plan("quick"))
        if not part.name.startswith("length.")
    }


def with_losses(
    exact: dict[str, Any], *, alibi: list[float], learned: list[float]
) -> dict[str, Any]:
    """Made-up losses of three seeds beside the real exact parts."""
    numbers = copy.deepcopy(exact)
    for seed in range(3):
        moved = 1e-3 * seed
        for scheme in positions.SCHEMES:
            row = {"alibi": alibi, "learned": learned}.get(scheme, [2.4, 2.5, 2.6, 2.7])
            found: dict[str, Any] = {
                "context": 32,
                scheme: losses([value + moved * (n + 1) for n, value in enumerate(row)]),
            }
            numbers[f"length.{scheme}.context-32.steps-1.seed-{seed}"] = found | (
                {"yarn": losses([2.4] * 4)} if scheme == "rope" else {}
            )
    return numbers


FLAT, RISING = [2.3, 2.3, 2.3, 2.3], [2.4, 2.6, 2.8, 3.0]


def test_the_verdict_follows_the_losses(exact: dict[str, Any]) -> None:
    good = [
        check.holds
        for check in positions.judge_positions(with_losses(exact, alibi=FLAT, learned=RISING))
    ]
    assert good == [True] * 11
    swapped = [
        check.holds
        for check in positions.judge_positions(with_losses(exact, alibi=RISING, learned=FLAT))
    ]
    assert swapped == [True] * 7 + [False] * 3 + [None]


def test_broken_laws_are_not_supported(exact: dict[str, Any]) -> None:
    numbers = with_losses(exact, alibi=FLAT, learned=RISING)
    numbers["order.none.seed-100"]["encoder"] = 0.1
    numbers["sinusoids"] = {"first": [0.841, 0.541, 0.01, 1, 0, 1, 0, 1], "off": 0.1, "bent": 0.0}
    numbers["distance.rope.seed-100"]["within"] = 0.2
    assert [check.holds for check in positions.judge_positions(numbers)][:7] == [
        False,
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_sinusoids_by_numpy() -> None:
    found = position_laws.measure_sinusoids()
    angle = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(
        found["first"].numpy(), np.stack((np.sin(angle), np.cos(angle)), 1).ravel(), atol=1e-7
    )
    assert found["off"] < 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_only_a_model_without_positions_and_mask_is_equivariant(seed: int) -> None:
    without = position_laws.measure_order("none", seed)
    assert without["encoder"] < 1e-12 < 1e-3 < without["causal"]
    assert without["encoder unmoved"] > 0.1
    assert position_laws.measure_order("rope", seed)["encoder"] > 1e-6


def test_rope_scores_by_numpy() -> None:
    """Scores of one word repeated are Re Σ q̄ k e^{i(n − m)ω} of its first score pair by pair;
    here: a function of n − m."""
    scores = position_laws.first_scores("rope", 0).numpy()
    toeplitz = scores[:, 0, np.abs(np.subtract.outer(np.arange(96), np.arange(96)))]
    upper = np.triu(np.ones((96, 96), bool))
    np.testing.assert_allclose(scores[:, upper], toeplitz[:, upper], atol=1e-5 * np.ptp(scores))
    assert np.ptp(scores) > 0


def test_alibi_scores_by_numpy() -> None:
    scores = position_laws.first_scores("alibi", 0).numpy()
    distance = np.abs(np.subtract.outer(np.arange(96), np.arange(96)))
    expected = -np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * distance
    np.testing.assert_allclose(scores - scores[:, :1, :1], expected, atol=1e-5)


def test_losses_by_hand() -> None:
    """A table instead of a model: the loss at each length is the mean of −log p over the same
    characters."""
    table = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    rows = torch.randint(0, 5, (3, 8 * 16 + 1), generator=torch.Generator().manual_seed(1))

    class Table(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return table[tokens]

    found = positions.losses_by_length(dict.fromkeys(positions.TIMES, Table()), rows, 16)  # pyright: ignore
    log_p = table.numpy() - np.log(np.exp(table.numpy()).sum(1, keepdims=True))
    by_hand = -log_p[rows[:, :-1].numpy(), rows[:, 1:].numpy()]
    np.testing.assert_allclose(found["by_length"], [by_hand.mean()] * 4, rtol=1e-6)
    np.testing.assert_allclose(found["along"], by_hand.mean(0).reshape(16, -1).mean(1), rtol=1e-6)


def test_it_can_be_drawn_and_told(exact: dict[str, Any]) -> None:
    numbers = with_losses(exact, alibi=FLAT, learned=RISING)
    assert set(positions.draw_positions(numbers)) == {"positions", "positions-scores"}
    said = positions.summarize_positions(numbers)
    assert "ALiBi 2.304 (+0.003)" in said.en
    assert "YaRN" in said.ja
