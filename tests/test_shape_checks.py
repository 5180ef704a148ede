"""The shape checks of the core find a wrong shape on the first call, on later ones, and again."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor, nn

from tests.support.shape_checks import DEPTH, check_once_per_shape, signature
from tests.support.tiny import ALL, inputs, make


class Scale(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    @check_once_per_shape(typechecker=beartype)
    def forward(self, x: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        return self.inner(x)[: self.rows]

    @check_once_per_shape(typechecker=beartype)
    def inner(self, x: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        return 2 * x


def test_a_wrong_shape_is_found_whatever_passed_before() -> None:
    module = Scale(rows=3)
    for _ in range(3):
        module(torch.ones(3, 5))
        for wrong in (torch.ones(4, 5), torch.ones(3), torch.ones(3, 5, dtype=torch.long)):
            with pytest.raises(jaxtyping.TypeCheckError):
                module(wrong)


def test_modules_that_differ_are_not_taken_for_each_other() -> None:
    """Each with the input that the other one passes."""
    assert Scale(rows=3)(torch.ones(3, 5)).shape == (3, 5)
    with pytest.raises(jaxtyping.TypeCheckError):
        Scale(rows=2)(torch.ones(3, 5))


def test_after_an_error_calls_are_checked_again() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Scale(rows=2)(torch.ones(3, 5))
    with pytest.raises(jaxtyping.TypeCheckError):
        Scale(rows=3).inner(torch.ones(3))


def test_the_core_is_checked() -> None:
    model = make(ALL["rotary"])
    for _ in range(2):
        model(**inputs(ALL["rotary"]))
        with pytest.raises(jaxtyping.TypeCheckError):
            model.decoder[0](torch.ones(3), None)


def test_a_signature_is_made_of_shapes_and_settings() -> None:
    config = ALL["grouped"]
    assert signature(make(config), DEPTH) == signature(make(config, seed=1), DEPTH)
    assert signature(make(config), DEPTH) != signature(make(ALL["multi-query"]), DEPTH)
    assert signature(make(config), DEPTH) != signature(make(config).double(), DEPTH)
    assert signature(torch.ones(2), DEPTH) == signature(torch.zeros(2), DEPTH)
    assert signature([1, True], DEPTH) != signature([True, 1], DEPTH)
    inner = [lambda size=size: size for size in (1, 2)]
    assert signature(inner[0], DEPTH) != signature(inner[1], DEPTH)
    assert signature(iter([]), DEPTH) != signature(iter([]), DEPTH), "checked each time"
