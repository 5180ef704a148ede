"""The shares, worked out again in NumPy with loops, one pair at a time."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.core.attention import Scoring, attention_weights
from sightline.core.masks import Mask
from sightline.lens.geometry.shares import (
    Shares,
    Split,
    band_of,
    centred_split,
    concat_splits,
    divergence,
    mean_shares,
    raw_split,
)
from sightline.lens.trace.layer import Look
from sightline.lens.trace.trace import Trace, trace_of
from tests.support.tiny import ALL, each_block, inputs, make


def traced(config: sl.ModelConfig) -> Trace:
    arguments = inputs(config, batch=1)
    source = arguments["source"][0].tolist() if "source" in arguments else None
    return trace_of(
        SimpleNamespace(transformer=make(config), tokenizer=None, name="tiny"),
        arguments["tokens"][0].tolist(),
        source=source,
    )


def whole(look: Look, head: int) -> tuple[Split, Split]:
    band = band_of(look.only(head), slice(0, look.queries))
    return raw_split(band), centred_split(band)


def softmax(scores: list[float], sink: float | None) -> list[float]:
    """Weights; what a sink takes comes last."""
    every = [*scores] if sink is None else [*scores, sink]
    top = max(every)
    powers = [math.exp(x - top) for x in every]
    return [x / sum(powers) for x in powers]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def by_hand(look: Look, head: int, *, centre: bool) -> Shares:
    """Row by row and key by key."""
    scoring, shared = look.scoring, head * look.key.shape[1] // look.heads
    queries, keys = (
        look.query[0, head].detach().double().numpy(),
        look.key[0, shared].detach().double().numpy(),
    )
    scores = look.scores(head).detach().double().numpy()
    sink = None if scoring.sinks is None else float(scoring.sinks[head])
    cap = (
        (lambda x: x)
        if scoring.softcap is None
        else (lambda x: scoring.softcap * math.tanh(x / scoring.softcap))
    )
    sums, rows = np.zeros(6), 0
    for i, q in enumerate(queries):
        seen = [j for j in range(len(keys)) if scores[i, j] > -math.inf]
        if len(seen) < 2:
            continue
        rows += 1
        mu = sum(keys[j] for j in seen) / len(seen) if centre else np.zeros_like(q)
        offset = float(q @ mu) * scoring.scale
        lengths = [float(np.linalg.norm(keys[j] - mu)) for j in seen]
        cosines = [
            float(q @ (keys[j] - mu)) / float(np.linalg.norm(q)) / n
            for j, n in zip(seen, lengths, strict=True)
        ]
        bias = [scores[i, j] - cap(float(q @ keys[j]) * scoring.scale) for j in seen]
        flat_n, flat_c = (
            [sum(lengths) / len(seen)] * len(seen),
            [sum(cosines) / len(seen)] * len(seen),
        )
        products, weights = {}, {}
        for name, ns, cs in (
            ("both", lengths, cosines),
            ("direction", flat_n, cosines),
            ("length", lengths, flat_c),
            ("none", flat_n, flat_c),
        ):
            products[name] = [
                float(np.linalg.norm(q)) * n * c * scoring.scale + offset
                for n, c in zip(ns, cs, strict=True)
            ]
            weights[name] = softmax(
                [cap(x) + b for x, b in zip(products[name], bias, strict=True)], sink
            )
        v, v_direction, v_length = (
            float(np.var(products[name])) for name in ("both", "direction", "length")
        )
        # Shapley: each comes first half of the time
        sums += [
            (v_direction - 0) / 2 + (v - v_length) / 2,
            (v_length - 0) / 2 + (v - v_direction) / 2,
            v,
            *(kl(weights["both"], weights[name]) for name in ("direction", "length", "none")),
        ]
    direction, length, v, equalised, flattened, none = sums
    gained = {"direction": none - equalised, "length": none - flattened}
    return Shares(
        direction / v,
        length / v,
        (gained["direction"] + none - gained["length"]) / 2 / none,
        (gained["length"] + none - gained["direction"]) / 2 / none,
        equalised / rows,
        flattened / rows,
    )


def numbers(shares: Shares) -> list[float]:
    return [getattr(shares, name) for name in Shares.__slots__]


BY_HAND = [
    "none",
    "rotary",
    "rotary-yarn",
    "alibi",
    "relative",
    "grouped",
    "cosine",
    "window",
    "soft-cap",
    "sinks",
    "ngpt",
    "bert",
    "transformer-rotary",
    "t5",
]


@pytest.mark.parametrize("name", BY_HAND)
def test_the_shares_are_those_of_the_loops(name: str) -> None:
    trace = traced(ALL[name])
    for look in trace.looks.values():
        for split, centre in zip(whole(look, 2), (False, True), strict=True):
            np.testing.assert_allclose(
                numbers(split.shares),
                numbers(by_hand(look, 2, centre=centre)),
                atol=2e-5,
                rtol=2e-4,
            )


@pytest.mark.parametrize("name", ALL)
def test_shares_sum_to_one(name: str) -> None:
    for look in traced(ALL[name]).looks.values():
        for split in whole(look, 1):
            shares = split.shares
            assert shares.direction + shares.length == pytest.approx(1, abs=1e-9)
            assert shares.attention_direction + shares.attention_length == pytest.approx(
                1, abs=1e-9
            )
            assert shares.norms_equalised >= 0
            assert shares.angles_flattened >= 0
            torch.testing.assert_close(
                split.rows.direction + split.rows.length, split.rows.variance
            )


def shifted(look: Look, by: torch.Tensor) -> Look:
    return Look(look.site, look.query, look.key + by, None, look.scoring)


UNSEEN = [name for name in ALL if name not in ("soft-cap", "sinks")]


@pytest.mark.parametrize("name", UNSEEN)
def test_one_vector_on_all_keys_changes_neither_the_weights_nor_what_is_centred(name: str) -> None:
    torch.manual_seed(3)
    for look in traced(ALL[name]).looks.values():
        moved = shifted(look, 2 * torch.randn(look.key.shape[-1]))
        torch.testing.assert_close(moved.weights(), look.weights(), atol=2e-6, rtol=1e-4)
        (before_raw, before), (after_raw, after) = whole(look, 0), whole(moved, 0)
        np.testing.assert_allclose(
            numbers(after.shares), numbers(before.shares), atol=2e-5, rtol=1e-4
        )
        torch.testing.assert_close(after.key_length, before.key_length, atol=1e-5, rtol=1e-4)
        assert abs(after_raw.shares.direction - before_raw.shares.direction) > 1e-4


@pytest.mark.parametrize("name", ["soft-cap", "sinks"])
def test_a_soft_cap_and_a_sink_see_such_a_vector(name: str) -> None:
    torch.manual_seed(3)
    look = next(iter(traced(ALL[name]).looks.values()))
    moved = shifted(look, 2 * torch.randn(look.key.shape[-1]))
    assert float((moved.weights() - look.weights()).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_weights_of_centred_keys_are_the_weights(name: str) -> None:
    """Each row's keys without their mean, put through the model's own softmax; the offset counts
    only for a soft-cap and a sink."""
    for look in traced(ALL[name]).looks.values():
        one, kept = look.only(3), look.scoring.softcap is not None or look.scoring.sinks is not None
        band = band_of(one, slice(0, look.queries))
        split = centred_split(band)
        products = band.query_length * split.key_length * split.cosine * look.scoring.scale + (
            split.offset[:, None] if kept else 0
        )
        weights = band.log_weights(products).exp()[:, : look.key.shape[2]]
        torch.testing.assert_close(weights.float(), look.weights(3), atol=1e-5, rtol=1e-4)


def test_under_a_causal_mask_a_row_does_not_depend_on_what_comes_after() -> None:
    trace = traced(ALL["rotary"])
    ids = [token.id for token in trace.tokens]
    prefix = trace_of(
        SimpleNamespace(transformer=make(ALL["rotary"]), tokenizer=None, name="tiny"), ids[:6]
    )
    for site in trace.looks:
        for long, short in zip(
            whole(trace.looks[site], 1), whole(prefix.looks[site], 1), strict=True
        ):
            torch.testing.assert_close(
                long.rows.direction[:6], short.rows.direction, atol=1e-5, rtol=1e-4
            )
            torch.testing.assert_close(
                long.cosine[:6, :6].tril(-1), short.cosine.tril(-1), atol=1e-5, rtol=1e-4
            )


def planted(keys: torch.Tensor, query: torch.Tensor) -> Look:
    at = torch.arange(len(keys))[None]
    mask = Mask(at[:, : len(query)], at)
    return Look(
        ("encoder", 0, False), query[None, None], keys[None, None], None, Scoring(mask, 1.0)
    )


def test_keys_along_one_line_differ_by_length_alone() -> None:
    keys = torch.tensor([1.0, 2.0, 3.0, 5.0])[:, None] * torch.tensor([0.6, 0.8])
    shares = whole(planted(keys, torch.tensor([[1.0, 0.3]])), 0)[0].shares
    assert shares.length == pytest.approx(1)
    assert shares.attention_length == pytest.approx(1)
    assert shares.angles_flattened == pytest.approx(0, abs=1e-9)


def test_keys_on_a_circle_differ_by_direction_alone() -> None:
    angle = torch.tensor([0.1, 0.9, 2.0, 4.0])
    shares = whole(
        planted(torch.stack((angle.cos(), angle.sin()), -1), torch.tensor([[1.0, 0.3]])), 0
    )[0].shares
    assert shares.direction == pytest.approx(1)
    assert shares.norms_equalised == pytest.approx(0, abs=1e-9)


def test_a_long_key_that_points_away_makes_a_share_negative() -> None:
    """The near key is long, the far one short: both scores are 1, but for a little."""
    keys = torch.tensor([[1.0, 3.0], [1.1, 0.0]])
    shares = whole(planted(keys, torch.tensor([[1.0, 0.0]])), 0)[0].shares
    assert shares.length < -1
    assert shares.direction > 2


def test_the_length_of_a_query_is_only_its_row_s_weight() -> None:
    torch.manual_seed(0)
    keys, query = torch.randn(6, 4), torch.randn(1, 4)
    once, thrice = (
        whole(planted(keys, query), 0)[0].shares,
        whole(planted(keys, 3 * query), 0)[0].shares,
    )
    assert once.direction == pytest.approx(thrice.direction)
    two = whole(planted(keys, torch.cat((query, torch.randn(1, 4)))), 0)[0]
    longer = whole(planted(keys, torch.cat((3 * query, torch.randn(1, 4)))), 0)[0]
    assert longer.rows.variance[0] == pytest.approx(9 * float(two.rows.variance[0]))


def test_equal_keys_leave_nothing_to_tell_apart() -> None:
    keys = torch.full((5, 3), 0.7)
    for split in whole(planted(keys, torch.randn(2, 3)), 0):
        assert math.isnan(split.shares.direction)
        assert math.isnan(split.shares.attention_length)
        assert split.shares.norms_equalised == 0


def test_zero_vectors_have_no_direction() -> None:
    for split in whole(
        planted(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])), 0
    ):
        assert bool(split.cosine.isfinite().all())
        assert not math.isnan(split.shares.direction)


def test_a_row_that_sees_nothing_counts_for_nothing() -> None:
    look = planted(torch.randn(4, 3), torch.randn(4, 3))
    blind = Mask(torch.arange(4)[None], torch.tensor([[-1, 0, 1, 2]]), causal=False, window=1)
    look = Look(look.site, look.query, look.key, None, Scoring(blind, 1.0))
    assert bool((attention_weights(look.query, look.key, look.scoring)[0, 0, 3] == 0).all())
    for split in whole(look, 0):
        assert bool(torch.stack(split.rows[:6]).isfinite().all())
        assert float(split.rows.variance[3]) == 0


def test_bands_are_the_whole() -> None:
    look = traced(each_block(ALL["alibi"], softcap=3.0)).look(1)
    one = look.only(2)
    for part, together in zip((raw_split, centred_split), whole(look, 2), strict=True):
        banded = concat_splits(
            [part(band_of(one, rows)) for rows in (slice(0, 4), slice(4, 5), slice(5, 11))],
            one_length=part is raw_split,
        )
        torch.testing.assert_close(banded.cosine, together.cosine)
        torch.testing.assert_close(banded.key_length, together.key_length)
        np.testing.assert_allclose(numbers(banded.shares), numbers(together.shares), rtol=1e-9)


def test_divergence_is_scipys() -> None:
    from scipy.stats import entropy

    torch.manual_seed(0)
    p, q = torch.randn(3, 7).double().softmax(-1), torch.randn(3, 7).double().softmax(-1)
    np.testing.assert_allclose(
        divergence(p.log(), q.log()).numpy(),
        [entropy(a, b) for a, b in zip(p, q, strict=True)],
        rtol=1e-12,
    )


def test_a_head_that_tells_nothing_apart_is_left_out_of_the_mean() -> None:
    some, none = Shares(0.8, 0.2, 0.7, 0.3, 0.1, 0.4), Shares(*[math.nan] * 4, 0.0, 0.0)
    assert mean_shares([some, none]) == Shares(0.8, 0.2, 0.7, 0.3, 0.05, 0.2)
