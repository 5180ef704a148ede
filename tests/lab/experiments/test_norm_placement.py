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


def run(form: norm_measures.Form, depth: int, rate: float) -> dict[str, Any]:
    model = norm_measures.glorot_model(form, depth, 16, VOCABULARY, 0)
    return norm_measures.train_against_unigram(
        model,
        GeneratedTask(chain),
        [float(np.log(VOCABULARY))] * VOCABULARY,
        warmup=0,
        rate=rate,
        seed=0,
    )


@lru_cache(maxsize=1)
def measured() -> dict[str, Any]:
    """Real gradients of small models, and made-up runs: Post-LN fails without warm-up where it is
    deep."""
    task, numbers = (
        GeneratedTask(letters),
        dict[str, Any](formula=norm_measures.compare_norm_formulas()),
    )
    for form in norm_placement.FORMS:
        for depth in (4, 8, 16):
            for seed in range(10 if form in ("pre", "post") else 1):
                model = norm_measures.glorot_model(form, depth, 64, 64, seed)
                numbers[f"gradient.{form}.depth-{depth}.seed-{seed}"] = (
                    norm_measures.layer_gradients(model, task)
                )
        for depth, warmup, rate, seed in [
            (d, w, r, s)
            for d in (2, 8)
            for w in (0, norm_placement.WARMUP)
            for r in (4, 16)
            for s in (0, 1, 2)
        ]:
            gained = 0.0 if form == "post" and depth == 8 and (warmup == 0 or rate == 16) else 0.5
            row = {"finite": True, "start": 3.0, "end": 2.0, "before": gained, "gained": gained}
            numbers[norm_placement.run_name(form, depth, warmup, rate, seed)] = row
    return numbers


def changed(form: str, **new: Any) -> dict[str, Any]:
    """The same with other runs of a form."""
    return {
        name: row | new if name.startswith(f"run.{form}.") else row
        for name, row in measured().items()
    }


def test_the_verdict_of_real_gradients() -> None:
    """1/√depth in Pre-LN, no fall in Post-LN: Xiong et al.'s theorem, on weights that were never
    trained."""
    checks = norm_placement.judge_norm_placement(measured())
    assert [check.holds for check in checks] == [True] * 7


def test_verdicts_turn_with_the_numbers() -> None:
    never = norm_placement.judge_norm_placement(changed("post", gained=0.5))
    assert [check.holds for check in never][2:5] == [False, False, False]
    always = norm_placement.judge_norm_placement(changed("sandwich", gained=0.0, before=0.0))
    assert [check.holds for check in always][2:6] == [True, True, True, False]
    some = {
        name: row | {"finite": not (".pre." in name and "seed-1" in name)}
        if name.startswith("run")
        else row
        for name, row in measured().items()
    }
    assert norm_placement.judge_norm_placement(some)[5].holds is None
    swapped = {
        name.replace(".pre.", ".?.").replace(".post.", ".pre.").replace(".?.", ".post."): row
        for name, row in measured().items()
    }
    assert [check.holds for check in norm_placement.judge_norm_placement(swapped)][1:3] == [
        False,
        False,
    ]
    worse = measured() | {"formula": measured()["formula"] | {"root": [1e-3]}}
    assert norm_placement.judge_norm_placement(worse)[6].holds is False


@pytest.mark.parametrize(
    ("row", "fails"),
    [
        ({"finite": False, "steps": 3}, True),
        ({"finite": True, "start": 5.0, "end": 3.3, "before": 0.0, "gained": 0.01}, True),
        (
            {"finite": True, "start": 5.0, "end": 3.3, "before": -0.5, "gained": -0.3},
            False,
        ),  # slow, still falling
        ({"finite": True, "start": 5.0, "end": 3.3, "before": 0.4, "gained": 0.3}, False),
        (
            {"finite": True, "start": 5.0, "end": 9.0, "before": -6.0, "gained": -5.0},
            True,
        ),  # above its start
    ],
)
def test_the_rule_of_failure(row: dict[str, Any], fails: bool) -> None:
    assert norm_measures.has_failed(row) is fails


def test_a_real_run_learns_and_a_real_run_breaks() -> None:
    good, broken = run("pre", 1, 0.02), run("pre", 1, 1000.0)
    assert not norm_measures.has_failed(good)
    assert 0.05 < good["gained"] < np.log(VOCABULARY)
    assert norm_measures.has_failed(broken)


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
    found, batch = norm_measures.layer_gradients(model, task), task.batch(0)
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
            assert found[what][n] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_the_norms_formula() -> None:
    found = norm_measures.compare_norm_formulas()
    assert max(found["root"]) < 1e-12
    assert found["sum"][2] == pytest.approx(np.sqrt(2) - 1, abs=0.15)  # at the spread √ε
    assert found["unbiased"][-1] == pytest.approx(1 - np.sqrt(63 / 64), rel=1e-3)


def test_it_can_be_drawn_and_told() -> None:
    assert set(norm_placement.draw_norm_placement(measured())) == {
        "norm-placement-gradients",
        "norm-placement-failures",
    }
    words = norm_placement.summarize_norm_placement(measured())
    assert "Of 9 failed runs 0 diverged and 9 stayed" in words.en
    assert "9回" in words.ja


def test_part_names_state_what_they_depend_on() -> None:
    for tier in ("quick", "default", "full"):
        names = [part.name for part in norm_placement.norm_placement_parts(Plan(tier, 5))]
        assert len(set(names)) == len(names)
        runs = [norm_placement.part_fields(name) for name in names if name.startswith("run.")]
        assert {says["seed"] for says in runs} == {
            str(5 + n) for n in range(norm_placement.SEEDS[tier])
        }
        assert {int(says["depth"]) for says in runs} == set(norm_placement.DEPTHS[tier])
