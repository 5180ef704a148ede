"""Importance is what removing a head costs on other texts; a large head that does nothing is not
important, and a world in which the order does not help is refuted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sightline as sl
from sightline.core.model import Transformer
from sightline.lab.experiments import pruning_heads as lab
from sightline.lab.measures.head_pruning import (
    ascending,
    head_places,
    loss_of,
    measure_heads,
    prune,
    pruned_loss,
)

SIZE, PLACES, HEADS = 8, 16, 4
USEFUL, LOUD = 2, 1


def planted() -> Transformer:
    """One layer: one head copies the token before to the logits, one writes a long vector that
    nothing reads, two do nothing."""
    width = 3 * (SIZE + PLACES)
    model = sl.build(
        sl.gpt(
            width=width, layers=1, heads=HEADS, head_dim=width, hidden=4, vocab_size=SIZE,
            max_positions=PLACES, norm="none", positions="learned", tied=False,
        )
    ).eval()  # fmt: skip
    stack = model.decoder
    assert stack is not None
    query, key, value = (torch.zeros(HEADS, width, width) for _ in range(3))
    output = torch.zeros(width, HEADS, width)
    token, place, before = slice(0, SIZE), slice(SIZE, SIZE + PLACES), slice(-SIZE, None)
    query[USEFUL, place, place] = 30 * width**0.5 * torch.diag(torch.ones(PLACES - 1), 1)
    key[USEFUL, place, place] = torch.eye(PLACES)
    value[USEFUL, token, token] = torch.eye(SIZE)
    output[before, USEFUL, token] = 5 * torch.eye(SIZE)
    value[LOUD, token, token] = torch.eye(SIZE)
    output[SIZE + PLACES : 2 * SIZE + PLACES, LOUD, token] = 50 * torch.eye(SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        stack.embedding.tokens.weight[:, token] = torch.eye(SIZE)
        stack.embedding.positions.weight[:, place] = torch.eye(PLACES)
        for layer, weight in (
            (stack[0].attention.query, query),
            (stack[0].attention.key, key),
            (stack[0].attention.value, value),
        ):
            layer.weight.copy_(weight.flatten(0, 1))
        stack[0].attention.output.weight.copy_(output.flatten(1))
        model.output.vocabulary.weight[:, before] = torch.eye(SIZE)
        model.output.vocabulary.weight[:, token] = 0.3 * torch.randn(SIZE, SIZE)
    return model


def alternating(count: int) -> torch.Tensor:
    """a b a b …: the next token is the one before."""
    pairs = torch.stack([torch.randperm(SIZE)[:2] for _ in range(count)])
    return pairs.repeat(1, PLACES // 2)


def test_importance_gradient_and_norm_of_a_planted_head() -> None:
    torch.manual_seed(0)
    model = planted()
    heads = measure_heads(model, alternating(4))
    for values in (heads.importance["zero"], heads.gradient):
        assert ascending(values)[-1] == (0, USEFUL)
        assert values[0, [n for n in range(HEADS) if n != USEFUL]].abs().max() < 1e-5
    assert ascending(heads.norm)[-1] == (0, LOUD)
    texts = alternating(4)
    assert heads.importance["zero"][0, USEFUL] > 1
    without = pruned_loss(model, texts, [(0, LOUD), (0, 0)], "zero", None)
    assert without == pytest.approx(float(loss_of(model, texts).detach()), abs=1e-5)
    assert len(head_places(model)) == HEADS


def world(*, useful_last: bool) -> dict[str, Any]:
    """Raw measurements of the planted model with as many heads as the experiment has; in the false
    world the texts that are judged need the heads that the others did not."""
    numbers: dict[str, Any] = {f"{lab.MODEL}.roles": [["unclear"] * 6] * 6}
    for seed in range(100, 106):
        random = torch.Generator().manual_seed(seed)
        weights = torch.rand(6, 6, generator=random) ** 4
        chosen = weights if useful_last else 1 - weights
        numbers[f"{lab.MODEL}.seed-{seed}"] = prune_sum(weights, chosen, seed)
    return numbers


def prune_sum(weights: torch.Tensor, chosen: torch.Tensor, seed: int) -> dict[str, Any]:
    """A loss that is the squared sum of the weights of what is removed."""
    orders = {
        "importance": ascending(chosen),
        "gradient": ascending(chosen),
        "norm": ascending(-weights),
        "random": torch.randperm(36, generator=torch.Generator().manual_seed(seed)).tolist(),
    }
    orders["random"] = [divmod(place, 6) for place in orders["random"]]

    def loss(removed: list[tuple[int, int]]) -> float:
        total = float(sum(weights[place] for place in removed))
        return 1 + total + 0.1 * total**2

    curves = {
        name: [loss(list(order[:count])) for count in lab.COUNTS] for name, order in orders.items()
    }
    return {
        "counts": list(lab.COUNTS),
        "loss": 1.0,
        "curves": {
            "zero": curves,
            "mean": {name: [1 + (x - 1) / 2 for x in row] for name, row in curves.items()},
        },
        "costliest": loss([orders["importance"][-1]]),
        "importance": weights.tolist(),
    }


def test_a_world_in_which_the_claim_holds_and_one_in_which_it_does_not() -> None:
    good = world(useful_last=True)
    assert [check.holds for check in lab.judge_pruning(good)] == [True] * 6
    bad = world(useful_last=False)
    holds = [check.holds for check in lab.judge_pruning(bad)]
    assert holds[:3] == [False] * 3
    swapped = {name: swap(row) if ".seed-" in name else row for name, row in good.items()}
    holds = [check.holds for check in lab.judge_pruning(swapped)]
    assert holds[3:] == [False] * 3
    assert set(lab.draw_pruning(good)) == {"pruning-heads"}
    assert "3" in lab.summarize_pruning(good).ja


def swap(row: dict[str, Any]) -> dict[str, Any]:
    """Norm and random exchanged, mean and zero too, and single costs that exceed the joint one."""
    curves = {by: dict(orders) for by, orders in row["curves"].items()}
    for orders in curves.values():
        orders["norm"], orders["random"] = orders["random"], orders["norm"]
    curves["zero"], curves["mean"] = curves["mean"], curves["zero"]
    return {**row, "curves": curves, "importance": [[9 * x for x in y] for y in row["importance"]]}


@pytest.mark.parametrize("needed", [True, False])
def test_through_measurement_and_verdict(monkeypatch: pytest.MonkeyPatch, needed: bool) -> None:
    """The same head on texts that need it, and on texts that it misleads."""
    monkeypatch.setattr(lab, "FIFTH", 1)
    monkeypatch.setattr(lab, "THIRD", 2)
    torch.manual_seed(1)
    model = planted()
    numbers = {
        f"{lab.MODEL}.seed-{seed}": prune(
            model,
            alternating(2),
            alternating(2) if needed else torch.randint(SIZE, (2, PLACES)),
            counts=(1, 2, 3, 4),
            seed=seed,
        )
        for seed in range(100, 108)
    }
    few, *orders = lab.judge_pruning(numbers)
    assert few.holds is needed
    assert [check.holds for check in orders[:2]] == [needed, needed]
