"""The order of samples: a pure function of (seed, index)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.training.data.order import permutation, random, samples


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), count=st.integers(1, 50), epoch=st.integers(0, 1000))
def test_an_epoch_has_everything_once(seed: int, count: int, epoch: int) -> None:
    epoch_samples = samples(seed, epoch * count, count, count)
    assert {e for e, _ in epoch_samples} == {epoch}
    assert sorted(which for _, which in epoch_samples) == list(range(count))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
def test_any_split_gives_the_same_sequence(seed: int, count: int, cuts: list[int]) -> None:
    """Interrupted anywhere, or split over ranks or workers that each take every n-th sample."""
    whole = samples(seed, 0, 120, count)
    edges = sorted({0, 120, *cuts})
    resumed = [one for a, b in itertools.pairwise(edges) for one in samples(seed, a, b - a, count)]
    assert resumed == whole
    for world in (2, 3, 4):
        shares = [
            [samples(seed, place, 1, count)[0] for place in range(rank, 120, world)]
            for rank in range(world)
        ]
        assert [shares[n % world][n // world] for n in range(120)] == whole


def test_seeds_and_epochs_differ() -> None:
    orders = [tuple(permutation(seed, epoch, 20)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_the_sequence_is_the_same_in_every_version() -> None:
    """Philox is specified: a run started with one NumPy version continues with another."""
    assert list(permutation(3, 1, 8)) == [7, 5, 2, 0, 1, 6, 4, 3]
    assert [int(n) for n in random(3, 1, 5).integers(1000, size=3)] == [310, 77, 842]


def test_cached_permutations_are_read_only() -> None:
    order = permutation(0, 0, 5)
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 1
    assert sorted(order) == list(np.arange(5))
