"""Why √d_k: the measures by brute force, and a world for each check in which it is false."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import TIERS, Plan
from sightline.lab.experiments import softmax_saturation as lab
from sightline.lab.measures import random_scores, scaled_attention
from sightline.lab.results import to_json_numbers
from sightline.lab.tuning import tuned_rates
from sightline.record import Recorder

VARIANCE, GROWS, SCALED, MEAN, MEDIAN, AT_QUERY, START, SATURATED, WORSE, BY_START, START_MORE = (
    range(11)
)
SEEDS = range(4)


@cache
def random_numbers(stretch: Callable[[int], float], *, own_key: bool = False) -> dict[str, Any]:
    """Queries, keys and gradients as tensors through the measures: the keys of width d are
    `stretch(d)` times as long as they should be. `own_key`: each query has a key equal to it."""
    result: dict[str, Any] = {}
    for width in lab.WIDTHS:
        for seed in SEEDS:
            random = torch.Generator().manual_seed(100 * seed + width)
            query = torch.randn(60, width, generator=random, dtype=torch.float64)
            key = torch.randn(60, 64, width, generator=random, dtype=torch.float64)
            upstream = torch.randn(60, 64, generator=random, dtype=torch.float64)
            key = key * stretch(width)
            if own_key:
                key[:, 0] = query
            result[f"width-{width}.samples-60.repeat-{seed}"] = {
                "variance": width * (1 + 0.001 * seed),
                "raw": random_scores.softmax_statistics(query, key, upstream, scale=1.0),
                "scaled": random_scores.softmax_statistics(
                    query, key, upstream, scale=1 / math.sqrt(width)
                ),
            }
    return result


def as_it_is(width: int) -> float:
    del width
    return 1.0


def short_keys(width: int) -> float:
    return 1 / math.sqrt(width)


def long_keys(width: int) -> float:
    return 30 * math.sqrt(width)


LOSSES = {"scaled": 2.7, "raw": 2.9, "raw-same-start": 2.72, "scaled-saturated": 2.86}
STARTS = {"scaled": 0.04, "raw": 0.62, "raw-same-start": 0.04, "scaled-saturated": 0.62}


def trained_numbers(
    losses: dict[str, float] = LOSSES, *, end: float = 0.8, starts: dict[str, float] = STARTS
) -> dict[str, Any]:
    """Losses of five seeds, which differ more by seed than by arm."""
    result: dict[str, Any] = {
        f"pilot.{way}.rate-{rate:g}.d-256.steps-250.seed-0": {"score": abs(rate - 1.5e-3)}
        for way in lab.WAYS
        for rate in (5e-4, 1.5e-3, 4.5e-3)
    }
    for seed in SEEDS:
        for place, way in enumerate(lab.WAYS):
            noise = 1e-3 * ((seed * 7 + place * 3) % 5)
            result[f"trained.{way}.d-256.steps-250.rate-0.0015.seed-{seed}"] = {
                "start": {"largest": starts[way] + 1e-3 * seed, "entropy": 1.0},
                "end": {"largest": (end if way == "raw" else 0.4) + noise, "entropy": 1.0},
                "loss": losses[way] + 0.3 * seed + noise,
            }
    return result


def holds(random: dict[str, Any], trained: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_saturation(random | trained)]


def test_supported_where_all_of_it_is_true() -> None:
    assert holds(random_numbers(as_it_is), trained_numbers()) == [True] * 11


def test_short_keys_saturate_nothing() -> None:
    """Keys so short that q·k has variance 1 without the division."""
    verdict = holds(random_numbers(short_keys), trained_numbers())
    assert (verdict[GROWS], verdict[SCALED]) == (False, True)
    assert verdict[MEDIAN] is False


def test_long_keys_saturate_also_with_the_division() -> None:
    """Scores of standard deviation 30 √d_k at every width."""
    assert holds(random_numbers(long_keys), trained_numbers())[SCALED] is False


def test_a_key_that_always_wins_takes_the_gradient_also_in_narrow_heads() -> None:
    """Each query has its own key, so that no two keys tie for it."""
    verdict = holds(random_numbers(as_it_is, own_key=True), trained_numbers())
    assert (verdict[MEAN], verdict[AT_QUERY]) == (False, False)


def test_correlated_entries_have_another_variance() -> None:
    """Twice d_k, measured as that of heads twice as wide."""
    random = torch.Generator().manual_seed(0)
    assert random_scores.score_variance(16, 20_000, random) == pytest.approx(16, rel=0.05)
    twice = random_scores.score_variance(32, 20_000, random) / 16
    wrong = {
        name: row | {"variance": twice * row["variance"]}
        for name, row in random_numbers(as_it_is).items()
    }
    assert holds(wrong, trained_numbers())[VARIANCE] is False


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [
        ({"raw": 2.6}, {WORSE}),
        ({"raw-same-start": 3.1}, {BY_START, START_MORE}),
        ({"scaled-saturated": 2.4}, {BY_START, START_MORE}),
        ({"raw-same-start": 2.9}, {START_MORE}),
    ],
)
def test_losses_that_say_the_opposite(losses: dict[str, float], wrong: set[int]) -> None:
    verdict = holds(random_numbers(as_it_is), trained_numbers(LOSSES | losses))
    assert {n for n, held in enumerate(verdict) if held is False} == wrong


def test_equal_losses_decide_nothing() -> None:
    equal = trained_numbers(dict.fromkeys(LOSSES, 2.7))
    assert holds(random_numbers(as_it_is), equal)[WORSE:] == [None] * 3


def test_training_that_undoes_the_saturation() -> None:
    undone = trained_numbers(end=0.3)
    assert holds(random_numbers(as_it_is), undone)[SATURATED] is False


def largest_at_start(way: str, seed: int = 0) -> float:
    tokens = torch.randint(9, (2, scaled_attention.CONTEXT), generator=torch.manual_seed(seed))
    model = scaled_attention.start_model(way, 9, seed)
    return scaled_attention.attention_statistics(model, tokens_as_batch(tokens))["largest"]


def tokens_as_batch(tokens: torch.Tensor) -> Any:
    from sightline.lab.learning import labelled_batch

    return labelled_batch(tokens, tokens)


def test_the_starts_are_exchanged_by_the_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real models; with a wrong power they start elsewhere, and the check sees it."""
    starts = {way: largest_at_start(way) for way in lab.WAYS}
    assert starts["scaled"] == pytest.approx(starts["raw-same-start"], abs=1e-5)
    assert starts["raw"] == pytest.approx(starts["scaled-saturated"], abs=1e-5)
    assert starts["raw"] > 0.4 > 0.1 > starts["scaled"]
    assert holds(random_numbers(as_it_is), trained_numbers(starts=starts))[START] is True
    monkeypatch.setitem(scaled_attention.WAYS, "raw-same-start", (1.0, -0.5))
    wrong = starts | {"raw-same-start": largest_at_start("raw-same-start")}
    assert holds(random_numbers(as_it_is), trained_numbers(starts=wrong))[START] is False


def test_a_model_is_trained_and_measured_before_and_after(
    as_users_run_it: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaled_attention, "WINDOWS", 8)
    raw = to_json_numbers(scaled_attention.train_with_scale("raw", 2, 1e-2, 0))
    assert raw["start"]["largest"] > 0.4
    assert raw["start"] != raw["end"]
    assert 2 < raw["loss"] < 6


def test_the_gradients_are_numpys() -> None:
    """The Jacobian of softmax by differences, for one query of width 3."""
    random = np.random.default_rng(0)
    query, key, upstream = random.normal(size=3), random.normal(size=(5, 3)), random.normal(size=5)

    def softmax(scores: np.ndarray) -> np.ndarray:
        return np.exp(scores) / np.exp(scores).sum()

    scale, small = 0.7, 1e-6
    scores = scale * key @ query
    jacobian = np.stack(
        [
            (softmax(scores + small * unit) - softmax(scores - small * unit)) / (2 * small)
            for unit in np.eye(5)
        ]
    )
    at_query = [
        upstream
        @ (
            softmax(scale * key @ (query + small * unit))
            - softmax(scale * key @ (query - small * unit))
        )
        / (2 * small)
        for unit in np.eye(3)
    ]
    result = random_scores.softmax_statistics(
        *(torch.from_numpy(x)[None] for x in (query, key, upstream)), scale=scale
    )
    assert result["largest"] == pytest.approx(softmax(scores).max())
    assert result["gradient, mean"] == pytest.approx(np.linalg.norm(jacobian), rel=1e-6)
    assert result["at query, median"] == pytest.approx(np.linalg.norm(at_query), rel=1e-6)


def test_attention_of_by_hand() -> None:
    """The largest weight and the entropy by NumPy, from the weights of the equation."""
    size = scaled_attention.CONTEXT
    model = scaled_attention.start_model("raw", 9, 0)
    tokens = torch.randint(9, (2, size), generator=torch.Generator().manual_seed(0))
    result = scaled_attention.attention_statistics(model, tokens_as_batch(tokens))
    recorder = Recorder({"query", "key"})
    with torch.no_grad():
        model.hidden(tokens, record=recorder)
    largest, entropy = [], []
    for layer in range(2):
        q, k = (recorder["decoder", layer, name].double().numpy() for name in ("query", "key"))
        scores = np.where(np.tri(size, dtype=bool), q @ k.swapaxes(-1, -2), -np.inf)
        scores = scores[:, :, size // 2 :]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        largest.append(weights.max(-1).mean())
        entropy.append(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean())
    assert result["largest"] == pytest.approx(np.mean(largest), rel=1e-3)
    assert result["entropy"] == pytest.approx(np.mean(entropy), rel=1e-3)


def test_part_names_state_what_they_depend_on() -> None:
    rates = tuned_rates(trained_numbers())
    for tier in TIERS:
        names = [part.name for part in lab.saturation_parts(Plan(tier, 100, rates))]
        assert len(set(names)) == len(names)
        assert f"trained.raw.d-256.steps-{lab.STEPS[tier]}.rate-0.0015.seed-140" in names


def test_it_can_be_drawn_and_summarized() -> None:
    numbers = random_numbers(as_it_is) | trained_numbers()
    assert set(lab.draw_saturation(numbers)) == {
        "softmax-saturation",
        "softmax-saturation-trained",
    }
    assert "q·k / √d_k: 3.152 (0.0015)" in lab.summarize_saturation(numbers).en
