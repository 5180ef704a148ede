"""A pairwise covering array leaves no pair of values out, and is much smaller than the product."""

from __future__ import annotations

from itertools import combinations
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pairwise import all_pairs, pairs_of

SIZES = st.lists(st.integers(1, 6), min_size=2, max_size=6)


@settings(max_examples=50, deadline=None)
@given(sizes=SIZES)
def test_every_pair_of_values_is_in_a_row(sizes: list[int]) -> None:
    axes = {f"axis {n}": range(size) for n, size in enumerate(sizes)}
    rows = all_pairs(axes)
    assert {pair for row in rows for pair in combinations(row.items(), 2)} == set(pairs_of(axes))
    assert len({tuple(row.items()) for row in rows}) == len(rows), "no row twice"
    largest, second = sorted(sizes)[-1:-3:-1]
    assert largest * second <= len(rows) <= prod(sizes)


def test_rows_are_few_and_always_the_same() -> None:
    axes = {"model": range(57), "cache": "abc", "padded": (False, True), "cuts": "xyz"}
    rows = all_pairs(axes)
    assert rows == all_pairs(axes)
    assert len(rows) <= 1.05 * 57 * 3, "of 1,026"
