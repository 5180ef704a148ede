"""The stream of draws against an independent Philox, and the draw against its definition."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.generation.randomness import draw, draws, open_interval, ranked, uniform

WORD = st.integers(0, 2**64 - 1)
EDGES = (5e-324, 2.0**-53, 1e-17, 0.25, 0.5, 1.0 - 2.0**-53, math.nextafter(1.0, 0.0))


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """Philox4x64-10 from the paper, in integers."""
    (k0, k1), (c0, c1, c2, c3), mask = key, counter, 2**64 - 1
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (
            (second >> 64) ^ c1 ^ k0,
            second & mask,
            (first >> 64) ^ c3 ^ k1,
            first & mask,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [c0, c1, c2, c3]


def test_the_independent_philox_gives_the_published_answer() -> None:
    assert philox((0, 0), (0, 0, 0, 0))[0] == 0x16554D9ECA36314C


@settings(max_examples=200, deadline=None)
@given(seed=WORD, lane=WORD, step=st.integers(0, 2**64 - 2))
def test_the_stream_is_the_documented_one(seed: int, lane: int, step: int) -> None:
    assert (
        uniform(seed, step, lane=lane)
        == ((philox((seed, lane), (step + 1, 0, 0, 0))[0] >> 12) + 0.5) / 2**52
    )


def test_never_zero_and_never_one() -> None:
    assert open_interval(0) == 2.0**-53 > 0.0
    assert open_interval(2**64 - 1) == 1.0 - 2.0**-53 < 1.0


def test_neighbouring_seeds_lanes_and_steps_are_unrelated() -> None:
    streams = [
        [uniform(seed, step, lane=lane) for step in range(2000)]
        for seed, lane in ((0, 0), (1, 0), (0, 1), (2**64 - 1, 0))
    ]
    assert (
        torch.corrcoef(torch.tensor(streams, dtype=torch.float64)).fill_diagonal_(0).abs().max()
        < 0.08
    )  # 3.5 / √2000
    assert all(abs(sum(stream) / 2000 - 0.5) < 0.026 for stream in streams)  # 4 / √(12 · 2000)
    assert len({u for stream in streams for u in stream}) == 8000


def test_order_and_process_do_not_matter() -> None:
    forward = [uniform(7, step) for step in range(5)]
    assert [uniform(7, step) for step in reversed(range(5))] == forward[::-1]
    script = "from sightline.generation.randomness import uniform; print([uniform(7, step) for step in range(5)])"
    assert subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip() == str(forward)


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, True, None, "7", torch.zeros(3, 3)])
@pytest.mark.parametrize("name", ["seed", "step", "lane"])
def test_bad_arguments_are_one_line(name: str, bad: object) -> None:
    arguments = {"seed": 0, "step": 0, "lane": 0, name: bad}
    with pytest.raises(
        InputError, match=rf"^{name} is .*; expected an integer from 0 to 2\^64 − 1\. Fix: "
    ) as caught:
        uniform(**arguments)
    assert "\n" not in str(caught.value)


def test_the_draw_walks_the_stable_order() -> None:
    logits = torch.tensor([0.25, 0.5, 0.0, 0.25]).log()
    assert ranked(logits).tolist() == [1, 0, 3]
    assert [draw(logits, u) for u in (0.0, 0.49, 0.51, 0.74, 0.76, 0.9999, 1.0)] == [
        1,
        1,
        0,
        0,
        3,
        3,
        3,
    ]


def test_a_masked_token_is_never_drawn() -> None:
    """10^5 draws: 60,000 at the edges of the interval and 40,000 of the stream, over logits whose
    tail underflows to 0."""
    generator = torch.Generator().manual_seed(3)
    u = torch.tensor(
        [EDGES[at % len(EDGES)] for at in range(1200)] + [uniform(5, step) for step in range(800)],
        dtype=torch.float64,
    )
    for row in range(50):
        logits = torch.randn(40, generator=generator) * (1.0, 30.0, 2000.0)[row % 3]
        logits[torch.rand(40, generator=generator) < 0.6] = -math.inf
        logits[row % 40] = 1.0
        result = draws(logits, u)
        assert torch.softmax(logits.double(), 0)[result].min() > 0.0
        assert result[:: len(u) // 7].tolist() == [
            draw(logits, x) for x in u[:: len(u) // 7].tolist()
        ]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False) | st.sampled_from([math.inf, -math.inf, 0.0]),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(EDGES) | st.floats(0.0, 1.0),
)
def test_any_row_with_a_possible_token_draws_a_possible_one(values: list[float], u: float) -> None:
    logits = torch.tensor(values)
    if (logits > -math.inf).any():
        token = draw(logits, u)
        assert values[token] > -math.inf
        assert values[token] == math.inf or math.inf not in values
