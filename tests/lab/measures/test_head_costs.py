"""Operations counted by hand."""

from __future__ import annotations

import pytest

from sightline.lab.measures import head_costs


@pytest.mark.parametrize("heads", [1, 4])
def test_operations_by_hand(heads: int) -> None:
    """Four products with d × d, q kᵀ and a v: two operations per multiplication."""
    tokens, width = head_costs.TOKENS, head_costs.WIDTH
    projections = 4 * 2 * tokens * width * width
    assert head_costs.product_flops(heads) == projections + 2 * 2 * tokens * tokens * width


def test_both_ways_compute_the_same_heads() -> None:
    assert set(head_costs.one_call_or_many(2, 8, 0)) == {"one call", "many calls"}
    assert set(head_costs.layer_seconds((1, 2), 0)["fused"]) == {"1", "2"}
