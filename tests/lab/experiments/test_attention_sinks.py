"""Attention sinks: planted in raw tensors and in a model, and verdicts that follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.architectures import llama
from sightline.core.attention import Scoring
from sightline.core.masks import Mask
from sightline.lab.experiment import Numbers
from sightline.lab.experiments import attention_sinks as lab
from sightline.lab.japanese import to_japanese
from sightline.lab.learning import build_seeded
from sightline.lab.measures import sinks as measure
from sightline.lab.measures.repeats import ProbedModel
from sightline.lab.results import to_json_numbers
from sightline.lens.interventions.edits import Edits, logits_with
from sightline.lens.trace.layer import Look

TIME = 24
HEADS = 3


def planted(seed: int, *, toward: float, key: float, value: float, base: float = 1.0) -> Look:
    """Random q, k, v; the first key points along a direction that all queries share by `toward`,
    and has `key` times, its value `value` times the others' length."""
    random = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, HEADS, TIME, 16, generator=random) for _ in range(3))
    axis = torch.nn.functional.normalize(torch.ones(16), dim=0)
    q = q + 4 * axis
    k = k - (k @ axis)[..., None] * axis
    k = (
        base
        * torch.nn.functional.normalize(k, dim=-1)
        * (4 + torch.rand(TIME, 1, generator=random))
    )
    mean = k[..., 1:, :].norm(dim=-1).mean()
    direction = torch.nn.functional.normalize(toward * axis + (1 - abs(toward)) * k[0, 0, 0], dim=0)
    k[..., 0, :] = key * mean * direction
    v[..., 0, :] = value * v[..., 0, :]
    at = torch.arange(TIME)[None]
    return Look(("decoder", 0, False), q, k, v, Scoring(Mask(at, at), 0.5))


def text_row(seed: int, look: Look, losses: dict[str, float], *, word: float) -> dict[str, Any]:
    """What a text with this one layer gives; `word`: the weight on the same word as the first."""
    noise = 0.02 * (seed * 7 % 5)
    result = measure.weights_on_first([look]) | measure.first_key_and_value([look])
    rises = {
        name: 3.0 + cost + noise * (1 + place) for place, (name, cost) in enumerate(losses.items())
    }
    words = {"word first": word + noise / 10, "word inside": 0.03 + noise / 20}
    return to_json_numbers(result | words | {"losses": {"as is": 3.0, **rises}, "tokens": TIME})


COSTS = {"cut": 1.5, "silenced": 0.4, "removed": 0.0, "other cut": 0.0, "other silenced": 0.0}
SMALL_COSTS = dict.fromkeys(COSTS, 0.0)


def world(
    *, toward: float = 1.0, key: float = 0.6, value: float = 0.3, word: float = 0.6, **losses: float
) -> Numbers:
    result: dict[str, Any] = {}
    small = losses.pop("small", 0.0)
    for n in range(5):
        look = planted(n, toward=toward, key=key, value=value)
        costs = COSTS | losses
        result[f"text.{lab.LARGE}.tokens-128.seed-{n}"] = text_row(n, look, costs, word=word)
        plain = planted(n + 50, toward=0.0, key=1.0, value=1.0)
        none = SMALL_COSTS | {"cut": small}
        result[f"text.{lab.SMALL}.tokens-128.seed-{n}"] = text_row(n + 1, plain, none, word=0.05)
    return result


@pytest.mark.parametrize(
    ("given", "fails"),
    [
        ({}, set[int]()),
        ({"toward": -1.0}, {0, 2, 3}),  # queries point away from the first key
        ({"word": 0.0}, {1}),
        ({"key": 1.5}, {3}),  # a long key, which its length helps
        ({"value": 2.0}, {4}),
        ({"other cut": 3.0}, {5}),
        ({"removed": 3.0}, {6}),
        ({"silenced": 1.4}, {7}),
        ({"small": 3.0}, {8}),
    ],
)
def test_each_check_fails_in_a_world_without_it(given: dict[str, float], fails: set[int]) -> None:
    checks = lab.judge_sinks(world(**given))
    assert {n for n, check in enumerate(checks) if check.holds is False} == fails
    assert {n for n, check in enumerate(checks) if check.holds is True} == set(range(9)) - fails


# ----------------------------------------------------------------------------------------- the cuts


@pytest.fixture(scope="module")
def model() -> ProbedModel:
    config = llama(width=32, layers=2, heads=2, vocab_size=40, max_positions=64)
    return ProbedModel(build_seeded(config, 0).eval())


def ids(count: int = 30) -> list[int]:
    return torch.randint(40, (count,), generator=torch.Generator().manual_seed(1)).tolist()


def weights_after(model: ProbedModel, edits: Edits) -> list[Tensor]:
    kept: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        kept.append(weights)
        return weights

    logits_with(model, ids(), edits | dict.fromkeys(edits, keep))
    return kept


def test_a_cut_row_gives_its_weight_to_the_others_and_a_silenced_row_to_nobody_else(
    model: ProbedModel,
) -> None:
    row = measure.FROM - 1
    for edits, total in (
        (measure.cut_token(model, 3), 1.0),
        (measure.silence_token(model, 3), None),
    ):
        for weights in weights_after(model, edits):
            assert bool((weights[..., row:, 3] == 0).all())
            assert bool((weights[..., 3:row, 3] > 0).all())  # rows before see it
            sums = weights[..., row:, :].sum(-1)
            if total is None:
                assert bool((sums < 1).all())
            else:
                torch.testing.assert_close(sums, torch.ones_like(sums))


def test_losses_and_weights_of_one_text(model: ProbedModel) -> None:
    row = measure.measure_sink(model, ids())
    assert set(row["losses"]) == {"as is", *lab.CUTS}
    assert len(row["heads"]) == 2
    assert len({round(loss, 6) for loss in row["losses"].values()}) > 3
    again = measure.measure_sink(model, ids())
    assert row["losses"] == again["losses"]
    places = measure.control_tokens(5)
    assert len(set(places)) == 3
    assert all(2 <= at < measure.FROM for at in places)


def test_the_same_word_is_measured_in_the_same_rows(model: ProbedModel) -> None:
    row = measure.measure_sink(model, ids())
    assert 0 < row["word inside"] < 1
    assert 0 < row["word first"] < 1


def test_it_can_be_drawn_and_summarized() -> None:
    numbers = world()
    assert set(lab.draw_sinks(numbers)) == {"attention-sinks-heads", "attention-sinks-cause"}
    assert "SmolLM2 gives its first token" in lab.summarize_sinks(numbers).en


def test_its_numbers_are_translated() -> None:
    for check in lab.judge_sinks(world()):
        assert "token" not in to_japanese(check.measured)
