"""The cache's experiment: what it measures besides time is exact."""

from __future__ import annotations

import pytest

from sightline.lab.experiments import kv_cache


def numbers(*, cached: float, whole: float) -> dict[str, object]:
    """Made-up times: at 512 tokens so many times those at 64."""
    times = {
        f"time.{length}.seed-{seed}": {
            "cached": 1e-3 * grown[0],
            "whole": 2e-3 * grown[1] + 1e-9 * seed,
        }
        for length, grown in ((64, (1.0, 1.0)), (512, (cached, whole)))
        for seed in range(3)
    }
    return {
        "same.seed-0": kv_cache.compare_logits(0),
        "bytes.512": kv_cache.cache_sizes(512),
        **times,
    }


def test_the_bytes_are_the_formulas() -> None:
    found = kv_cache.cache_sizes(40)
    assert found["8 key heads"] == found["formula"] == 2 * 4 * 256 * 40 * 4
    assert found["1 key head"] * 8 == found["2 key heads"] * 4 == found["formula"]
    assert found["8 key heads, 8 bits"] < found["formula"] / 3


@pytest.mark.parametrize(
    ("cached", "whole", "holds"), [(1.2, 9.0, True), (3.0, 9.0, False), (1.2, 2.0, False)]
)
def test_the_verdict_follows_the_times(cached: float, whole: float, holds: bool) -> None:
    checks = kv_cache.judge_kv_cache(numbers(cached=cached, whole=whole))
    assert all(check.holds for check in checks) is holds


def test_a_step_is_timed_both_ways() -> None:
    found = kv_cache.time_next_token(16, 0)
    assert set(found) == {"cached", "whole"}
    assert min(found.values()) > 0
