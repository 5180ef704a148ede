"""Recall by content: the task, the mixers by NumPy and by torch, small models that are really
trained; and for each check a world in which its statement is false."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sightline.lab.experiment import Check, Plan, TunedRate
from sightline.lab.experiments import recall
from sightline.lab.learning import seeded_generator
from sightline.lab.measures import mixers
from sightline.lab.measures.mixers import Arm

BUDGET, STATE, SOFTMAX, RIVALS, FALL, LARGER, WINDOW = range(7)


class Oracle(nn.Module):
    """Answers each question of the arm: its share `right` of the pairs from what was shown (the
    last `window` tokens only), the others at random."""

    def __init__(self, right: float, window: float, seed: int) -> None:
        super().__init__()
        self.right = right
        self.window = window
        self.random = seeded_generator(seed, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        pairs = tokens.shape[1] // 3
        values, asked = tokens[:, 1 : 2 * pairs : 2], tokens[:, 2 * pairs :]
        pair = (asked[:, :, None] == tokens[:, None, 0 : 2 * pairs : 2]).double().argmax(-1)
        answers = values.gather(1, pair)
        guesses = torch.randint(
            mixers.KEYS, mixers.VOCABULARY, answers.shape, generator=self.random
        )
        knows = torch.rand(answers.shape, generator=self.random) < self.right
        knows = knows & (mixers.value_distances(tokens, pairs) < self.window)
        picked = torch.where(knows, answers, guesses)
        logits = torch.zeros(len(tokens), 3 * pairs, mixers.VOCABULARY)
        logits[:, 2 * pairs :].scatter_(2, picked[..., None], 9.0)
        return logits


def answered(name: str, right: float, *, window: float | None = None) -> dict[str, Any]:
    """Six runs whose models answer this share, measured as trained ones are; a fixed share falls
    with the number of pairs where it is below 1."""
    arm = recall.ARMS[name]
    parameters = sum(weight.numel() for weight in mixers.build_arm(arm, 0, longest=96).parameters())
    sees = window or arm.window or float("inf")
    rows: dict[str, Any] = {}
    for seed in range(6):
        result = mixers.measure_recall(Oracle(right, sees, seed), arm, (4, 32), seed)
        if right < 1:
            few = mixers.measure_recall(Oracle(min(1.0, 2 * right), sees, seed), arm, (4,), seed)
            result["right"] |= few["right"]
        result |= {"parameters": parameters, "state": mixers.state_numbers(arm, 96)}
        rows[f"run.{name}.rate-0.01.pairs-32.steps-9.seed-{seed}"] = result
    return rows


SHARES = {
    "softmax": 1.0, "window": 1.0, "elu": 0.3, "elu-small": 0.1, "taylor": 0.5, "taylor-small": 0.2,
    "lstm": 0.1, "lstm-wide": 0.2, "cnn": 0.05,
}  # fmt: skip


@lru_cache(maxsize=1)
def measured() -> Mapping[str, Any]:
    numbers: dict[str, Any] = {"state.seed-0": mixers.measure_state_form(0)}
    for seed in range(6):
        numbers[f"offset.pairs-32.seed-{seed}"] = mixers.offset_baseline((4, 32), seed)
    for name, right in SHARES.items():
        numbers |= answered(name, right)
    return numbers


def checks(**changed: Any) -> list[Check]:
    arms = {name.split(".")[1] for name in changed if name.startswith("run.")}
    kept = {
        name: row
        for name, row in measured().items()
        if not name.startswith("run.") or name.split(".")[1] not in arms
    }
    return list(recall.judge_recall(kept | changed))


def holds(**changed: Any) -> list[bool | None]:
    return [check.holds for check in checks(**changed)]


def test_answers_like_the_claim_support_it() -> None:
    assert holds() == [True] * 7, [check.measured for check in checks()]


# ------------------------------------------------------------------- worlds in which it is false


def test_a_larger_rival_is_not_an_equal_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recall.ARMS, "cnn", Arm("cnn", size=30))
    assert holds(**answered("cnn", 0.05))[BUDGET] is False


def test_a_state_that_forgets_the_normaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    def unnormalised(query: Tensor, key: Tensor, value: Tensor, kind: mixers.Kind) -> Tensor:
        features = mixers.FEATURES[kind]
        return (features(query) @ features(key).mT).tril() @ value

    monkeypatch.setattr(mixers, "linear_attention", unnormalised)
    assert holds(**{"state.seed-0": mixers.measure_state_form(0)})[STATE] is False


def test_softmax_attention_that_does_not_recall() -> None:
    result = holds(**answered("softmax", 0.3))
    assert result[SOFTMAX] is False
    assert result[RIVALS] is False  # others recall more


def test_order_that_gives_the_answers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all pairs have the same value, a fixed distance answers everything."""
    draw = mixers.recall_rows

    def in_order(pairs: int, rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens, values = draw(pairs, rows, random)
        value = tokens[:, 1:2].expand_as(values)  # every pair has the same value
        tokens[:, 1 : 2 * pairs : 2] = value
        return tokens, value

    monkeypatch.setattr(mixers, "recall_rows", in_order)
    offsets = {
        f"offset.pairs-32.seed-{seed}": mixers.offset_baseline((4, 32), seed) for seed in range(6)
    }
    assert holds(**offsets, **answered("softmax", 0.9))[SOFTMAX] is not True


def test_a_rival_that_recalls_as_much() -> None:
    assert holds(**answered("lstm", 1.0), **answered("softmax", 0.97))[RIVALS] is False


def test_linear_attention_that_never_falls() -> None:
    assert holds(**answered("elu", 1.0))[FALL] is not True
    larger = holds(**answered("taylor", 0.1), **answered("taylor-small", 0.4))
    assert larger[LARGER] is False


def test_a_window_that_sees_everything_or_nothing() -> None:
    assert holds(**answered("window", 0.97, window=96))[WINDOW] is False
    assert holds(**answered("window", 0.2))[WINDOW] is False


# --------------------------------------------------------------------------------- measuring code


def test_the_task_asks_for_each_pair_once() -> None:
    tokens, values = mixers.recall_rows(5, 40, torch.Generator().manual_seed(0))
    assert tokens.shape == (40, 15)
    for row, answers in zip(tokens.tolist(), values.tolist(), strict=True):
        shown = dict(zip(row[0:10:2], row[1:10:2], strict=True))
        assert len(shown) == 5
        assert sorted(row[10:]) == sorted(shown)
        assert answers == [shown[key] for key in row[10:]]
        distances = mixers.value_distances(torch.tensor([row]), 5)[0].tolist()
        assert [row[10 + n - back] for n, back in enumerate(distances)] == answers


@pytest.mark.parametrize("kind", ["elu", "taylor"])
def test_linear_attention_by_numpy(kind: mixers.Kind) -> None:
    random = np.random.default_rng(0)
    q, k, v = random.normal(size=(3, 6, 4))

    def features(x: Any) -> Any:
        if kind == "elu":
            return np.where(x > 0, x + 1, np.exp(x))
        x = x / 4**0.25
        return np.concatenate([[1], x, np.outer(x, x).ravel() / np.sqrt(2)])

    expected = []
    for t in range(6):
        weights = np.array([features(q[t]) @ features(k[s]) for s in range(t + 1)])
        expected.append(weights @ v[: t + 1] / weights.sum())
    ours = mixers.linear_attention(torch.tensor(q), torch.tensor(k), torch.tensor(v), kind)
    assert ours.numpy() == pytest.approx(np.array(expected))


def test_the_taylor_features_begin_the_exponential() -> None:
    q, k = torch.randn(2, 5, 8, dtype=torch.float64) * 0.3
    score = (q * k).sum(-1) / 8**0.5
    product = (mixers.taylor_features(q) * mixers.taylor_features(k)).sum(-1)
    torch.testing.assert_close(product, 1 + score + score**2 / 2)


@pytest.mark.parametrize("name", recall.ARMS)
def test_no_model_sees_the_future_and_the_state_is_counted(name: str) -> None:
    arm = recall.ARMS[name]
    model = mixers.build_arm(arm, 0, longest=96)
    tokens, _ = mixers.recall_rows(8, 2, torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 12:] = 0
    torch.testing.assert_close(model(tokens)[:, :12], model(changed)[:, :12])
    grows = mixers.state_numbers(arm, 192) > mixers.state_numbers(arm, 96)
    assert grows == (name == "softmax")


def test_the_size_of_a_state_by_its_tensors() -> None:
    assert mixers.state_numbers(recall.ARMS["elu-small"], 96) == 4 * (2 * 8 + 2)
    assert mixers.state_numbers(recall.ARMS["elu"], 96) == 4 * (16 * 8 + 16)
    assert mixers.state_numbers(recall.ARMS["taylor"], 96) == 4 * (73 * 8 + 73)
    assert mixers.state_numbers(recall.ARMS["window"], 96) == 2 * 32 * 32
    assert mixers.state_numbers(recall.ARMS["softmax"], 96) == 2 * 32 * 96


def test_a_short_training_learns_and_lists_what_is_judged() -> None:
    row = mixers.train_on_pairs(recall.ARMS["window"], (2, 4), 0, steps=60, rate=2e-2)
    assert set(row) == {"right", "score", "inside", "outside", "parameters", "state"}
    assert row["score"] < np.log(mixers.VOCABULARY)
    assert row["parameters"] == 18816


# -------------------------------------------------------------------------------------- the rest


def test_every_part_has_its_own_name() -> None:
    rates = {name: TunedRate(name, 1e-2, False, ()) for name in recall.ARMS}
    for tier in ("quick", "default", "full"):
        parts = [*recall.recall_pilots(tier), *recall.recall_parts(Plan(tier, 100, rates))]
        assert len({part.name for part in parts}) == len(parts)


def test_it_can_be_drawn_and_summarized() -> None:
    by_pairs, by_state = recall.draw_recall(measured())["recall"].axes
    assert len(by_pairs.lines) == len(recall.ARMS) + 1
    assert len(by_state.texts) == len(recall.ARMS)
    summary = recall.summarize_recall(measured())
    assert "softmax attention 1.00 (6,144)" in summary.en
    assert "softmax 注意 1.00 (6,144)" in summary.ja
