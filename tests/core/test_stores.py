"""What a cache hands out stays as it was; quantised keys and values are near, and small."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import (
    CrossStore,
    GrowingBuffer,
    GrowingStore,
    KeyValues,
    quantise_rows,
)
from tests.support.tiny import GENERATORS, distance, inputs, make

LOGIT_DISTANCE = 0.05  # of the largest logit: what an 8-bit cache may change


def stored(value: float, tokens: int = 1, start: int = 0) -> KeyValues:
    x = torch.full((2, 3, tokens, 4), value)
    return KeyValues(x, x + 0.5, torch.arange(start, start + tokens)[None], start)


@pytest.mark.parametrize("capacity", [None, 40])
def test_what_was_handed_out_is_never_written_over(capacity: int | None) -> None:
    """A recording holds the keys of an earlier step: tokens that are taken back and made anew must
    not change them."""
    store, seen = GrowingStore(capacity), list[tuple[KeyValues, torch.Tensor, torch.Tensor]]()
    for step in range(12):
        if step in (4, 9):
            store.truncate(step - 3)
        if step == 7:
            store.reorder(torch.tensor([1, 0]))
        result = store.update(stored(float(step), start=store.key.length))
        seen.append((result, result.key.clone(), result.value.clone()))
    for result, key, value in seen:
        assert torch.equal(result.key, key)
        assert torch.equal(result.value, value)


def test_memory_doubles_and_is_not_taken_for_each_token() -> None:
    room, places = GrowingBuffer(), set[int]()
    for _ in range(100):
        room.extend(torch.ones(1, 1, 1, 4))
        places.add(room.memory.data_ptr())
    assert room.all.shape == (1, 1, 100, 4)
    assert len(places) < 12
    assert room.memory.shape[2] <= 200


def test_a_gradient_goes_through_a_growing_cache() -> None:
    model = make(GENERATORS["rotary"])
    tokens, cache = inputs(model.config)["tokens"], Cache.growing(model.config)
    model(tokens[:, :4], cache=cache)
    model(tokens[:, 4:], cache=cache).sum().backward()
    cached = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(tokens)[:, 4:].sum().backward()
    whole = [p.grad for p in model.parameters() if p.grad is not None]
    assert max(distance(a, b) for a, b in zip(cached, whole, strict=True)) < 1e-4


def test_rows_of_one_source_share_its_memory() -> None:
    once = CrossStore()
    once.update(
        KeyValues(torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3), torch.arange(5)[None], 0)
    )
    once.reorder(torch.tensor([0, 0, 0, 0]))
    result = once.recall()
    assert result is not None
    assert result.key.shape[0] == 4
    assert result.key.untyped_storage().nbytes() == 2 * 5 * 3 * 4
    assert once.bytes == 2 * 2 * 5 * 3 * 4


def test_rows_of_many_sources_follow_the_beams() -> None:
    once, key = CrossStore(), torch.randn(3, 2, 5, 3)
    once.update(KeyValues(key, key, torch.arange(5).repeat(3, 1), None))
    for rows in ([0, 0, 1, 2, 2], [0, 1, 2, 3, 4], [4, 3, 0]):
        once.reorder(torch.tensor(rows))
    result = once.recall()
    assert result is not None
    assert torch.equal(result.key, key[[2, 2, 0]])


def test_quantised_is_within_half_a_step() -> None:
    x = torch.randn(2, 3, 50, 16) * torch.logspace(-3, 3, 50)[:, None]
    whole, scale = quantise_rows(x)
    assert whole.dtype == torch.int8
    assert ((whole * scale - x).abs() <= scale * 0.5001).all()
    assert torch.equal(
        quantise_rows(torch.zeros(1, 1, 1, 4))[0], torch.zeros(1, 1, 1, 4, dtype=torch.int8)
    )


@pytest.mark.parametrize(
    "name", ["rotary", "grouped", "learned", "alibi", "window", "transformer", "ngpt"]
)
@torch.inference_mode()
def test_a_quantised_cache_changes_logits_by_little(name: str) -> None:
    model = make(GENERATORS[name])
    given = inputs(model.config)
    tokens = given.pop("tokens")
    cache, result = Cache.quantised(model.config), list[torch.Tensor]()
    for n in range(tokens.shape[1]):
        result.append(model(tokens[:, n : n + 1], cache=cache, **(given if n == 0 else {})))
    away = distance(model(tokens, **given), torch.cat(result, dim=1))
    assert 0 < away < LOGIT_DISTANCE
    plain = Cache.growing(model.config)
    model(tokens, cache=plain, **given)
    own = [sum(store.bytes for store in c.stores) for c in (cache, plain)]
    assert own[0] < own[1] * (
        0.25 + 1 / 4
    )  # these heads are 4 to 8 numbers wide: one scale for so few is half the memory


@torch.inference_mode()
def test_a_quantised_cache_goes_back_and_follows_beams() -> None:
    model = make(GENERATORS["rotary"])
    tokens, cache = inputs(model.config)["tokens"], Cache.quantised(model.config)
    model(tokens, cache=cache)
    cache.truncate(5)
    cache.reorder(torch.tensor([1, 1]))
    again = Cache.quantised(model.config)
    model(tokens[:, :5], cache=again)
    again.reorder(torch.tensor([1, 1]))
    step = tokens[:2, 5:6]
    assert (
        distance(model(step, cache=cache), model(step, cache=again)) < 0.01
    )  # rounding may move a number by one step


@torch.no_grad()
@pytest.mark.parametrize("time", [2, 7, 96, 97])
@pytest.mark.parametrize("causal", [True, False])
def test_short_attention_is_the_equation(time: int, causal: bool) -> None:
    q, k, v = torch.randn(2, 4, time, 8), torch.randn(2, 2, time, 8), torch.randn(2, 2, time, 5)
    padding = torch.arange(time)[None] < torch.tensor([[0], [time // 2]])
    for given in (None, padding):
        fused = sl.attention(q, k, v, causal=causal, key_padding=given)
        assert (
            distance(
                sl.attention(q, k, v, causal=causal, key_padding=given, kernel="equation"), fused
            )
            < 1e-5
        )
