"""Equal sizes, SwiGLU by hand, and verdicts that follow the paired differences."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from sightline.explain.counts import count_parameters
from sightline.lab.experiment import Plan
from sightline.lab.experiments import feed_forward
from sightline.lab.learning import GeneratedTask, build_seeded, labelled_batch, seeded_generator
from sightline.training.data.batch import Batch

STEPS = 24


def sums(step: int) -> Batch:
    """a b → a + b mod 7."""
    pairs = torch.randint(7, (16, 2), generator=seeded_generator(3, step))
    return labelled_batch(pairs, torch.stack([torch.full((16,), -100), pairs.sum(1) % 7], dim=1))


@lru_cache(maxsize=1)
def measured() -> dict[str, Any]:
    """Real trainings of tiny models."""
    task = GeneratedTask(sums, [sums(10**6)])
    runs = {
        f"run.{form}.width-12.steps-{STEPS}.rate-{rate}e-3.seed-{seed}": feed_forward.train_and_evaluate(
            feed_forward.feed_forward_config(form, 12, 7),
            task,
            steps=STEPS,
            rate=rate / 1000,
            seed=seed,
        )
        for seed in range(3)
        for rate in (4, 12)
        for form in feed_forward.FORMS
    }
    return {"layers.width-12.seed-0": feed_forward.measure_layer_sizes(12, 0), **runs}


def made_up(**losses: tuple[float, float, float]) -> dict[str, Any]:
    """The same curves with other losses at the better rate; the other rate is worse."""
    return {
        name: row | {"held_out": losses[said["form"]][int(said["seed"])] + (said["rate"] == "4e-3")}
        if (said := feed_forward.part_fields(name))["kind"] == "run"
        else row
        for name, row in measured().items()
    }


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in feed_forward.judge_feed_forward(numbers)]


def test_real_runs_are_judged_by_the_rule() -> None:
    """The same decision from the intervals of NumPy and Student's table (t = 4.303 for three
    seeds)."""
    numbers = measured()
    for check, other in zip(
        feed_forward.judge_feed_forward(numbers)[2:], ("relu", "gelu"), strict=True
    ):
        ours, theirs = (best_losses(numbers, form) for form in ("swiglu", other))
        half = 4.3027 * (ours - theirs).std(ddof=1) / np.sqrt(3)
        mean = (ours - theirs).mean()
        assert check.holds is (True if mean + half < 0 else False if mean - half >= 0 else None)
    assert holds(numbers)[:2] == [True, True]


def best_losses(numbers: dict[str, Any], form: str) -> np.ndarray:
    rows = [
        [
            numbers[f"run.{form}.width-12.steps-{STEPS}.rate-{rate}e-3.seed-{n}"]["held_out"]
            for n in range(3)
        ]
        for rate in (4, 12)
    ]
    return min(np.array(rows), key=lambda row: row.mean())


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


def test_unequal_sizes_and_two_matrices_are_refused() -> None:
    numbers = measured()
    sizes = numbers["layers.width-12.seed-0"]
    bigger = sizes | {"gelu": sizes["gelu"] | {"parameters": 1}}
    assert holds(numbers | {"layers.width-12.seed-0": bigger})[0] is False
    two = sizes | {"swiglu": sizes["swiglu"] | {"matrices": 2, "outer": sizes["swiglu"]["inner"]}}
    assert holds(numbers | {"layers.width-12.seed-0": two})[1] is False


@pytest.mark.parametrize("width", sorted(set(feed_forward.WIDTH.values())))
def test_parameters_are_equal_to_the_last(width: int) -> None:
    """8 d² for each layer; and the whole models, counted from their configurations."""
    found = feed_forward.measure_layer_sizes(width, 0)
    assert {row["parameters"] for row in found.values()} == {8 * width**2}
    configs = [feed_forward.feed_forward_config(form, width, 86) for form in feed_forward.FORMS]
    assert (
        len({sum(part.parameters for part in count_parameters(config)) for config in configs}) == 1
    )


def test_swiglu_by_hand() -> None:
    layer = (
        build_seeded(feed_forward.feed_forward_config("swiglu", 12, 7), 0)
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
    found = feed_forward.train_and_evaluate(
        feed_forward.feed_forward_config("relu", 12, 7),
        GeneratedTask(sums, [sums(1)]),
        steps=40,
        rate=1000.0,
        seed=0,
    )
    assert found == {"curve": [], "held_out": pytest.approx(np.log(7))}


def test_it_can_be_drawn_and_told() -> None:
    assert set(feed_forward.draw_feed_forward(measured())) == {"feed-forward"}
    clear = feed_forward.summarize_feed_forward(
        made_up(swiglu=(2.0, 2.1, 2.2), relu=(2.1, 2.2, 2.31), gelu=(2.15, 2.24, 2.35))
    )
    assert "SwiGLU 2.100 (0.012), ReLU" in clear.en
    assert "T5" not in clear.en
    assert (
        "T5"
        in feed_forward.summarize_feed_forward(
            made_up(swiglu=(2.2, 2.3, 2.5), relu=(2.1, 2.2, 2.3), gelu=(2.1, 2.2, 2.3))
        ).ja
    )


def test_part_names_state_what_they_depend_on() -> None:
    for tier in ("quick", "default", "full"):
        names = [part.name for part in feed_forward.feed_forward_parts(Plan(tier, 2))]
        assert len(set(names)) == len(names)
        assert {feed_forward.part_fields(name)["steps"] for name in names[1:]} == {
            str(feed_forward.STEPS[tier])
        }
