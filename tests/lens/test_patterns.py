"""The scores against the same sums written as loops over NumPy arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sightline.lens.heads.patterns import (
    PatternScore,
    SinkFreeAttention,
    duplicate_pattern,
    induction_pattern,
    marked_keys_pattern,
    remove_sink,
    score_breadth,
    score_monotone,
    score_offset,
    score_pattern,
)

TIME, HEADS = 13, 3


def scene(
    *, causal: bool, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random attention, who sees whom, the sinks, who is asked."""
    drawn = torch.Generator().manual_seed(seed)
    visible = torch.ones(TIME, TIME, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    scores = 2 * torch.randn(HEADS, TIME, TIME, generator=drawn)
    sink = torch.zeros(TIME, dtype=torch.bool)
    sink[[0, TIME - 1]] = True
    return scores.masked_fill(~visible, -math.inf).softmax(-1), visible, sink, ~sink


def by_loops(
    weights: np.ndarray, visible: np.ndarray, sink: np.ndarray, pattern: np.ndarray
) -> list[tuple[float, float]]:
    """Value and chance of each head."""
    result = list[tuple[float, float]]()
    for head in weights:
        values, chances = list[float](), list[float]()
        for i in range(TIME):
            keys = [j for j in range(TIME) if visible[i, j] and not sink[j]]
            left = sum(head[i, j] for j in keys)
            inside = [j for j in keys if pattern[i, j]]
            if sink[i] or len(keys) < 2 or left < 0.01 or not 0 < len(inside) < len(keys):
                continue
            values.append(sum(head[i, j] for j in inside) / left)
            chances.append(len(inside) / len(keys))
        result.append((float(np.mean(values)), float(np.mean(chances))))
    return result


def same(measured: PatternScore, loops: list[tuple[float, float]]) -> None:
    np.testing.assert_allclose(measured.value.numpy(), [value for value, _ in loops], rtol=1e-6)
    np.testing.assert_allclose(measured.chance.numpy(), [chance for _, chance in loops], rtol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_patterns_are_sums_over_rows(causal: bool) -> None:
    weights, visible, sink, asked = scene(causal=causal)
    left = remove_sink(weights, visible, sink, asked)
    ids = torch.tensor([1, 5, 6, 7, 5, 6, 8, 7, 5, 5, 6, 9, 2])
    arrays = weights.double().numpy(), visible.numpy(), sink.numpy()
    for by in (-1, 0, -4) if causal else (-1, 0, 1, 3, -4):
        pattern = np.array([[j == i + by for j in range(TIME)] for i in range(TIME)])
        same(score_offset(left, by), by_loops(*arrays, pattern))
    pattern = np.array([[i != j and ids[i] == ids[j] for j in range(TIME)] for i in range(TIME)])
    same(score_pattern(left, duplicate_pattern(ids)), by_loops(*arrays, pattern))
    pattern = np.array(
        [
            [j > 0 and j not in (i, i + 1) and bool(ids[j - 1] == ids[i]) for j in range(TIME)]
            for i in range(TIME)
        ]
    )
    same(score_pattern(left, induction_pattern(ids)), by_loops(*arrays, pattern))
    marked = ids == 6
    pattern = np.array([[bool(marked[j]) and i != j for j in range(TIME)] for i in range(TIME)])
    same(
        score_pattern(left, marked_keys_pattern(marked, queries=TIME, cross=False)),
        by_loops(*arrays, pattern),
    )


def test_sink_and_breadth() -> None:
    weights, visible, sink, asked = scene(causal=False)
    left = remove_sink(weights, visible, sink, asked)
    rows = weights[:, 1:-1].double().numpy()
    np.testing.assert_allclose(
        left.sink.value.numpy(), (rows[..., 0] + rows[..., -1]).mean(-1), rtol=1e-6
    )
    assert left.sink.chance.tolist() == pytest.approx([2 / TIME] * HEADS)
    kept = rows[..., 1:-1] / rows[..., 1:-1].sum(-1, keepdims=True)
    share = np.exp(-(kept * np.log(kept)).sum(-1)) / (TIME - 2)
    np.testing.assert_allclose(score_breadth(left).value.numpy(), share.mean(-1), rtol=1e-6)


def test_what_a_learned_sink_swallows_is_sink() -> None:
    weights, visible, sink, asked = scene(causal=False)
    left = remove_sink(weights * 0.25, visible, torch.zeros_like(sink), torch.ones_like(asked))
    assert left.sink.value.tolist() == pytest.approx([0.75] * HEADS)
    assert left.weights.sum(-1).flatten().tolist() == pytest.approx([1.0] * HEADS * TIME)


def test_uniform_attention_scores_as_chance() -> None:
    _, visible, sink, asked = scene(causal=True)
    even = (visible / visible.sum(-1, keepdim=True)).expand(2, -1, -1)
    left = remove_sink(even, visible, sink, asked)
    for result in (score_offset(left, -1), score_offset(left, 0), left.sink):
        assert result.confidence.tolist() == pytest.approx([0, 0], abs=1e-6)
    assert score_breadth(left).confidence.tolist() == pytest.approx([1, 1])


def test_a_head_that_only_rests_says_nothing() -> None:
    _, visible, sink, asked = scene(causal=True)
    resting = torch.zeros(1, TIME, TIME)
    resting[..., 0] = 1
    left = remove_sink(resting, visible, sink, asked)
    assert not left.rows.any()
    assert math.isnan(float(score_offset(left, -1).value))
    assert float(left.sink.value) == 1


def cross(weights: torch.Tensor) -> SinkFreeAttention:
    queries, keys = weights.shape[1:]
    nothing = torch.zeros(keys, dtype=torch.bool)
    return remove_sink(
        weights,
        torch.ones(queries, keys, dtype=torch.bool),
        nothing,
        torch.ones(queries, dtype=torch.bool),
    )


def test_monotone_is_rank_correlation_times_reach() -> None:
    drawn = torch.Generator().manual_seed(3)
    weights = (2 * torch.randn(2, 9, 7, generator=drawn)).softmax(-1)
    weights[0] = torch.nn.functional.one_hot(torch.arange(9) * 7 // 9, 7) * 0.8 + 0.2 * weights[0]
    result = score_monotone(cross(weights)).value.tolist()
    for head, value in zip(weights.double().numpy(), result, strict=True):
        centres = head @ np.arange(7)
        ranks = [sum(other < centre for other in centres) for centre in centres]
        order = np.corrcoef(ranks, np.arange(9))[0, 1]
        reach = centres.std() / np.linspace(0, 6, 9).std()
        assert value == pytest.approx(max(0, order) * min(1, reach), abs=1e-6)


def test_only_a_walk_ahead_is_monotone() -> None:
    ahead = torch.eye(10)
    still, even = torch.zeros(10, 10), torch.full((10, 10), 0.1)
    still[:, 4] = 1
    mixed = ahead[torch.randperm(10, generator=torch.Generator().manual_seed(5))]
    sure = score_monotone(
        cross(torch.stack([ahead, ahead.flip(0), still, even, mixed]))
    ).confidence.tolist()
    assert sure[0] == pytest.approx(1, abs=1e-6)
    assert sure[1:4] == pytest.approx([0, 0, 0], abs=1e-6)
    assert sure[4] < 0.5
