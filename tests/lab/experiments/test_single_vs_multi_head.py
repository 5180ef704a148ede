"""One head and several: each check is fed a world in which it is false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from sightline.architectures import gpt
from sightline.core.model import Transformer
from sightline.lab.experiment import Plan, TunedRate
from sightline.lab.experiments import single_vs_multi_head as lab
from sightline.lab.learning import build_seeded
from sightline.lab.measures import head_costs, two_relations
from sightline.lab.results import to_json_numbers
from sightline.lab.tuning import tuned_rates

HEADS = (1, 2, 4)
SIZES, RANKS, LEARNED, STEPS, HIGH, WORK, FLOPS, SLOWER, ONE_CALL = range(9)
LENGTHS = {1: 40, 2: 24, 4: 22}  # measurements until learned, at the tuned rate
Inside = Mapping[str, Any]


def inside(heads: int, change: Callable[[Transformer], object] = lambda model: None) -> Inside:
    """The numbers of a model's heads and sizes, from its weights."""
    model = build_seeded(two_relations.one_block_config(heads), 0)
    with torch.no_grad():
        change(model)
    return measured_inside(model)


def measured_inside(model: Transformer) -> Inside:
    batch, content, place = two_relations.questions(20, 0, 0)
    return to_json_numbers(
        two_relations.head_targets(model, batch, content, place)
        | two_relations.parameter_counts(model)
        | two_relations.head_ranks(model)
    )


INSIDE = {heads: inside(heads) for heads in HEADS}


def course(length: int | None, seed: int) -> list[float]:
    """Accuracies that jump at this measurement; None: they never do."""
    return [0.2] * 120 if length is None else [0.2] * (length + seed % 3 - 1) + [0.97]


def numbers(
    *,
    lengths: Mapping[int, int | None] = LENGTHS,
    at_high: Mapping[int, int | None] | None = None,
    work: float = 0.9,
) -> dict[str, Any]:
    """Accuracies step by step, for 12 seeds; at the high rates one head never learns."""
    result: dict[str, Any] = {
        f"pilot.heads-{heads}.rate-{rate:g}.limit-300.seed-0": {"score": score, "learned": True}
        for heads in HEADS
        for rate, score in ((2e-3, 200.0), (4e-3, 150.0), (8e-3, 250.0))
    }
    settings = [(4e-3, lengths)] + [
        (rate, at_high or {1: None, 2: 20, 4: 20}) for rate in lab.HIGH_RATES
    ]
    for seed in range(12):
        for rate, reached in settings:
            for heads in HEADS:
                row = {"heads": heads, "rate": rate, "seed": seed, "limit": 600}
                row |= INSIDE[heads] | {"course": course(reached[heads], seed)}
                if heads == 2:
                    share = work - 0.01 * (seed % 4)
                    row |= {"to content": [share, 0.1], "to place": [0.1, share]}
                result[f"run.heads-{heads}.rate-{rate:g}.limit-600.seed-{seed}"] = row
    return result | costs()


def costs(*, per_head: float = 0.3, per_call: float = 1.0) -> dict[str, Any]:
    """Seconds of five repeats, with a little noise."""
    result: dict[str, Any] = {"flops": lab.measure_flops()}
    for n in range(5):
        noise = 1 + 0.01 * n
        layer = {str(heads): 1 + per_head * (heads - 1) * noise for heads in lab.COST_HEADS}
        calls = {"one call": 1.0, "many calls": 1 + 8 * (per_call - 0.5) * noise}
        result[f"cost.repeat-{n}"] = {
            "layer": {"equation": layer, "fused": layer},
            "calls": {str(count): calls for count in (head_costs.FEW_TOKENS, head_costs.TOKENS)},
        }
    return result


def holds(numbers: Mapping[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_multi_head(numbers)]


def with_inside(heads: int, replaced: Inside) -> dict[str, Any]:
    return {
        name: row | replaced if name.startswith(f"run.heads-{heads}.") else row
        for name, row in numbers().items()
    }


def test_supported_where_all_of_it_is_true() -> None:
    assert holds(numbers()) == [True] * 9


def test_heads_that_do_not_share_the_width_have_more_parameters() -> None:
    wide = gpt(
        width=two_relations.WIDTH, layers=1, heads=2, head_dim=two_relations.WIDTH,
        vocab_size=two_relations.VOCABULARY, max_positions=two_relations.SIZE + 1,
    )  # fmt: skip
    verdict = holds(with_inside(2, measured_inside(build_seeded(wide, 0))))
    assert (verdict[SIZES], verdict[RANKS]) == (False, False)


def test_a_head_whose_relation_collapsed_has_a_lower_rank() -> None:
    def collapse(model: Transformer) -> None:
        weight = model.last_stack[0].attention.query.weight
        weight[1] = weight[0]

    assert holds(with_inside(2, inside(2, collapse)))[RANKS] is False


def test_a_single_head_that_averages_does_not_learn() -> None:
    """The world of the common account."""
    verdict = holds(numbers(lengths=LENGTHS | {1: None}))
    assert (verdict[LEARNED], verdict[STEPS]) == (False, True)


@pytest.mark.parametrize(("four", "expected"), [(60, False), (40, None)])
def test_several_heads_that_are_not_faster(four: int, expected: bool | None) -> None:
    slow = numbers(lengths=LENGTHS | {4: four})
    if expected is None:  # as fast, give or take the noise of the seeds
        for seed in range(12):
            row = slow[f"run.heads-4.rate-0.004.limit-600.seed-{seed}"]
            row["course"] = course(four, seed + 1)
    assert holds(slow)[STEPS] is expected


@pytest.mark.parametrize(
    ("at_high", "expected"),
    [({1: 20, 2: None, 4: None}, False), ({1: 20, 2: 20, 4: 20}, None)],
)
def test_several_heads_that_are_not_more_stable(
    at_high: Mapping[int, int | None], expected: bool | None
) -> None:
    assert holds(numbers(at_high=at_high))[HIGH] is expected


def test_heads_that_look_everywhere_divide_nothing() -> None:
    """With queries of zero, every weight is a sixth, and that is what is judged."""

    def blind(model: Transformer) -> None:
        model.last_stack[0].attention.query.weight.zero_()

    uniform = inside(2, blind)
    assert uniform["to content"] == pytest.approx([1 / 6, 1 / 6])
    assert holds(numbers(work=uniform["to content"][0]))[WORK] is False


def test_heads_that_do_not_share_the_width_cost_more() -> None:
    wide = {str(heads): head_costs.product_flops(heads, head_dim=64) for heads in (4, 8)}
    assert holds(numbers() | {"flops": wide})[FLOPS] is False


def test_times_that_say_the_opposite() -> None:
    verdict = holds(numbers() | costs(per_head=-0.02, per_call=0.45))
    assert (verdict[SLOWER], verdict[ONE_CALL]) == (False, False)


def test_parts_are_those_of_the_tuned_and_the_high_rates() -> None:
    rates = tuned_rates(numbers())
    plan = Plan("quick", 100, rates | {"heads-8": TunedRate("heads-8", 8e-3, False, ())})
    names = [part.name for part in lab.multi_head_parts(plan)]
    assert len(set(names)) == len(names)
    assert {name.split(".limit")[0] for name in names if name.startswith("run.")} == {
        f"run.heads-{heads}.rate-{rate}" for heads in (1, 2) for rate in (0.004, 0.008)
    }
    assert {part.name.split(".rate-")[0] for part in lab.multi_head_pilots("default")} == {
        f"pilot.heads-{heads}" for heads in (1, 2, 4, 8)
    }


def test_it_can_be_drawn_and_summarized() -> None:
    assert set(lab.draw_multi_head(numbers())) == {"single-vs-multi-head"}
    assert "learned in 0 of 24 runs" in lab.summarize_multi_head(numbers()).en
