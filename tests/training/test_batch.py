"""A batch and its parts: whatever way it is divided, the sums are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.training.data.batch import IGNORED, Batch, padded
from sightline.training.loss import Objective

SIZE = {"width": 16, "layers": 1, "heads": 2, "vocab_size": 11, "max_positions": 16}


def made(rows: int, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed)
    texts = [list(map(int, draw.integers(0, 11, draw.integers(1, 7)))) for _ in range(rows)]
    tokens, padding = padded(texts, 0)
    targets, _ = padded([[*text[1:], 5] for text in texts], IGNORED)
    return Batch(
        tokens=tokens, targets=targets, count=int((targets != IGNORED).sum()), padding=padding
    )


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), many=st.integers(1, 12), seed=st.integers(0, 99))
def test_parts_are_the_rows_in_order(rows: int, many: int, seed: int) -> None:
    whole = made(rows, seed)
    parts = list(whole.parts(many))
    assert all(part.rows >= 1 and part.count == whole.count for part in parts)
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_shares_add_up_to_the_whole(world: int) -> None:
    """The losses of all processes are the loss of one, also where there are more processes than
    rows."""
    torch.manual_seed(0)
    objective, whole = Objective(sl.build(sl.llama(**SIZE))), made(5)
    shares = [whole.share(rank, world) for rank in range(world)]
    asked = sum(int((share.targets != IGNORED).sum()) for share in shares)
    assert asked == whole.count
    assert {share.count for share in shares} == {whole.count}
    parts = [float(objective(share)[1]) for share in shares]
    assert sum(parts) == pytest.approx(float(objective(whole)[1]), rel=1e-5)


def test_what_is_read() -> None:
    batch = made(4, 3)
    assert batch.padding is not None
    assert batch.read == int((~batch.padding).sum())
    both = Batch(
        tokens=torch.zeros(2, 3, dtype=torch.long),
        targets=torch.zeros(2),
        count=2,
        source=torch.zeros(2, 4, dtype=torch.long),
    )
    assert both.read == 6 + 8


def test_padding_is_on_the_right() -> None:
    tokens, padding = padded([[1, 2, 3], [4]], 9)
    assert tokens.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert padding is not None
    assert padding.tolist() == [[False] * 3, [False, True, True]]
    assert padded([[1], [2]], 9)[1] is None
