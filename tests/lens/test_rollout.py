"""Rollout by hand, flow by networkx, value-weighted attention by every vector on its own."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest
import torch

import sightline as sl
from sightline.lens.attributions.rollout import attention_flow, rollout, value_weighted
from sightline.lens.trace.trace import Trace, trace_of
from tests.lens.asked import ids_of, source_of, tiny

SOME = ["rotary", "window-alternating", "grouped", "bert", "transformer", "t5"]


def traced(name: str, time: int = 6) -> Trace:
    return trace_of(tiny(name), ids_of(name, time), **source_of(name))


def mean(trace: Trace, layer: int, **where: object) -> np.ndarray:
    return trace.look(layer, **where).weights().double().numpy().mean(0)


@pytest.mark.parametrize("name", ["rotary", "window-alternating", "bert"])
@pytest.mark.parametrize("keep", [0.5, 0.0, 0.9])
def test_rollout_is_the_product(name: str, keep: float) -> None:
    trace = traced(name)
    result, product = rollout(trace, keep=keep), np.eye(6)
    for layer, so_far in enumerate(result.maps):
        product = (keep * np.eye(6) + (1 - keep) * mean(trace, layer)) @ product
        np.testing.assert_allclose(so_far.numpy(), product, atol=1e-6)
    assert torch.equal(rollout(trace, keep=keep, last_only=True).maps, result.maps[-1:])
    assert result.source_maps is None


@pytest.mark.parametrize("name", SOME)
def test_rows_sum_to_one(name: str) -> None:
    result = rollout(traced(name))
    total = result.maps.sum(-1) + (0 if result.source_maps is None else result.source_maps.sum(-1))
    torch.testing.assert_close(total, torch.ones_like(total))
    assert (result.source_maps is not None) == (name in ("transformer", "t5"))
    assert json.loads(json.dumps(result.to_dict()))["stack"] == result.stack


def test_a_sink_swallows_some() -> None:
    assert float(rollout(traced("sinks")).maps[-1].sum(-1).max()) < 1


def test_rollout_of_an_encoder_decoder_by_hand() -> None:
    """One big matrix over the source's and the target's tokens together."""
    trace = traced("transformer")
    source, time = 7, 6
    encoder = np.eye(source)
    for layer in range(2):
        encoder = (np.eye(source) + mean(trace, layer, stack="encoder")) / 2 @ encoder
    np.testing.assert_allclose(rollout(trace, stack="encoder").maps[-1].numpy(), encoder, atol=1e-6)
    state = np.concatenate(
        (np.zeros((time, source)), np.eye(time)), axis=1
    )  # each target token over all inputs
    below = np.concatenate((encoder, np.zeros((source, time))), axis=1)
    result = rollout(trace)
    for layer in range(2):
        state = (state + mean(trace, layer) @ state) / 2
        state = (state + mean(trace, layer, cross=True) @ below) / 2
        np.testing.assert_allclose(result.source_maps[layer].numpy(), state[:, :source], atol=1e-6)
        np.testing.assert_allclose(result.maps[layer].numpy(), state[:, source:], atol=1e-6)


def networkx_flow(
    trace: Trace, stack: str, layers: int, position: int, *, crossed: bool
) -> tuple[list[float], list[float]]:
    graph = nx.DiGraph()

    def pipes(upper: tuple[object, ...], lower: tuple[object, ...], capacity: np.ndarray) -> None:
        for (i, j), size in np.ndenumerate(capacity):
            if size:
                graph.add_edge((*upper, i), (*lower, j), capacity=float(size))

    def half(layer: int, where: str) -> np.ndarray:
        weights = mean(trace, layer, stack=where)
        return (np.eye(len(weights)) + weights) / 2

    for layer in range(2 if crossed else 0):
        pipes(("e", layer + 1), ("e", layer), half(layer, "encoder"))
    for layer in range(layers):
        pipes(("x", layer + 0.5), ("x", layer), half(layer, stack))
        pipes(("x", layer + 1), ("x", layer + 0.5), np.eye(6) * (0.5 if crossed else 1.0))
        if crossed:
            pipes(("x", layer + 1), ("e", 2), mean(trace, layer, cross=True) / 2)

    def to(name: str, j: int) -> float:
        return (
            nx.maximum_flow_value(graph, ("x", layers, position), (name, 0, j))
            if (name, 0, j) in graph
            else 0.0
        )

    return [to("x", j) for j in range(6)], [to("e", j) for j in range(7)] if crossed else []


@pytest.mark.parametrize("name", ["rotary", "window", "bert", "transformer"])
def test_flow_is_networkx_maximum_flow(name: str) -> None:
    trace, crossed = traced(name), name == "transformer"
    for position, layer in (-1, -1), (3, -1), (-1, 0):
        result = attention_flow(trace, position=position, layer=layer)
        target, source = networkx_flow(
            trace, result.stack, result.layer + 1, result.position, crossed=crossed
        )
        np.testing.assert_allclose(result.flows.numpy(), target, atol=1e-6)
        np.testing.assert_allclose(
            [] if result.source_flows is None else result.source_flows.numpy(), source, atol=1e-6
        )
    assert json.loads(json.dumps(result.to_dict()))["layer"] == 0


def test_the_first_layers_flow_is_its_attention() -> None:
    trace = traced("rotary")
    expected = (torch.eye(6) + trace.weights(0).mean(0))[4] / 2
    torch.testing.assert_close(
        attention_flow(trace, layer=0, position=4).flows.float(), expected, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("name", ["rotary", "grouped", "value-dim", "bert", "transformer"])
def test_value_weighted_is_the_length_of_each_vector(name: str) -> None:
    subject, trace = tiny(name), traced(name)
    crossed = name == "transformer"
    look = trace.look(1, cross=crossed)
    block = subject.transformer.last_stack[1]
    module = block.cross_attention if crossed else block.attention
    weights, value = look.weights().numpy(), look.value[0].numpy()
    heads, queries, keys = weights.shape
    matrix = module.output.weight.detach().numpy().T.reshape(heads, -1, 24)
    vectors = np.stack(
        [
            [
                [
                    weights[h, i, j] * value[h * len(value) // heads, j] @ matrix[h]
                    for j in range(keys)
                ]
                for i in range(queries)
            ]
            for h in range(heads)
        ]
    )
    result = value_weighted(subject, trace, layer=1, cross=crossed)
    np.testing.assert_allclose(result.numpy(), np.linalg.norm(vectors, axis=-1), atol=1e-5)
    together = value_weighted(subject, trace, layer=1, cross=crossed, together=True)
    np.testing.assert_allclose(together.numpy(), np.linalg.norm(vectors.sum(0), axis=-1), atol=1e-5)
    assert torch.equal(value_weighted(subject, trace, layer=1, cross=crossed, head=2), result[2])
    torch.testing.assert_close(
        value_weighted(subject, trace, layer=1, cross=crossed, rows=-1), result[:, -1]
    )
    total = value_weighted(subject, trace, layer=1, cross=crossed, normalise=True).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_bad_questions() -> None:
    trace = traced("rotary")
    with pytest.raises(sl.InputError, match="keep is 2"):
        rollout(trace, keep=2)
    with pytest.raises(sl.InputError, match="position 6"):
        attention_flow(trace, position=6)
    with pytest.raises(sl.InputError, match="expected one of the two"):
        value_weighted(tiny("rotary"), trace, layer=0, head=1, together=True)
    with pytest.raises(sl.InputError, match="was not traced"):
        rollout(trace_of(tiny("rotary"), [1, 2], layers=[0]))
