"""Induction heads: the task has no fixed distance, one small model of each kind is really trained,
and the verdict follows the numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, verdict_of
from sightline.lab.experiments import induction_heads
from sightline.lab.measures import repeats
from sightline.lab.results import to_json_numbers


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    """Two layers through their phase change, and one layer for a while; one seed."""
    return {
        f"layers-{layers}.seed-0": to_json_numbers(
            repeats.train_and_watch(layers, steps, seed=0, every=16)
        )
        for layers, steps in ((2, 240), (1, 128))
    }


def test_rows_repeat_at_different_distances() -> None:
    made = repeats.repeating_rows(200, torch.Generator().manual_seed(0))
    periods = [next(p for p in range(1, 64) if (row[p:] == row[:-p]).all()) for row in made]
    assert min(periods) == repeats.SHORTEST
    assert max(periods) == repeats.LONGEST
    assert all(
        len(set(row[:period].tolist())) == period for row, period in zip(made, periods, strict=True)
    )
    assert len(set(periods)) > 20


def test_early_targets_are_new_and_late_ones_repeat() -> None:
    for row in repeats.repeating_rows(100, torch.Generator().manual_seed(1)):
        targets = row[1:].tolist()
        assert len(set(targets[repeats.EARLY]) | {int(row[0])}) == repeats.SHORTEST
        assert all(token in row[: 63 - 8].tolist() for token in targets[repeats.LATE])


def test_the_feed_forward_adds_nothing() -> None:
    model = repeats.attention_alone(2, 0)
    seen = torch.stack(
        [
            block.feed_forward(torch.randn(1, 5, repeats.WIDTH))
            for block in (model.decoder[0], model.decoder[1])
        ]
    )
    assert not seen.any()
    assert not any(
        p.requires_grad
        for name, p in model.named_parameters()
        if "feed_forward." in name and "residual" not in name
    )


def test_losses_are_those_of_numpy() -> None:
    model, tokens = (
        repeats.attention_alone(1, 3),
        repeats.repeating_rows(4, torch.Generator().manual_seed(2)),
    )
    logits = model(tokens[:, :-1]).detach().double().numpy()
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    chosen = np.take_along_axis(
        odds / odds.sum(-1, keepdims=True), tokens[:, 1:, None].numpy(), -1
    )[..., 0]
    nats = -np.log(chosen).mean(0)
    assert repeats.early_and_late_loss(model, tokens) == pytest.approx(
        (nats[:7].mean(), nats[-8:].mean()), rel=1e-5
    )


def test_cut_links_are_gone_and_rows_still_sum_to_one() -> None:
    weights = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    links = torch.zeros(2, 4, 4, dtype=torch.bool)
    links[0, 3, 1] = links[1, 2, 0] = True
    found = repeats.cut_links(weights, [0, 2], links)
    expected = weights.double().numpy().copy()
    for row, query, key in ((0, 3, 1), (1, 2, 0)):
        for head in (0, 2):
            expected[row, head, query, key] = 0
            expected[row, head, query] /= expected[row, head, query].sum()
    assert found.numpy() == pytest.approx(expected, abs=1e-6)


def test_links_that_are_cut_are_those_behind_the_same_token() -> None:
    """At the second A of A B C A, the key that is cut is B's; beside it is the first A's."""
    from sightline.lens.heads.patterns import induction_pattern

    links = induction_pattern(torch.tensor([7, 8, 9, 7]))
    assert links.nonzero().tolist() == [[3, 1]]
    assert links.roll(-1, dims=1).nonzero().tolist() == [[3, 0]]


def test_two_layers_get_there_and_one_does_not(numbers: dict[str, Any]) -> None:
    checks = induction_heads.judge_induction_heads(numbers)
    assert [check.holds for check in checks] == [True] * len(checks)
    two = numbers["layers-2.seed-0"]
    assert two["head"][0] == 1  # the second layer
    assert two["induction"][0] < 0.1 < 0.5 < two["induction"][-1]


def test_the_film_ends_on_the_diagonal(numbers: dict[str, Any]) -> None:
    """Computed from the saved map: at the second half, token i looks at i − period + 1."""
    two = numbers["layers-2.seed-0"]
    period = len(two["tokens"]) // 2
    assert two["tokens"][:period] == two["tokens"][period:]
    first, last = (np.array(two["film"][n]["map"]) for n in (0, -1))
    on = [last[i, i - period + 1] for i in range(period, 2 * period - 1)]
    assert (
        np.mean(on)
        > 0.5
        > 5 * np.mean([first[i, i - period + 1] for i in range(period, 2 * period - 1)])
    )


@pytest.mark.parametrize(
    ("edit", "check"),
    [
        (lambda two, one: two.update(induction=[0.3] * len(two["step"])), 0),
        (lambda two, one: two.update(late=np.linspace(4, 0.1, len(two["step"])).tolist()), 1),
        (lambda two, one: two.update(late=[4.0, *[0.1] * (len(two["step"]) - 1)]), 1),
        (lambda two, one: two.update(induction=[*[0.0] * (len(two["step"]) - 1), 0.9]), 2),
        (lambda two, one: two.update(early=two["late"]), 3),
        (lambda two, one: two.update(without={"heads": 0, "late": 0.1, "beside": 0.1}), 4),
        (lambda two, one: one.update(induction=two["induction"]), 5),
        (lambda two, one: one.update(late=two["late"]), 6),
    ],
)
def test_numbers_that_contradict_are_not_supported(
    numbers: dict[str, Any], edit: Any, check: int
) -> None:
    two, one = (copy.deepcopy(row) for row in numbers.values())
    edit(two, one)
    checks = induction_heads.judge_induction_heads(dict(zip(numbers, (two, one), strict=True)))
    assert checks[check].holds is False
    assert verdict_of(checks) == "not supported"


def test_seeds_that_disagree_leave_it_open(numbers: dict[str, Any]) -> None:
    two, one = numbers.values()
    poor = copy.deepcopy(two) | {"induction": [*two["induction"][:-1], 0.2]}
    seeds = {
        "layers-2.seed-0": two,
        "layers-2.seed-1": poor,
        "layers-1.seed-0": one,
        "layers-1.seed-1": one,
    }
    assert induction_heads.judge_induction_heads(seeds)[0].holds is None


def test_a_head_that_never_forms_has_no_step(numbers: dict[str, Any]) -> None:
    assert math.isnan(induction_heads.formation_time(numbers["layers-1.seed-0"]))


def test_summary_and_figures(numbers: dict[str, Any]) -> None:
    words = induction_heads.summarize_induction_heads(numbers)
    assert "exceeds 0.5" in words.en
    assert "ステップ" in words.ja
    drawn = induction_heads.draw_induction_heads(numbers)
    assert set(drawn) == {"induction-heads", "induction-heads-film"}
    assert len(drawn["induction-heads-film"].axes) == len(numbers["layers-2.seed-0"]["film"])


def test_every_part_has_its_own_name() -> None:
    for tier in ("quick", "default", "full"):
        names = [part.name for part in induction_heads.induction_parts(Plan(tier, 0))]
        assert len(set(names)) == len(names) == 2 * induction_heads.SEEDS[tier]
