"""Gradients against NumPy and differences, the rule of failure on real runs, and verdicts that
follow the numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan
from sightline.lab.experiments import norm_placement
from sightline.lab.learning import GeneratedTask, labelled_batch, seeded_generator
from sightline.lab.measures import norm_measures
from sightline.training.data.batch import Batch

VOCABULARY = 6
CHAIN = np.full((VOCABULARY, VOCABULARY), 0.02) + 0.88 * np.roll(
    np.eye(VOCABULARY), 1, axis=1
)  # mostly: the next letter


@lru_cache(maxsize=128)
def chain(step: int) -> Batch:
    """Rows of a Markov chain whose letters are all equally frequent."""
    random = np.random.default_rng(step)
    rows = random.integers(VOCABULARY, size=(8, 1))
    for _ in range(16):
        following = (CHAIN[rows[:, -1]].cumsum(1) < random.random((8, 1))).sum(1, keepdims=True)
        rows = np.concatenate([rows, following], axis=1)
    return labelled_batch(
        torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
    )


def letters(step: int) -> Batch:
    """64 letters as unequally frequent as those of a text (Zipf), without order."""
    shares = 1 / torch.arange(1, 65).float()
    tokens = torch.multinomial(
        shares, 16 * 33, replacement=True, generator=seeded_generator(7, step)
    ).reshape(16, 33)
    return labelled_batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def run(rate: float) -> list[float]:
    model = norm_measures.glorot_model("pre", 1, 16, VOCABULARY, 0)
    uniform = [float(np.log(VOCABULARY))] * VOCABULARY
    return norm_measures.gains_over_unigram(
        model, GeneratedTask(chain), uniform, steps=60, warmup=0, rate=rate
    )


def losses_of_a_run(rate: float, highest: float, seed: int) -> list[float]:
    """Gains over the unigram loss, per step: up to the highest rate the model learns, slowly at low
    rates; above it stays at the unigram loss, and far above it diverges."""
    if rate > 30 * highest:
        return []
    noise = np.random.default_rng([seed, round(1e6 * rate)]).normal(0, 0.08, 200)
    learned = 0.8 * np.linspace(0, 1, 200) if rate <= highest else np.full(200, -0.02)
    return (learned - 0.3 * np.exp(-np.arange(200) / 10) + noise).tolist()


HIGHEST = {
    ("post", 2, 0): 2e-2, ("post", 6, 0): 2.4e-3, ("post", 6, 100): 7e-3,
    ("pre", 2, 0): 1.0, ("pre", 6, 0): 1.0, ("pre", 6, 100): 1.0,
    ("sandwich", 6, 0): 2e-2, ("sphere", 6, 0): 6e-2,
}  # fmt: skip


@lru_cache(maxsize=1)
def gradients() -> dict[str, Any]:
    """Of real models at initialisation."""
    task, numbers = GeneratedTask(letters), dict[str, Any]()
    for form in norm_placement.FORMS:
        for depth in (2, 4, 8):
            for seed in range(5 if form in ("pre", "post") else 1):
                model = norm_measures.glorot_model(form, depth, 64, 64, seed)
                numbers[f"gradient.{form}.depth-{depth}.seed-{seed}"] = (
                    norm_measures.layer_gradients(model, task)
                )
    return numbers | {"formula": norm_measures.compare_norm_formulas()}


def measured(**changed: float) -> dict[str, Any]:
    """Real gradients, and scans over the losses of runs in a world with these highest rates:
    post_6_100=2.4e-3."""
    numbers = dict(gradients())
    for (form, depth, warmup), usual in HIGHEST.items():
        highest = changed.get(f"{form}_{depth}_{warmup}", usual)
        for seed in range(10):
            numbers[norm_placement.scan_name(form, depth, warmup, 200, seed)] = (
                norm_measures.highest_rate_that_trains(
                    lambda rate, n=seed, top=highest: losses_of_a_run(rate, top, n)
                )
            )
    return numbers


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in norm_placement.judge_norm_placement(numbers)]


def test_the_verdict_of_real_gradients_and_of_losses() -> None:
    """1/√depth in Pre-LN, no fall in Post-LN: Xiong et al.'s theorem, on weights that were never
    trained."""
    assert holds(measured()) == [True] * 7


def test_each_statement_fails_where_it_is_false() -> None:
    assert holds(measured(post_6_0=1.0, post_6_100=1.0))[2:6] == [False, False, False, True]
    assert holds(measured(post_2_0=2.4e-3))[3] is False  # depth changes nothing
    assert holds(measured(post_6_100=2.4e-3))[4] is False  # warm-up changes nothing
    assert holds(measured(post_6_0=1e-6, post_6_100=1e-6))[4] is False  # nothing trains
    assert holds(measured(sandwich_6_0=1e-3))[5] is False
    swapped = {
        name.replace(".pre.", ".?.").replace(".post.", ".pre.").replace(".?.", ".post."): row
        for name, row in measured().items()
    }
    assert holds(swapped)[:3] == [False, False, False]
    worse = measured() | {"formula": measured()["formula"] | {"root": [1e-3]}}
    assert holds(worse)[6] is False


def test_27_runs_without_a_failure_do_not_show_less_than_one_in_ten() -> None:
    numbers = {
        name: row
        for name, row in measured().items()
        if not name.startswith("scan.sphere") and ".seed-9" not in name
    }
    assert norm_placement.failures_at_usual_rate(numbers) == (0, 27)
    assert holds(numbers)[5] is None


def test_rates_are_tried_from_above_until_one_trains() -> None:
    result = norm_measures.highest_rate_that_trains(lambda rate: losses_of_a_run(rate, 1e-3, 0))
    assert result["highest"] == 8e-4
    assert [rate for rate, _ in result["tried"]] == [6e-2, 2e-2, 7e-3, 2.4e-3, 8e-4]
    assert result["tried"][0][1] is None  # diverged
    assert result["tried"][1][1] < 0.05 < result["tried"][-1][1]
    nothing = norm_measures.highest_rate_that_trains(lambda rate: [-0.02] * 99)
    assert (nothing["highest"], len(nothing["tried"])) == (0.0, 6)


@pytest.mark.parametrize(
    ("gains", "trained"),
    [
        ([], False),  # not finite
        ([0.9] * 100 + [-0.02] * 50, False),  # learned and lost
        ([-3.0] * 100 + [0.3] * 50, True),
        ([0.0] * 149 + [1.0], False),  # one lucky batch
    ],
)
def test_what_counts_as_trained(gains: list[float], trained: bool) -> None:
    assert norm_measures.has_trained(gains) is trained


def test_a_real_run_learns_and_a_real_run_breaks() -> None:
    good, broken = run(0.02), run(1000.0)
    assert norm_measures.has_trained(good)
    assert max(good) < np.log(VOCABULARY)
    assert not norm_measures.has_trained(broken)


def layer_norm(x: np.ndarray) -> np.ndarray:
    """By hand: biased variance, ε inside the root."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def rotated(x: np.ndarray) -> np.ndarray:
    """RoPE, halves together: [heads, time, dim]."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
    )


def attended(x: np.ndarray, weight: dict[str, np.ndarray], path: str) -> np.ndarray:
    """Two causal heads."""
    q, k, v = (
        (x @ weight[f"{path}.{name}.weight"].T).reshape(len(x), 2, -1).transpose(1, 0, 2)
        for name in ("query", "key", "value")
    )
    scores = rotated(q) @ rotated(k).transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones((len(x), len(x)))) > 0, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (shares / shares.sum(-1, keepdims=True)) @ v
    return mixed.transpose(1, 0, 2).reshape(len(x), -1) @ weight[f"{path}.output.weight"].T


def loss_by_hand(
    form: str, weight: dict[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray
) -> float:
    """A model of two layers, row by row."""
    total = 0.0
    for row, wanted in zip(tokens, targets, strict=True):
        x = weight["decoder.embedding.tokens.weight"][row]
        for n in range(2):
            path = f"decoder.{n}"
            steps = (
                lambda x, path=path: attended(x, weight, f"{path}.attention"),
                lambda x, path=path: (
                    np.maximum(x @ weight[f"{path}.feed_forward.up.weight"].T, 0)
                    @ weight[f"{path}.feed_forward.down.weight"].T
                ),
            )
            for step in steps:
                inner = step(x if form == "post" else layer_norm(x))
                x = (
                    layer_norm(x + inner)
                    if form == "post"
                    else x + (layer_norm(inner) if form == "sandwich" else inner)
                )
        x = x if form == "post" else layer_norm(x)
        logits = x @ weight["output.vocabulary.weight"].T
        total += float((np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(row)), wanted]).sum())
    return total / targets.size


@pytest.mark.parametrize("form", ["pre", "post", "sandwich"])
def test_gradients_are_those_of_the_equation(form: norm_measures.Form) -> None:
    """Every layer's |∂loss/∂W₂|, from NumPy's loss by central differences along the gradient
    itself."""
    model, task = (
        norm_measures.glorot_model(form, 2, 8, VOCABULARY, 0).double(),
        GeneratedTask(chain),
    )
    result, batch = norm_measures.layer_gradients(model, task), task.batch(0)
    weight = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    for n in range(2):
        for what, place in (("down", "feed_forward.down"), ("query", "attention.query")):
            name = f"decoder.{n}.{place}.weight"
            grad = dict(model.named_parameters())[name].grad
            assert grad is not None
            along = grad.numpy() / np.linalg.norm(grad.numpy())
            ends = [
                loss_by_hand(
                    form,
                    weight | {name: weight[name] + h * along},
                    batch.tokens.numpy(),
                    batch.targets.numpy(),
                )
                for h in (1e-5, -1e-5)
            ]
            assert result[what][n] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_the_norms_formula() -> None:
    result = norm_measures.compare_norm_formulas()
    assert max(result["root"]) < 1e-12
    assert result["sum"][2] == pytest.approx(np.sqrt(2) - 1, abs=0.15)  # at the spread √ε
    assert result["unbiased"][-1] == pytest.approx(1 - np.sqrt(63 / 64), rel=1e-3)


def test_it_can_be_drawn_and_told() -> None:
    assert set(norm_placement.draw_norm_placement(measured())) == {
        "norm-placement-gradients",
        "norm-placement-rates",
    }
    words = norm_placement.summarize_norm_placement(measured())
    assert "Of 70 runs at rates that are too high 0 diverged" in words.en
    assert "70回" in words.ja


def test_part_names_state_what_they_depend_on() -> None:
    for tier in ("quick", "default", "full"):
        names = [part.name for part in norm_placement.norm_placement_parts(Plan(tier, 105))]
        assert len(set(names)) == len(names)
        scans = [norm_placement.part_fields(name) for name in names if name.startswith("scan.")]
        assert {fields["seed"] for fields in scans} == {
            str(105 + n) for n in range(norm_placement.SEEDS[tier])
        }
        assert {int(fields["depth"]) for fields in scans} == set(norm_placement.DEPTHS[tier])
