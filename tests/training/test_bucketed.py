"""Length bucketing: every row once per epoch, as a function of (seed, step)."""

from __future__ import annotations

import numpy as np
import pytest

from sightline.errors import InputError
from sightline.training.data.bucketed import Buckets, batches_by_length


def sizes(count: int = 500) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 60, count)


def test_every_row_once_per_epoch_within_the_budget() -> None:
    buckets = Buckets(sizes(), np.arange(20, 500), 200, 1)
    for epoch in range(3):
        batches = buckets.plan(epoch)
        assert sorted(np.concatenate(batches)) == list(range(20, 500))
        assert all(len(batch) * buckets.sizes[batch].max() <= 200 for batch in batches)
    padding = (
        sum(len(batch) * buckets.sizes[batch].max() for batch in buckets.plan(0))
        / buckets.sizes[20:].sum()
    )
    assert padding < 1.1


def test_a_step_needs_no_history() -> None:
    buckets, jumped = (Buckets(sizes(), np.arange(500), 200, 1) for _ in range(2))
    count = buckets.epoch_batches
    straight = [list(buckets.batch(step)) for step in range(6 * count)]
    for step in (5 * count + 3, 0, 2 * count, count - 1, count):
        assert list(jumped.batch(step)) == straight[step]
    assert straight[0] != list(Buckets(sizes(), np.arange(500), 200, 2).batch(0))


def test_batches_are_not_ordered_by_length() -> None:
    buckets = Buckets(sizes(), np.arange(500), 200, 1)
    longest = [int(buckets.sizes[batch].max()) for batch in buckets.plan(0)]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def test_validation_has_every_row_once() -> None:
    batches = list(batches_by_length(sizes(70), 32))
    assert [len(part) for part in batches] == [32, 32, 6]
    assert sorted(np.concatenate(batches)) == list(range(70))
    assert list(batches_by_length(np.array([], dtype=np.int64), 32)) == []


def test_a_row_longer_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"at least 59, the longest row\. Fix: batch=59"):
        Buckets(sizes(), np.arange(500), 20, 1)
