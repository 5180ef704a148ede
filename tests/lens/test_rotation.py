"""RoPE taken apart: content × rotation, pair by pair, against pairs that are turned one by one."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.core.multi_head import split_heads
from sightline.core.positions import rotate, rotation
from sightline.lens.geometry.rotation import RotaryParts, rotation_of
from sightline.lens.trace.trace import Trace, trace_of
from tests.support.tiny import ALL, inputs, make


def traced(name: str) -> Trace:
    arguments = inputs(ALL[name], batch=1)
    source = arguments["source"][0].tolist() if "source" in arguments else None
    return trace_of(
        SimpleNamespace(transformer=make(ALL[name]), tokenizer=None, name="tiny"),
        arguments["tokens"][0].tolist(),
        source=source,
    )


def rotary_sites(config: sl.ModelConfig) -> list[tuple[str, int]]:
    result = [
        (name, layer) for name, stack in config.stacks.items() for layer in range(stack.layers)
    ]
    return [
        (name, layer)
        for name, layer in result
        if isinstance(config.stacks[name].block(layer).attention.positions, sl.Rotary)
    ]


ROTARY = [name for name, config in ALL.items() if rotary_sites(config)]
WITHOUT = [name for name, config in ALL.items() if not rotary_sites(config)]


@pytest.mark.parametrize("name", ROTARY)
def test_pairs_and_rest_sum_to_the_scores(name: str) -> None:
    trace = traced(name)
    for stack, layer in rotary_sites(ALL[name]):
        look = trace.look(layer, stack=stack)
        plain = replace(look, scoring=replace(look.scoring, softcap=None))
        for head in (0, look.heads - 1):
            parts, scores = (
                rotation_of(trace, layer, head, stack=stack),
                plain.scores(head).double(),
            )
            hidden = ~parts.allowed
            torch.testing.assert_close(
                parts.scores().masked_fill(hidden, -torch.inf), scores, atol=1e-4, rtol=1e-4
            )
            assert float(parts.shares.sum()) + parts.rest_share == pytest.approx(1)


def content_by_hand(
    trace: Trace, name: str, layer: int, head: int
) -> tuple[np.ndarray, np.ndarray]:
    """x W_Q and x W_K of one head, before anything is rotated, from the recorded input of the
    layer."""
    model, tokens = make(ALL[name]), inputs(ALL[name], batch=1)["tokens"]
    block, seen = model.decoder[layer], sl.Recorder({"residual"})
    with torch.no_grad():
        model(tokens, record=seen)
        x = block.attention_residual.before(seen["decoder", layer, "residual"])
        attention = block.attention
        query = split_heads(attention.query_norm(attention.query(x)), attention.config.heads)[
            0, head
        ]
        key = split_heads(attention.key_norm(attention.key(x)), attention.config.kv_heads)[0]
    return query.double().numpy(), key[
        head * attention.config.kv_heads // attention.config.heads
    ].double().numpy()


@pytest.mark.parametrize(
    "name", ["rotary", "rotary-partial", "rotary-linear", "grouped", "qk-norm", "window"]
)
def test_content_is_what_was_there_before_the_rotation(name: str) -> None:
    """Length and angle of every pair, and its part of every score, with complex numbers and
    loops."""
    trace = traced(name)
    parts = rotation_of(trace, 1, 3)
    query, key = content_by_hand(trace, name, 1, 3)
    for pair in range(parts.pairs):
        wave, scores = float(parts.frequencies[pair]), parts.scores_of(pair)
        for m, q in enumerate(query):
            mine = complex(q[pair], q[pair + parts.pairs])
            assert float(parts.query_amplitude[m, pair]) == pytest.approx(abs(mine), abs=1e-5)
            assert cmath.rect(1, float(parts.query_phase[m, pair])) == pytest.approx(
                mine / abs(mine), abs=1e-3
            )
            for n, k in enumerate(key):
                theirs = complex(k[pair], k[pair + parts.pairs])
                turned = (
                    mine
                    * cmath.exp(1j * m * wave)
                    * (theirs * cmath.exp(1j * n * wave)).conjugate()
                )
                assert float(scores[m, n]) == pytest.approx(turned.real * parts.scale, abs=1e-5)
    past = 2 * parts.pairs
    np.testing.assert_allclose(
        parts.rest.numpy(), query[:, past:] @ key[:, past:].T * parts.scale, atol=1e-5
    )
    np.testing.assert_allclose(
        parts.scores(turned=False).numpy(), query @ key.T * parts.scale, atol=1e-5
    )


def test_the_score_is_amplitude_times_cosine() -> None:
    parts = rotation_of(traced("rotary"), 0, 1)
    angle = parts.phase(2) + parts.turn(2)
    torch.testing.assert_close(parts.scores_of(2), parts.amplitude(2) * angle.cos())
    assert float((parts.scores_of(2).abs() - parts.amplitude(2)).max()) <= 1e-12
    assert int(parts.distance[5, 2]) == 3
    assert float(parts.turn(0)[5, 2]) == pytest.approx(3.0)


def test_frequencies_and_wavelengths() -> None:
    parts = rotation_of(traced("rotary"), 0, 0)
    assert parts.frequencies.tolist() == pytest.approx([10000 ** (-2 * p / 6) for p in range(3)])
    assert parts.wavelengths.tolist() == pytest.approx(
        [2 * math.pi * 10000 ** (2 * p / 6) for p in range(3)]
    )
    halved = rotation_of(traced("rotary-linear"), 0, 0)
    assert halved.wavelengths.tolist() == pytest.approx(
        [2 * wave for wave in parts.wavelengths.tolist()]
    )
    near, far = (
        rotation_of(traced("window-alternating"), layer, 0).frequencies for layer in (0, 1)
    )
    assert float(near[1]) == pytest.approx(500 ** (-1 / 3))
    assert float(far[1]) == pytest.approx(10000 ** (-1 / 3))


def test_a_part_of_a_head_may_be_left_alone() -> None:
    parts = rotation_of(traced("rotary-partial"), 1, 2)
    assert parts.pairs == 2
    assert float(parts.rest.abs().max()) > 0
    assert parts.rest_share != 0
    whole = rotation_of(traced("rotary"), 1, 2)
    assert whole.rest_share == 0
    assert float(whole.rest.abs().max()) == 0


def shares_by_hand(parts: RotaryParts) -> list[float]:
    """Covariance of each pair's scores with the whole, row by row."""
    whole, sums, total = parts.scores().numpy(), [0.0] * parts.pairs, 0.0
    for i, row in enumerate(parts.allowed.numpy()):
        total += float(np.var(whole[i][row]))
        for pair in range(parts.pairs):
            mine = parts.scores_of(pair)[i].numpy()[row]
            sums[pair] += float(
                np.mean((mine - mine.mean()) * (whole[i][row] - whole[i][row].mean()))
            )
    return [x / total for x in sums]


@pytest.mark.parametrize(
    "name", ["rotary", "rotary-partial", "window", "cosine", "ngpt", "bert-rotary-window"]
)
def test_shares_are_covariances(name: str) -> None:
    parts = rotation_of(traced(name), 1, 0)
    assert parts.shares.tolist() == pytest.approx(shares_by_hand(parts), abs=1e-6)


def test_a_text_later_on_has_the_same_content() -> None:
    """Amplitudes and phases do not know where a text stands; the recorded q and k do."""
    trace = traced("rotary")
    look, form = trace.look(0), sl.Rotary()
    later, mask = rotation(form, look.query.shape[-1], torch.full((1, 11), 20)), look.scoring.mask
    moved = replace(mask, query_at=mask.query_at + 20, key_at=mask.key_at + 20)
    there = replace(
        look,
        query=rotate(look.query, later),
        key=rotate(look.key, later),
        scoring=replace(look.scoring, mask=moved),
    )
    here, away = (
        rotation_of(trace, 0, 2),
        rotation_of(replace(trace, looks={look.site: there}), 0, 2),
    )
    assert not torch.allclose(look.query, there.query)
    torch.testing.assert_close(away.query_phase.cos(), here.query_phase.cos(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(away.key_amplitude, here.key_amplitude, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(away.scores(), here.scores(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_rope_says_so(name: str) -> None:
    with pytest.raises(
        sl.InputError,
        match=r"layer 0 of the \w+ has no RoPE: its attention has \w+; expected Rotary\. Fix: trace\.geometry",
    ):
        rotation_of(traced(name), 0, 0)


def test_bad_places_list_the_valid_ones() -> None:
    trace = traced("rotary")
    with pytest.raises(sl.InputError, match="head 9; expected 0 to 3"):
        rotation_of(trace, 0, 9)
    with pytest.raises(sl.InputError, match="pair 3; expected 0 to 2"):
        rotation_of(trace, 0, 0).scores_of(3)


def test_one_token_has_nothing_to_share() -> None:
    trace = trace_of(
        SimpleNamespace(transformer=make(ALL["rotary"]), tokenizer=None, name="tiny"), [3]
    )
    parts = rotation_of(trace, 0, 0)
    assert bool(parts.shares.isnan().all())
    assert float(parts.scores()[0, 0]) == pytest.approx(float(trace.scores(0, 0)[0, 0]), abs=1e-5)
