"""Heads are found again by where they look and what they say."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

import sightline as sl
from sightline.lens.heads.matching import HeadChange, js_divergences, pairs_of, relative_distance
from sightline.lens.trace.trace import trace_of
from tests.support.diff_model import IDS, Tiny
from tests.support.tiny import ALL, SIZE, make


def test_divergence_is_scipys() -> None:
    p, q = torch.randn(3, 5, 7).double().softmax(-1), torch.randn(4, 5, 7).double().softmax(-1)
    q[2, :, 3:] = 0
    q[2] /= q[2].sum(-1, keepdim=True)
    expected = [
        [
            sum(jensenshannon(one[row], other[row], base=2) ** 2 for row in range(5))
            for other in q.numpy()
        ]
        for one in p.numpy()
    ]
    np.testing.assert_allclose(js_divergences(p, q).numpy(), expected, rtol=1e-6)


def test_divergence_is_nought_for_the_same_and_one_bit_for_nothing_in_common() -> None:
    p = torch.eye(4).double()[None]
    assert float(js_divergences(p, p)) == 0.0
    assert float(js_divergences(p, p.roll(1, dims=-1))) == pytest.approx(4.0)


def test_a_distance_of_nothing_to_nothing_is_nought() -> None:
    result = relative_distance(
        torch.tensor([0.0, 4.0, 1e-20]).double(), torch.tensor([0.0, 16.0, 1.0]).double()
    )
    assert result.tolist() == [0.0, 0.5, 0.0]


def test_the_assignment_is_the_best_of_all() -> None:
    a, b = Tiny(make(ALL["rotary"])), Tiny(make(ALL["rotary"], seed=5))
    what = ("query", "key", "heads")
    ours, theirs = trace_of(a, IDS, what=what), trace_of(b, IDS, what=what)
    for group in pairs_of(a, b):
        group.add(ours, theirs, {})
        changes, only_a, only_b = group.match()
        assert not only_a
        assert not only_b
        apart = group.divergence / group.rows
        assert group.rows == len(IDS) - 1, "the first token sees itself alone"
        x, y = (
            trace.kept["decoder", group.a_heads[0][0], "heads"].flatten(1).numpy()
            for trace in (ours, theirs)
        )
        cosine = (x @ y.T) / np.outer(np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1))
        cost = apart.numpy() + 0.5 * (1 - cosine.clip(0))
        best = min(sum(cost[i, j] for i, j in enumerate(order)) for order in permutations(range(4)))
        assert sum(cost[change.head, change.to_head] for change in changes) == pytest.approx(
            best, abs=1e-5
        )
        assert [change.divergence for change in changes] == [
            pytest.approx(float(apart[change.head, change.to_head])) for change in changes
        ]


def test_models_of_other_shapes_are_matched_over_all_layers() -> None:
    large, small = (
        Tiny(make(ALL["rotary"])),
        Tiny(make(sl.gpt(**(SIZE | {"layers": 1}), positions=sl.Rotary()))),
    )
    with (
        torch.no_grad()
    ):  # the first layer adds nothing, and the second is the other model's only one
        for part in (
            large.transformer.decoder[0].attention.output,
            large.transformer.decoder[0].feed_forward.down,
        ):
            part.weight.zero_()
            part.bias.zero_()
        small.transformer.decoder[0].load_state_dict(large.transformer.decoder[1].state_dict())
        small.transformer.decoder.embedding.load_state_dict(
            large.transformer.decoder.embedding.state_dict()
        )
    (group,) = pairs_of(large, small)
    what = ("query", "key", "heads")
    group.add(trace_of(large, IDS, what=what), trace_of(small, IDS, what=what), {})
    changes, only_large, only_small = group.match()
    assert [(change.layer, change.head, change.to_layer, change.to_head) for change in changes] == [
        (1, n, 0, n) for n in range(4)
    ]
    assert all(change.size < 1e-6 for change in changes)
    assert only_large == [("decoder", 0, n) for n in range(4)]
    assert not only_small


def test_a_change_as_a_line() -> None:
    change = HeadChange("decoder", 2, 1, True, 2, 3, 0.25, 0.5)
    assert (
        str(change)
        == "decoder layer 2 cross-attention head 1 → layer 2 head 3: map differs by 0.250 bits, output differs by 0.500"
    )
    assert change.moved
    assert change.size == 0.5
    still = HeadChange("encoder", 0, 1, False, 0, 1, 0.25, None)
    assert str(still) == "encoder layer 0 head 1: map differs by 0.250 bits"
    assert still.size == 0.25
