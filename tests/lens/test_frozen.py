"""Held still, a norm or a head is a linear map that gives the very same output."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.core.norms import make_norm
from sightline.lens.attributions.frozen import (
    affine,
    fixed_gain,
    streams_of,
    through_head,
    through_norm,
)
from tests.lens.asked import ids_of, tiny

FORMS = [
    sl.LayerNorm(),
    sl.LayerNorm(bias=False),
    sl.RMSNorm(),
    sl.RMSNorm(plus_one=True),
    sl.NoNorm(),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_direction_read_before_the_norm_is_that_read_after(form: object) -> None:
    norm = make_norm(form, 12)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    x, g = torch.randn(5, 12) * 3, torch.randn(5, 12, dtype=torch.float64)
    with torch.no_grad():
        pulled = through_norm(norm, x, g)
        torch.testing.assert_close(
            (x * pulled.g).sum(-1) + pulled.bias, (norm(x) * g).sum(-1), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("name", ["swiglu", "logit-cap", "ngpt", "bert", "t5", "free-output"])
def test_the_head_likewise(name: str) -> None:
    model = tiny(name).transformer
    hidden, tokens = torch.randn(4, 24), torch.tensor([3, 0, 28, 3])
    with torch.no_grad():
        pulled = through_head(model, hidden, tokens)
        logits = model.head(hidden[None])[0].gather(-1, tokens[:, None])[:, 0]
        torch.testing.assert_close(
            (hidden * pulled.g).sum(-1) + pulled.bias, logits.double(), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize(
    "name", ["layer-pre", "layer-post", "parallel", "rms-sandwich", "ngpt", "bert"]
)
def test_streams_are_what_the_next_block_reads(name: str) -> None:
    model, seen = tiny(name).transformer, sl.Recorder({"residual", "attention", "feed_forward"})
    model(torch.tensor([ids_of(name)]), record=seen)
    stack = model.last_stack
    streams = streams_of(stack[0], lambda what: seen[stack.name, 0, what])
    torch.testing.assert_close(streams[-1], seen[stack.name, 1, "residual"])


def test_an_unknown_layer_is_asked_what_it_does() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 5))
    x = torch.randn(2, 4)
    weight, bias = affine(layer, 4)
    torch.testing.assert_close(x @ weight.T + bias, layer(x))


def test_nothing_over_nothing_is_nothing() -> None:
    assert fixed_gain(torch.tensor([0.0, 3.0]), torch.tensor([0.0, 2.0])).tolist() == [0.0, 1.5]
