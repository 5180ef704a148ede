"""Pairs: each once per epoch, within the token budget, reproducible by step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.data.pairs import Pairs

START, END, PAD = 1, 2, 0


def make_pairs(
    count: int, seed: int = 0, *, tokens: int = 40, longest: int = 20, **more: object
) -> Pairs:
    """Row n of the sources begins with n + 10, which identifies it."""
    draw = np.random.default_rng(seed)
    sources = [
        [n + 10, *map(int, draw.integers(3, 10, draw.integers(0, 12)))] for n in range(count)
    ]
    targets = [
        [n + 10, *map(int, draw.integers(3, 10, draw.integers(0, 12)))] for n in range(count)
    ]
    return Pairs(
        sources,
        targets,
        start=START,
        end=END,
        pad=PAD,
        tokens=tokens,
        seed=seed,
        longest=longest,
        **more,
    )  # pyright: ignore


def members(batch: Batch) -> list[int]:
    assert batch.source is not None
    return [int(row[0]) - 10 for row in batch.source]


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 120), seed=st.integers(0, 1000), tokens=st.integers(13, 90))
def test_every_pair_once_per_epoch_within_the_budget(count: int, seed: int, tokens: int) -> None:
    task, step = make_pairs(count, seed, tokens=tokens), 0
    for _ in range(2):
        seen: Counter[int] = Counter()
        while sum(seen.values()) < count:
            batch = task.batch(step)
            assert batch.source is not None
            assert batch.tokens.numel() <= tokens
            assert batch.source.numel() <= tokens
            seen.update(members(batch))
            step += 1
        assert seen == Counter(range(count))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), steps=st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_a_batch_is_a_function_of_its_step(seed: int, steps: list[int]) -> None:
    """In any order, and after any number of other batches."""
    one = make_pairs(50, seed)
    in_order = [members(one.batch(step)) for step in range(61)]
    for step in steps:
        assert members(make_pairs(50, seed).batch(step)) == in_order[step]
        assert members(one.batch(step)) == in_order[step]


def test_a_batch_by_hand() -> None:
    task = Pairs([[5, 6], [7]], [[8], [9, 4, 3]], start=START, end=END, pad=PAD, tokens=99, seed=0)
    batch = task.batch(0)
    assert batch.source is not None
    assert batch.padding is not None
    assert batch.source_padding is not None
    rows = {tuple(source): (tuple(tokens), tuple(targets)) for source, tokens, targets in zip(batch.source.tolist(), batch.tokens.tolist(), batch.targets.tolist(), strict=True)}  # fmt: skip
    assert rows == {
        (5, 6, END): ((START, 8, PAD, PAD), (8, END, IGNORED, IGNORED)),
        (7, END, PAD): ((START, 9, 4, 3), (9, 4, 3, END)),
    }
    assert batch.count == 6
    assert batch.input_tokens == 6 + 5
    assert batch.padding.sum() == 2


def test_batches_have_little_padding() -> None:
    """Sorting by length within a pool: little of a batch is padding."""
    task = make_pairs(2000, tokens=200)
    batches = [task.batch(step) for step in range(task.epoch_batches)]
    full = sum(
        batch.tokens.numel() + batch.source.numel() for batch in batches if batch.source is not None
    )
    assert sum(batch.input_tokens for batch in batches) / full > 0.7


def test_empty_and_long_pairs_are_left_out() -> None:
    task = Pairs(
        [[5], [], [6] * 30, [7]],
        [[5], [5], [6], []],
        start=START,
        end=END,
        pad=PAD,
        tokens=40,
        seed=0,
        longest=10,
    )
    assert task.left_out == 3
    assert task.epoch_batches == 1
    with pytest.raises(
        InputError,
        match=r"no pair has two non-empty sides and fits; expected pairs of at most 9 tokens. Fix: context=31$",
    ):
        Pairs([[6] * 30], [[6]], start=START, end=END, pad=PAD, tokens=40, seed=0, longest=10)
    with pytest.raises(InputError, match=r"batches of 8 tokens; expected at least 13"):
        make_pairs(100, tokens=8)


def test_held_out_pairs_fit_the_model_too() -> None:
    held = ([[3], [4] * 50, [5, 5]], [[3, 3], [4], [5]])
    task = make_pairs(5, held_out=held)
    (batch,) = task.validation()
    assert batch.source is not None
    assert batch.source.tolist() == [[5, 5, END], [3, END, PAD]]
    assert batch.tokens.tolist() == [[START, 5, PAD], [START, 3, 3]]
    assert list(make_pairs(5).validation()) == []


def test_the_fingerprint_depends_on_the_data() -> None:
    assert make_pairs(20).fingerprint == make_pairs(20).fingerprint
    prints = {
        make_pairs(20).fingerprint,
        make_pairs(20, 1).fingerprint,
        make_pairs(21).fingerprint,
        make_pairs(20, tokens=41).fingerprint,
    }
    assert len(prints) == 4
