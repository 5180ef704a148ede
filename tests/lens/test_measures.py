"""Entropy, span, first token and norms, by hand and where they are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.lens.trace import layer as module
from sightline.lens.trace.measures import (
    attention_entropy,
    attention_measures,
    attention_span,
    effective_keys,
    first_token_share,
    norm_growth,
)
from sightline.lens.trace.trace import Trace, trace_of
from tests.lens.asked import Tiny, ids_of, source_of, tiny
from tests.support.tiny import ALL, make


def traced(name: str) -> Trace:
    return trace_of(tiny(name), ids_of(name), **source_of(name))


@pytest.mark.parametrize("name", ["rotary", "grouped", "window-alternating", "bert", "t5"])
@pytest.mark.parametrize("tile", [1 << 21, 60])
def test_by_hand(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(name)
    weights = np.stack(
        [trace.weights(layer).double().numpy() for layer in range(trace.config.last.layers)]
    )
    monkeypatch.setattr(module, "TILE", tile)
    result = attention_measures(trace)
    logs = np.log(np.where(weights > 0, weights, 1))
    entropy = -(weights * logs).sum(-1)
    i, j = np.indices(weights.shape[-2:])
    first = weights[..., (0 if name == "bert" else 1) :, 0].mean(-1)
    for seen, expected in (
        (result.entropy, entropy.mean(-1)),
        (result.keys, np.exp(entropy).mean(-1)),
        (result.span, (weights * abs(i - j)).sum(-1).mean(-1)),
        (result.first, first),
    ):
        np.testing.assert_allclose(seen.numpy(), expected, atol=1e-5)
    assert torch.equal(result.entropy, attention_entropy(trace))
    assert torch.equal(result.keys, effective_keys(trace))
    assert torch.equal(result.span, attention_span(trace))
    assert torch.equal(result.first, first_token_share(trace))


def test_even_attention_is_known() -> None:
    """With queries of zero every head looks at all keys alike."""
    model = make(ALL["bert"])
    with torch.no_grad():
        for layer in range(2):
            model.encoder[layer].attention.query.weight.zero_()
            model.encoder[layer].attention.query.bias.zero_()
    result = attention_measures(trace_of(Tiny(model), ids_of("bert", 8)))
    assert result.entropy.flatten().tolist() == pytest.approx([math.log(8)] * 8)
    assert result.keys.flatten().tolist() == pytest.approx([8] * 8, rel=1e-5)
    assert result.first.flatten().tolist() == pytest.approx([1 / 8] * 8)
    assert result.span.flatten().tolist() == pytest.approx([(8**2 - 1) / (3 * 8)] * 8)


def test_cross_attention_has_no_span_and_the_encoder_its_own() -> None:
    trace = traced("transformer")
    crossed = attention_measures(trace, cross=True)
    assert crossed.span is None
    expected = -torch.xlogy(trace.cross_weights(1), trace.cross_weights(1)).sum(-1).mean(-1)
    torch.testing.assert_close(crossed.entropy[1], expected)
    torch.testing.assert_close(crossed.first[0], trace.cross_weights(0)[..., 0].mean(-1))
    assert attention_measures(trace, stack="encoder").stack == "encoder"


def test_sinks_are_taken_out_and_one_token_is_no_trouble() -> None:
    trace = traced("sinks")
    weights = trace.weights(0)
    assert float(weights.sum(-1).max()) < 1
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(
        attention_measures(trace).entropy[0], -torch.xlogy(weights, weights).sum(-1).mean(-1)
    )
    alone = attention_measures(trace_of(tiny("rotary"), [4]))
    assert (float(alone.entropy.max()), float(alone.first.min()), float(alone.span.max())) == (
        0,
        1,
        0,
    )


def test_some_layers_only_and_json() -> None:
    result = attention_measures(trace_of(tiny("window-alternating"), [1, 2, 3], layers=[1, 3]))
    assert result.layers == (1, 3)
    assert json.loads(json.dumps(result.to_dict()))["layers"] == [1, 3]
    uneven = attention_measures(trace_of(tiny("rotary"), [1, 2, 3]))
    assert json.loads(json.dumps(uneven.to_dict(), allow_nan=False))["cross"] is False


@pytest.mark.parametrize(
    "name", ["layer-pre", "rms-post", "parallel", "ngpt", "bert", "transformer"]
)
def test_norms_of_the_stream(name: str) -> None:
    subject, ids, source = tiny(name), ids_of(name), source_of(name)
    result = norm_growth(subject, ids, **source)
    seen = sl.Recorder({"residual", "feed_forward", "output"})
    subject.transformer(
        torch.tensor([ids]),
        **{key: torch.tensor([value]) for key, value in source.items()},
        record=seen,
    )
    stack = subject.transformer.last_stack
    for layer in range(2):
        torch.testing.assert_close(
            result.stream[layer], seen[stack.name, layer, "residual"][0].norm(dim=-1).detach()
        )
        torch.testing.assert_close(
            result.feed_forward[layer],
            seen[stack.name, layer, "feed_forward"][0].norm(dim=-1).detach(),
        )
    if isinstance(stack.config.final_norm, sl.NoNorm):
        torch.testing.assert_close(
            result.stream[-1], seen[stack.name, None, "output"][0].norm(dim=-1).detach()
        )
    torch.testing.assert_close(
        result.growth, result.stream.mean(-1)[1:] / result.stream.mean(-1)[:-1]
    )
    assert (result.cross_attention is not None) == bool(source)
    assert len(json.loads(json.dumps(result.to_dict()))["growth"]) == 2


def test_the_encoders_norms_and_the_sphere() -> None:
    encoder = norm_growth(
        tiny("transformer"), ids_of("transformer"), **source_of("transformer"), stack="encoder"
    )
    assert encoder.stream.shape == (3, 7)
    assert encoder.cross_attention is None
    sphere = norm_growth(tiny("ngpt"), ids_of("ngpt"))
    torch.testing.assert_close(sphere.stream, torch.ones_like(sphere.stream))


def test_a_trace_without_attention_is_refused() -> None:
    with pytest.raises(sl.InputError, match="a trace without attention"):
        attention_measures(trace_of(tiny("rotary"), [1, 2], what=("residual",)))
    with pytest.raises(sl.InputError, match="no cross-attention"):
        attention_measures(traced("rotary"), cross=True)
