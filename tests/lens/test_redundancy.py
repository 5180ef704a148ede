"""Heads that see the same are found, and only these."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.lens.heads.redundancy import clusters, redundancy_of, similarities
from sightline.lens.trace.trace import trace_of
from tests.lens import planted as p
from tests.support import tiny

TEXT = "a cat, a dog. the cow, the hen, the pig. we saw it, so did you."


def test_equal_heads_are_found_across_layers_and_sinks() -> None:
    first = [p.offset(-1), p.offset(0), p.diffuse()]
    second = [p.duplicate(), p.with_sink(p.offset(-1), p.STRONG), p.offset(-4)]
    result = redundancy_of(p.planted(sl.gpt, first, second), TEXT)
    assert result.clusters == (((0, 0), (1, 1)),)
    assert result.like(0, 0, 1)[0][0] == (1, 1)
    assert result.like(0, 0, 1)[0][1] > 0.99
    assert result.similarity.diagonal().tolist() == [1] * 6


def test_similarity_is_one_minus_the_mean_distance_of_rows() -> None:
    drawn = torch.Generator().manual_seed(0)
    maps = (2 * torch.randn(4, 6, 5, generator=drawn)).softmax(-1)
    rows = torch.ones(4, 6, dtype=torch.bool)
    rows[1, 2:4] = False
    result = similarities(maps, rows).numpy()
    for a, b in itertools.combinations(range(4), 2):
        distances = list[float]()
        for i in range(6):
            if rows[a, i] and rows[b, i]:
                one, other = maps[a, i].double().numpy(), maps[b, i].double().numpy()
                middle = (one + other) / 2
                divergence = sum(
                    (x * np.log2(x / m)).sum() / 2 for x, m in ((one, middle), (other, middle))
                )
                distances.append(float(np.sqrt(divergence)))
        assert result[a, b] == result[b, a] == pytest.approx(1 - np.mean(distances), abs=1e-4)


def test_heads_that_never_meet_and_heads_that_only_rest() -> None:
    left, right = torch.zeros(3, 4), torch.zeros(3, 4)
    left[:, 0], right[:, 3] = 1, 1
    maps, silent = torch.stack([left, right, left, left]), torch.tensor([False, False, True, True])
    result = similarities(maps, (~silent)[:, None].expand(4, 3))
    assert result[0, 1] == pytest.approx(0, abs=1e-6)
    assert result[2, 3] == 1
    assert result[0, 2] == 0


def test_in_a_group_every_pair_is_alike() -> None:
    drawn = np.random.default_rng(1)
    points = drawn.random((30, 2))
    alike = torch.tensor(1 - np.linalg.norm(points[:, None] - points, axis=-1) / 2)
    groups = clusters(alike, 0.85)
    assert groups
    for group in groups:
        assert all(float(alike[a, b]) >= 0.85 for a, b in itertools.combinations(group, 2))
    whole = [*groups, *([n] for n in range(30) if not any(n in group for group in groups))]
    for one, other in itertools.combinations(whole, 2):  # no two groups could still be joined
        assert min(float(alike[a, b]) for a in one for b in other) < 0.85


@pytest.mark.parametrize("name", ["bert", "grouped", "window"])
def test_every_kind_of_stack(name: str) -> None:
    result = redundancy_of(sl.Model(tiny.make(tiny.ALL[name])), [5, 9, 7, 20, 11, 8, 6])
    assert result.similarity.shape == (8, 8)
    assert torch.equal(result.similarity, result.similarity.T)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["places"][-1] == [1, 3]


def test_cross_attention() -> None:
    model = p.planted(
        sl.encoder_decoder, [p.diffuse()] * 3, cross=[[p.offset(0), p.diffuse(), p.offset(0)]]
    )
    trace = trace_of(model, [1, 5, 6, 7, 8, 9], source=[5, 6, 7, 8, 9, 10, 11])
    assert redundancy_of(model, trace, cross=True).clusters == (((0, 0), (0, 2)),)
    assert len(redundancy_of(model, trace, stack="encoder").places) == 3


def test_mistakes_say_the_fix() -> None:
    model = p.planted(sl.gpt, [p.diffuse()])
    with pytest.raises(InputError, match=r"no cross-attention.*Fix: cross=False"):
        redundancy_of(model, TEXT, cross=True)
    with pytest.raises(InputError, match=r"Fix: threshold=0\.7"):
        redundancy_of(model, TEXT, threshold=1.5)
    with pytest.raises(InputError, match="cannot encode the built-in one"):
        redundancy_of(model)
    with pytest.raises(InputError, match=r"head 3\.0"):
        redundancy_of(model, TEXT).like(3, 0)
