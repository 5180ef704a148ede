"""Operations counted by hand, and that something is timed."""

from __future__ import annotations

from sightline.lab.measures import attention_costs


def test_operations_by_hand() -> None:
    """q kᵀ and a v; four products with d × d and two with d × 4d."""
    length, width = 32, attention_costs.WIDTH
    assert attention_costs.block_flops(length) == {
        "equation": 2 * 2 * length**2 * width,
        "linear": 2 * length * (4 * width**2 + 2 * 4 * width**2),
    }


def test_each_way_is_timed() -> None:
    seconds = attention_costs.block_seconds(16, 0)
    assert set(seconds) == {"equation", "fused", "linear"}
    assert min(seconds.values()) > 0
