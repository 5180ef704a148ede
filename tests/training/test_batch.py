"""Batches: microbatches and shards add up to the full batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.training.data.batch import IGNORED, Batch, pad_rows
from sightline.training.loss import Objective

SIZE = {"width": 16, "layers": 1, "heads": 2, "vocab_size": 11, "max_positions": 16}


def make_batch(rows: int, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed)
    texts = [list(map(int, draw.integers(0, 11, draw.integers(1, 7)))) for _ in range(rows)]
    tokens, padding = pad_rows(texts, 0)
    targets, _ = pad_rows([[*text[1:], 5] for text in texts], IGNORED)
    return Batch(
        tokens=tokens, targets=targets, count=int((targets != IGNORED).sum()), padding=padding
    )


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), count=st.integers(1, 12), seed=st.integers(0, 99))
def test_microbatches_are_the_rows_in_order(rows: int, count: int, seed: int) -> None:
    whole = make_batch(rows, seed)
    parts = list(whole.microbatches(count))
    assert all(part.rows >= 1 and part.count == whole.count for part in parts)
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_shards_add_up_to_the_full_batch(world: int) -> None:
    """The losses of all ranks add up to that of a single process, also with more ranks than
    rows."""
    torch.manual_seed(0)
    objective, whole = Objective(sl.build(sl.llama(**SIZE))), make_batch(5)
    shards = [whole.shard(rank, world) for rank in range(world)]
    targets = sum(int((shard.targets != IGNORED).sum()) for shard in shards)
    assert targets == whole.count
    assert {shard.count for shard in shards} == {whole.count}
    parts = [float(objective(shard)[1]) for shard in shards]
    assert sum(parts) == pytest.approx(float(objective(whole)[1]), rel=1e-5)


def test_input_tokens_exclude_padding() -> None:
    batch = make_batch(4, 3)
    assert batch.padding is not None
    assert batch.input_tokens == int((~batch.padding).sum())
    both = Batch(
        tokens=torch.zeros(2, 3, dtype=torch.long),
        targets=torch.zeros(2),
        count=2,
        source=torch.zeros(2, 4, dtype=torch.long),
    )
    assert both.input_tokens == 6 + 8


def test_padding_is_on_the_right() -> None:
    tokens, padding = pad_rows([[1, 2, 3], [4]], 9)
    assert tokens.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert padding is not None
    assert padding.tolist() == [[False] * 3, [False, True, True]]
    assert pad_rows([[1], [2]], 9)[1] is None
