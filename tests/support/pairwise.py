"""Pairwise covering arrays: few combinations in which any two values of any two axes meet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, product
from typing import Any

import pytest

Choice = dict[str, Any]


def pairwise(axes: Mapping[str, Collection[Any]]) -> list[Any]:
    """The full product as parameters of a test: a covering array of it is quick, the rest long."""
    quick = {tuple(row.values()) for row in all_pairs(axes)}
    return [
        pytest.param(
            *values,
            marks=() if values in quick else pytest.mark.long,
            id="-".join(map(str, values)),
        )
        for values in product(*axes.values())
    ]


def all_pairs(axes: Mapping[str, Collection[Any]]) -> list[Choice]:
    """Choices of one value per axis such that any two values of any two axes meet at least once.

    Greedy and deterministic: a row starts from the first pair that is still missing, and every
    other axis takes the value that meets most of the values that it still has to meet."""
    missing = dict.fromkeys(pairs_of(axes))  # a set that keeps its order
    rows: list[Choice] = []
    while missing:
        row: Choice = dict(next(iter(missing)))
        rest = [axis for axis in reversed(axes) if axis not in row]  # not a set: in a fixed order
        for axis in sorted(rest, key=lambda axis: -len(axes[axis])):
            row[axis] = max(axes[axis], key=lambda value: new_pairs(axis, value, row, missing))
        row = {axis: row[axis] for axis in axes}
        for pair in combinations(row.items(), 2):
            missing.pop(pair, None)
        rows.append(row)
    return rows


def pairs_of(axes: Mapping[str, Collection[Any]]) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Every pair of values of different axes, each as ((axis, value), (axis, value))."""
    for (first, values), (second, others) in combinations(axes.items(), 2):
        for value in values:
            for other in others:
                yield (first, value), (second, other)


def new_pairs(axis: str, value: Any, row: Choice, missing: Collection[Any]) -> int:
    """How many missing pairs a row gains when this axis takes this value."""
    item = (axis, value)
    return sum((item, other) in missing or (other, item) in missing for other in row.items())
