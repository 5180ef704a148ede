"""Which parameter is treated how; AdamW against torch's plain one; Muon against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import sightline as sl
from sightline.errors import InputError
from sightline.training.config import AdamW, Muon
from sightline.training.optimizers import (
    MuonOptimizer,
    describe_groups,
    make_optimizers,
    orthogonalize,
    parameter_groups,
)
from tests.support.tiny import SIZE, blocks, encoders, positions
from tests.training.small import model

Array = NDArray[np.float64]


def named(transformer: torch.nn.Module) -> dict[str, str]:
    return {
        name: group.name for group in parameter_groups(transformer) for name, _ in group.parameters
    }


def test_groups_of_a_gpt() -> None:
    result = named(sl.build(sl.gpt(**SIZE, tied=False)))
    assert result["decoder.embedding.tokens.weight"] == "tables"
    assert (
        result["decoder.0.attention.query.weight"]
        == result["decoder.1.feed_forward.up.weight"]
        == "hidden"
    )
    assert result["decoder.0.attention.query.bias"] == result["decoder.norm.weight"] == "vectors"
    assert result["output.vocabulary.weight"] == "head"


@pytest.mark.parametrize("name", [*positions(), *blocks(), *encoders()])
def test_each_parameter_is_in_one_group_by_its_kind(name: str) -> None:
    """Hidden ones are the weights of linear layers in blocks, and nothing else: no table, no scale
    of any shape."""
    transformer = sl.build((positions() | blocks() | encoders())[name])
    result = named(transformer)
    assert set(result) == {name for name, p in transformer.named_parameters() if p.requires_grad}
    linear = {
        f"{path}.weight"
        for path, part in transformer.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    assert {name for name, kind in result.items() if kind == "hidden"} == {
        name for name in linear if not name.startswith("output.")
    }
    assert all(
        group.decays == (group.name in ("hidden", "head"))
        for group in parameter_groups(transformer)
    )


def test_a_tied_head_is_a_table_and_frozen_weights_are_nowhere() -> None:
    transformer = model()
    transformer.last_stack[0].attention.query.weight.requires_grad_(False)
    result = named(transformer)
    assert "head" not in result.values()
    assert "decoder.0.attention.query.weight" not in result


def test_groups_can_be_printed() -> None:
    assert describe_groups(model(), AdamW(weight_decay=0.2)) == [
        "hidden: 7 tensors, 3,328 numbers, weight decay 0.2",
        "tables: 1 tensors, 208 numbers, no weight decay",
        "vectors: 3 tensors, 48 numbers, no weight decay",
    ]
    assert (
        describe_groups(model(), Muon())[0] == "hidden: 7 tensors, 3,328 numbers, no weight decay"
    )


def slopes(transformer: torch.nn.Module, step: int) -> None:
    made = np.random.default_rng(step)
    for p in transformer.parameters():
        p.grad = (
            torch.from_numpy(made.normal(size=tuple(p.shape))).float() if p.requires_grad else None
        )


def test_adamw_is_torchs_plain_one() -> None:
    ours, theirs = model(), model()
    config = AdamW(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2)
    mine = make_optimizers(ours, config)
    decays = {
        name for group in parameter_groups(theirs) if group.decays for name, _ in group.parameters
    }
    members = [
        {
            "params": [p for name, p in theirs.named_parameters() if (name in decays) == decay],
            "weight_decay": 0.2 if decay else 0.0,
        }
        for decay in (True, False)
    ]
    plain = torch.optim.AdamW(
        members, lr=0.01, betas=(0.8, 0.95), eps=1e-6, fused=False, foreach=False
    )
    for step in range(4):
        slopes(ours, step)
        slopes(theirs, step)
        mine.set_factor(1.0)
        mine.step()
        plain.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def newton_schulz(x: Array, iterations: int) -> Array:
    """As published, one matrix at a time, in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    x = x / (np.linalg.norm(x) + 1e-30)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


@pytest.mark.parametrize("shape", [(8, 8), (4, 12), (12, 4)])
def test_muon_by_hand(shape: tuple[int, int]) -> None:
    """Three steps of two matrices at once: momentum, Nesterov, five Newton–Schulz steps, √(out/in),
    decay."""
    made = np.random.default_rng(0)
    weights = [made.normal(size=shape) for _ in range(2)]
    parameters = [torch.nn.Parameter(torch.from_numpy(w).float()) for w in weights]
    ours = MuonOptimizer(parameters, lr=0.02, momentum=0.9, iterations=5, weight_decay=0.1)
    moments = [np.zeros(shape) for _ in range(2)]
    for _ in range(3):
        for n, parameter in enumerate(parameters):
            slope = made.normal(size=shape)
            parameter.grad = torch.from_numpy(slope).float()
            moments[n] = 0.9 * moments[n] + 0.1 * slope
            direction = newton_schulz(0.9 * moments[n] + 0.1 * slope, 5)
            weights[n] = (
                weights[n] * (1 - 0.02 * 0.1)
                - 0.02 * max(1, shape[0] / shape[1]) ** 0.5 * direction
            )
        ours.step()
    for parameter, weight in zip(parameters, weights, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), weight, atol=2e-5)


def test_orthogonal_directions() -> None:
    """Singular values near 1, the singular vectors of what was given."""
    torch.manual_seed(0)
    x = torch.randn(3, 16, 24)
    result = orthogonalize(x, 5)
    sizes = torch.linalg.svdvals(result)
    assert float(sizes.min()) > 0.5
    assert float(sizes.max()) < 1.3
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    assert (
        float(
            (
                u.mT @ result @ v.mT
                - torch.diag_embed(torch.diagonal(u.mT @ result @ v.mT, dim1=-2, dim2=-1))
            )
            .abs()
            .max()
        )
        < 1e-3
    )
    assert not torch.any(orthogonalize(torch.zeros(1, 4, 4), 5).isnan())


def test_muon_leaves_the_rest_to_adamw() -> None:
    made = make_optimizers(model(tied=False), Muon(lr=0.1, rest=AdamW(lr=0.01)))
    muon, rest = made.parts
    assert isinstance(muon, MuonOptimizer)
    assert {made.names[id(p)].split(".")[-2] for g in muon.param_groups for p in g["params"]} == {
        "query", "key", "value", "output", "up", "gate", "down",
    }  # fmt: skip
    assert made.set_factor(0.5) == pytest.approx(0.05)
    assert {group["lr"] for group in rest.param_groups} == {0.005}


def test_muon_where_nothing_or_everything_is_hidden() -> None:
    """Fine-tuning a head alone, or matrices alone."""
    head, matrices = model(tied=False), model()
    for name, p in head.named_parameters():
        p.requires_grad_(name.startswith("output."))
    for name, p in matrices.named_parameters():
        p.requires_grad_("attention.query.weight" in name)
    assert [type(part).__name__ for part in make_optimizers(head, Muon()).parts] == ["AdamW"]
    assert [type(part).__name__ for part in make_optimizers(matrices, Muon()).parts] == [
        "MuonOptimizer"
    ]


def test_a_model_that_does_not_learn_is_refused() -> None:
    with pytest.raises(InputError, match="every parameter of the model is frozen"):
        make_optimizers(model().requires_grad_(False), AdamW())
