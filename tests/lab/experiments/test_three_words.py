"""The smallest example against NumPy, and a world for each check in which it is false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.core import multi_head
from sightline.explain import example
from sightline.lab.executor import run
from sightline.lab.experiments import three_words as lab
from sightline.lab.results import to_json_numbers

BY_HAND, KERNELS, SUMS, MASKED, RANDOM = range(5)


def measured(*, spread: float = 1.0, masked: float = float("-inf")) -> dict[str, Any]:
    return to_json_numbers(
        {
            "by-hand": lab.attention_by_hand(),
            "by-kernel": lab.attention_by_kernel(),
            "masked": lab.masked_example(masked),
            "random.small": lab.random_weights(0, spread),
        }
    )


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_three_words(numbers)]


def test_three_words(tmp_path: Path) -> None:
    result = run("three-words", out=tmp_path, tier="quick")
    assert result.verdict == "supported"
    x = np.array(lab.X)
    scores = x @ x.T / 2
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(result.numbers["by-hand"]["weights"], weights, atol=1e-12)
    np.testing.assert_allclose((weights @ x)[0], lab.FIRST_OUTPUT, atol=5e-4)
    np.testing.assert_allclose(result.numbers["masked"], [0.0900, 0.2447, 0, 0.6652], atol=5e-5)


def test_other_vectors_have_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ((1.0, 0.5, 0.2, 0.1), (0.3, 1.0, 0.4, 0.2), (0.2, 0.3, 1.0, 0.6))
    monkeypatch.setattr(example, "X", other)
    monkeypatch.setattr(lab, "X", other)
    assert holds(measured()) == [False, True, True, True, True]


def test_a_kernel_that_does_not_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = multi_head.attention
    monkeypatch.setattr(
        multi_head,
        "attention",
        lambda query, key, value, **options: attention(2 * query, key, value, **options),
    )
    assert holds(measured()) == [True, False, True, True, True]


def test_weights_that_are_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "softmax", lambda row: tuple(np.exp(row)))
    verdict = holds(measured())
    assert (verdict[BY_HAND], verdict[SUMS]) == (False, False)


def test_a_mask_of_zero_is_no_mask() -> None:
    assert holds(measured(masked=0.0)) == [True, True, True, False, True]


def test_random_weights_of_small_scores_are_uniform() -> None:
    """Queries and keys a fiftieth as large: what the check would call flat."""
    assert lab.random_weights(0, 0.02)["flat"] > 0.5 * lab.DRAWS
    assert holds(measured(spread=0.02)) == [True, True, True, True, False]


def test_it_can_be_drawn() -> None:
    assert set(lab.draw_three_words(measured())) == {"three-words"}
