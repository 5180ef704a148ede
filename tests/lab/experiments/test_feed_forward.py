"""Equal sizes, SwiGLU by hand, and verdicts that follow the paired differences."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from sightline.architectures import llama
from sightline.explain.counts import count_parameters
from sightline.lab.experiment import TIERS, Plan
from sightline.lab.experiments import feed_forward as lab
from sightline.lab.learning import GeneratedTask, build_seeded, labelled_batch, seeded_generator
from sightline.lab.tuning import tuned_rates
from sightline.training.data.batch import Batch

STEPS = 24


def sums(step: int) -> Batch:
    """a b → a + b mod 7."""
    pairs = torch.randint(7, (16, 2), generator=seeded_generator(3, step))
    return labelled_batch(pairs, torch.stack([torch.full((16,), -100), pairs.sum(1) % 7], dim=1))


@lru_cache(maxsize=1)
def measured() -> dict[str, Any]:
    """Real trainings of tiny models, and pilots that chose 0.004."""
    task = GeneratedTask(sums, [sums(10**6)])
    pilots = {
        f"pilot.{form}.rate-{rate:g}.seed-0": {"score": abs(rate - 4e-3)}
        for form in lab.FORMS
        for rate in (2e-3, 4e-3, 8e-3)
    }
    runs = {
        f"run.{form}.width-12.steps-{STEPS}.rate-0.004.seed-{seed}": lab.train_and_evaluate(
            lab.feed_forward_config(form, 12, 7), task, steps=STEPS, rate=4e-3, seed=seed
        )
        for seed in range(3)
        for form in lab.FORMS
    }
    return {"layers.width-12": lab.measure_layer_sizes(12, 0), **pilots, **runs}


def made_up(**losses: tuple[float, float, float]) -> dict[str, Any]:
    """The same curves with other losses of the three seeds."""
    numbers = measured()
    for form, row in losses.items():
        for seed, loss in enumerate(row):
            name = f"run.{form}.width-12.steps-{STEPS}.rate-0.004.seed-{seed}"
            numbers = numbers | {name: numbers[name] | {"held_out": loss}}
    return numbers


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_feed_forward(numbers)]


def test_real_runs_are_judged_by_the_rule() -> None:
    """The same decision from the intervals of NumPy and Student's table (t = 4.303 for three
    seeds)."""
    numbers = measured()
    for check, other in zip(lab.judge_feed_forward(numbers)[2:], lab.OTHERS, strict=True):
        gaps = np.subtract(lab.losses_of(numbers, "swiglu"), lab.losses_of(numbers, other))
        half = 4.3027 * gaps.std(ddof=1) / np.sqrt(3)
        assert check.holds is (
            True if gaps.mean() + half < 0 else False if gaps.mean() - half >= 0 else None
        )
    assert holds(numbers)[:2] == [True, True]


def test_runs_under_exchanged_names_exchange_the_verdict() -> None:
    """A world in which ReLU is what SwiGLU is here, and the other way round."""
    numbers = made_up(swiglu=(2.0, 2.11, 2.19), relu=(2.1, 2.2, 2.3), gelu=(2.1, 2.2, 2.3))
    assert holds(numbers)[2] is True
    exchanged = {
        name.replace("swiglu", "x").replace("relu", "swiglu").replace("x", "relu")
        if name.startswith("run.")
        else name: row
        for name, row in numbers.items()
    }
    assert holds(exchanged)[2] is False


def test_the_loss_is_that_of_the_held_out_batch() -> None:
    """An untrained model predicts nothing: its loss is that of a uniform guess."""
    task = GeneratedTask(sums, [sums(10**6)])
    config = lab.feed_forward_config("relu", 12, 7)
    row = lab.train_and_evaluate(config, task, steps=1, rate=1e-9, seed=0)
    assert row["held_out"] == pytest.approx(np.log(7), abs=0.05)


@pytest.mark.parametrize(
    ("swiglu", "expected"),
    [((2.00, 2.11, 2.19), True), ((2.20, 2.31, 2.39), False), ((2.00, 2.25, 2.25), None)],
)
def test_verdicts_follow_the_pairs(
    swiglu: tuple[float, float, float], expected: bool | None
) -> None:
    """Seeds differ by more than the forms do; paired, they decide."""
    assert holds(made_up(swiglu=swiglu, relu=(2.1, 2.2, 2.3), gelu=(2.1, 2.2, 2.3))) == [
        True,
        True,
        expected,
        expected,
    ]


def test_a_hidden_layer_that_is_not_narrower_has_more_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lab, "hidden_width", lambda form, width: 4 * width)
    verdict = holds(measured() | {"layers.width-12": lab.measure_layer_sizes(12, 0)})
    assert verdict[:2] == [False, False]


def test_another_gate_is_not_swiglu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same three matrices with GELU in the gate."""
    swiglu = lab.feed_forward_config
    monkeypatch.setattr(
        lab,
        "feed_forward_config",
        lambda form, width, vocabulary: (
            llama(
                width=width, layers=1, heads=2, vocab_size=vocabulary, max_positions=8,
                feed_forward="geglu", hidden=lab.hidden_width(form, width), tied=False,
            )
            if form == "swiglu"
            else swiglu(form, width, vocabulary)
        ),
    )  # fmt: skip
    verdict = holds(measured() | {"layers.width-12": lab.measure_layer_sizes(12, 0)})
    assert verdict[:2] == [True, False]


@pytest.mark.parametrize("width", sorted(set(lab.WIDTH.values())))
def test_parameters_are_equal_to_the_last(width: int) -> None:
    """8 d² for each layer; and the whole models, counted from their configurations."""
    result = lab.measure_layer_sizes(width, 0)
    assert {result[form]["parameters"] for form in lab.FORMS} == {8 * width**2}
    configs = [lab.feed_forward_config(form, width, 86) for form in lab.FORMS]
    assert (
        len({sum(part.parameters for part in count_parameters(config)) for config in configs}) == 1
    )


def test_swiglu_by_hand() -> None:
    layer = (
        build_seeded(lab.feed_forward_config("swiglu", 12, 7), 0)
        .last_stack[0]
        .feed_forward.double()
    )
    assert layer.gate is not None
    up, gate, down = (
        weight.detach().numpy()
        for weight in (layer.up.weight, layer.gate.weight, layer.down.weight)
    )
    x = np.random.default_rng(0).normal(size=(1, 3, 12))
    gated = x @ gate.T
    product = (x @ up.T) * gated / (1 + np.exp(-gated))
    np.testing.assert_allclose(
        layer(torch.from_numpy(x)).detach().numpy(), product @ down.T, atol=1e-13
    )
    assert product.shape[-1] == 32


def test_a_run_that_breaks_counts_as_a_guess() -> None:
    result = lab.train_and_evaluate(
        lab.feed_forward_config("relu", 12, 7),
        GeneratedTask(sums, [sums(1)]),
        steps=40,
        rate=1000.0,
        seed=0,
    )
    assert result == {"steps": 40, "curve": [], "held_out": pytest.approx(np.log(7))}


def test_it_can_be_drawn_and_told() -> None:
    assert set(lab.draw_feed_forward(measured())) == {"feed-forward"}
    clear = lab.summarize_feed_forward(
        made_up(swiglu=(2.0, 2.1, 2.2), relu=(2.1, 2.2, 2.31), gelu=(2.15, 2.24, 2.35))
    )
    assert "SwiGLU 2.100 (0.004), ReLU" in clear.en
    assert "T5" not in clear.en
    assert (
        "T5"
        in lab.summarize_feed_forward(
            made_up(swiglu=(2.2, 2.3, 2.5), relu=(2.1, 2.2, 2.3), gelu=(2.1, 2.2, 2.3))
        ).ja
    )


def test_part_names_state_what_they_depend_on() -> None:
    rates = tuned_rates(measured())
    for tier in TIERS:
        names = [part.name for part in lab.feed_forward_parts(Plan(tier, 100, rates))]
        pilots = [part.name for part in lab.feed_forward_pilots(tier)]
        assert len({*names, *pilots}) == len(names) + len(pilots)
        setting = f"width-{lab.WIDTH[tier]}.steps-{lab.STEPS[tier]}"
        assert names[1] == f"run.relu.{setting}.rate-0.004.seed-100"
        assert all(setting in name for name in pilots)
