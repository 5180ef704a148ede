"""The cache's experiment: each check is fed a world in which it is false."""

from __future__ import annotations

from typing import Any

import pytest

from sightline.core.cache.kv_cache import Cache
from sightline.lab.experiment import TIERS, Plan
from sightline.lab.experiments import kv_cache as lab
from sightline.lab.measures.attention_costs import block_flops

SAME, BYTES, BITS, CACHED, WHOLE, FASTER, OPERATIONS, SQUARE, AFFORDABLE = range(9)
LENGTHS = (64, 512)
BLOCKS = (32, 64)


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    """What is measured without a clock, with small lengths."""
    return {
        "same.repeat-0": lab.compare_logits(0),
        "bytes.40": lab.cache_sizes(40),
        "flops.small": {str(length): block_flops(length) for length in BLOCKS},
    }


def seconds(
    *,
    cached: float = 0.1,
    whole: float = 1.1,
    ahead: float = 20.0,
    square: float = 2.0,
    fused: float = 0.3,
) -> dict[str, Any]:
    """Times of four repeats that grow with these powers of the length; with the cache a token at
    64 is `ahead` times as fast; attention takes `fused` of the linear layers' time at the end."""
    result: dict[str, Any] = {}
    for n in range(4):
        noise = 1 + 0.01 * n
        for length in LENGTHS:
            grown = length / LENGTHS[0]
            result[f"time.{length}.repeat-{n}"] = {
                "cached": 1e-3 / ahead * grown ** (cached * noise),
                "whole": 1e-3 * noise * grown ** (whole * noise),
            }
        for length in BLOCKS:
            grown = length / BLOCKS[-1]
            result[f"block.{length}.repeat-{n}"] = {
                "equation": 2 * fused * grown ** (square * noise),
                "fused": fused * noise * grown**square,
                "linear": grown,
            }
    return result


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_kv_cache(numbers)]


def test_supported_where_all_of_it_is_true(exact: dict[str, Any]) -> None:
    assert holds(exact | seconds()) == [True] * 9


def test_a_cache_that_rounds_changes_the_logits(exact: dict[str, Any]) -> None:
    cache = Cache.quantised(lab.small_decoder(0).config)
    rounded = {"same.repeat-0": lab.compare_logits(0, cache)}
    assert holds(exact | seconds() | rounded)[SAME] is False


def test_a_cache_that_repeats_its_heads_takes_more_bytes(
    exact: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_decoder = lab.small_decoder
    monkeypatch.setattr(lab, "small_decoder", lambda seed, kv_heads=8: small_decoder(seed))
    assert holds(exact | seconds() | {"bytes.40": lab.cache_sizes(40)})[BYTES] is False


def test_a_cache_that_does_not_round_is_not_smaller(
    exact: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cache, "quantised", Cache.growing)
    assert holds(exact | seconds() | {"bytes.40": lab.cache_sizes(40)})[BITS] is False


@pytest.mark.parametrize(
    ("world", "wrong"),
    [
        ({"cached": 1.0}, {CACHED}),
        ({"whole": 0.2}, {WHOLE}),
        ({"ahead": 0.01}, {FASTER}),
        ({"cached": 1.3, "whole": 1.2}, {CACHED, FASTER}),
        ({"square": 1.0}, {SQUARE}),
        ({"square": 3.0}, {SQUARE}),
        ({"fused": 1.2}, {AFFORDABLE}),
    ],
)
def test_times_that_say_the_opposite(
    exact: dict[str, Any], world: dict[str, float], wrong: set[int]
) -> None:
    verdict = holds(exact | seconds(**world))
    assert {n for n, held in enumerate(verdict) if held is not True} == wrong
    assert all(verdict[n] is False for n in wrong)


def test_a_narrower_feed_forward_layer_has_fewer_operations(exact: dict[str, Any]) -> None:
    narrow = {str(length): block_flops(length, hidden=1536) for length in BLOCKS}
    assert holds(exact | seconds() | {"flops.small": narrow})[OPERATIONS] is False


def test_a_step_is_timed_both_ways() -> None:
    result = lab.time_next_token(16, 0)
    assert set(result) == {"cached", "whole"}
    assert min(result.values()) > 0


def test_parts_have_names_of_their_own() -> None:
    for tier in TIERS:
        names = [part.name for part in lab.kv_cache_parts(Plan(tier))]
        assert len(set(names)) == len(names)


def test_it_can_be_drawn(exact: dict[str, Any]) -> None:
    assert set(lab.draw_kv_cache(exact | seconds())) == {"kv-cache"}
