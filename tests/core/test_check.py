"""Bad input: one sentence with the fix, before anything is computed."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from tests.support.tiny import ALL, SIZE, make

GPT = sl.gpt(**SIZE)
TOKENS = torch.zeros(2, 5, dtype=torch.long)
Q = torch.randn(2, 4, 5, 8)


def model(name: str = "") -> sl.Transformer:
    return make(ALL[name] if name else GPT)


def layer(**options: object) -> sl.MultiHeadAttention:
    return sl.MultiHeadAttention(16, heads=4, **options)


X = torch.randn(2, 5, 16)
CALLS = {
    "token id too large": (lambda: model()(TOKENS + 29), "tokens holds id 29; expected 0 to 28"),
    "negative token id": (lambda: model()(TOKENS - 1), "tokens holds id -1"),
    "float tokens": (lambda: model()(TOKENS.float()), "tokens is float32; expected int64 ids. Fix: tokens.long()"),
    "bool tokens": (lambda: model()(TOKENS.bool()), "tokens is bool"),
    "no batch": (lambda: model()(TOKENS[0]), "tokens has shape [5]; expected [batch, time]"),
    "no tokens": (lambda: model()(TOKENS[:, :0]), "at least one token"),
    "tokens elsewhere": (lambda: model()(TOKENS.to("meta")), "tokens is on meta, the model on cpu"),
    "padding of the wrong length": (lambda: model()(TOKENS, padding=torch.zeros(2, 4).bool()), "padding has shape [2, 4]; expected [2, 5]"),
    "padding as numbers": (lambda: model()(TOKENS, padding=TOKENS), "booleans, True where padding. Fix: padding = attention_mask == 0"),
    "past the learned table": (lambda: model()(torch.zeros(1, 49, dtype=torch.long)), "position 48; expected at most 47"),
    "past the learned table by cache": (lambda: past_by_cache(), "position 49; expected at most 47"),
    "types for GPT": (lambda: model()(TOKENS, types=TOKENS), "types for a model without token types"),
    "type out of range": (lambda: model("bert")(TOKENS, types=TOKENS + 2), "types holds id 2"),
    "types of the wrong shape": (lambda: model("bert")(TOKENS, types=TOKENS[:, :3]), "types has shape [2, 3]"),
    "source for GPT": (lambda: model()(TOKENS, source=TOKENS), "a source for a model with one stack"),
    "no source": (lambda: model("t5")(TOKENS), "no source for an encoder–decoder"),
    "source batch": (lambda: model("t5")(TOKENS, source=TOKENS[:1]), "one batch size"),
    "source id": (lambda: model("t5")(TOKENS, source=TOKENS + 40), "source holds id 40"),
    "source padding": (lambda: model("t5")(TOKENS, source=TOKENS, source_padding=TOKENS.bool()[:1]), "source_padding has shape [1, 5]"),
    "source twice": (lambda: source_twice(), "a cache that holds one already"),
    "cache of another model": (lambda: model()(TOKENS, cache=sl.Cache([])), "a cache of 0 layers for a decoder of 2"),
    "cache of another batch": (lambda: other_batch(), "a cache of batch 2, tokens of batch 1"),
    "cache for BERT": (lambda: sl.Cache.growing(ALL["bert"]), "a cache for an encoder"),
    "cache full": (lambda: model()(TOKENS, cache=sl.Cache.preallocated(GPT, 3)), "5 tokens in a cache of 3"),
    "ring going back": (lambda: ring_back(), "cannot be truncated"),
    "layer: width": (lambda: layer()(torch.randn(2, 5, 8)), "x has shape [2, 5, 8]; expected [batch, time, 16]"),
    "layer: no batch": (lambda: layer()(X[0]), "x[None] if the batch is missing"),
    "layer: ids": (lambda: layer()(X.long()), "vectors, not token ids"),
    "layer: dtype": (lambda: layer()(X.double()), "x is float64, the layer float32"),
    "layer: device": (lambda: layer()(X.to("meta")), "x is on meta, the layer on cpu"),
    "layer: causal context": (lambda: layer()(X, X, causal=True), "causal=True with a context"),
    "layer: rotary context": (lambda: layer(positions=sl.Rotary())(X, X), "a context with Rotary positions"),
    "layer: context batch": (lambda: layer()(X, X[:1]), "x has batch 2, context has 1"),
    "layer: padding": (lambda: layer()(X, key_padding=torch.zeros(2, 6).bool()), "key_padding has shape [2, 6]; expected [2, 5]"),
    "layer: additive mask": (lambda: layer()(X, mask=torch.zeros(5, 5)), "mask is float32; expected booleans, True = may attend. Fix: mask == 0"),
    "layer: mask of integers": (lambda: layer()(X, mask=torch.ones(5, 5).long()), "mask is int64; expected booleans, True = may attend"),
    "layer: mask of another length": (lambda: layer()(X, mask=torch.ones(5, 4).bool()), "mask has shape [5, 4]; expected one that broadcasts to [2, 4, 5, 5]"),
    "layer: mask of a batch": (lambda: layer()(X, mask=torch.ones(2, 5, 5).bool()), "mask[:, None] if it has one mask per sequence"),
    "layer: mask elsewhere": (lambda: layer()(X, mask=torch.ones(5, 5).bool().to("meta")), "mask is on meta, the vectors on cpu"),
    "layer: window and context": (lambda: layer(window=2)(X, X), "a context with window=2"),
    "attention: additive mask": (lambda: sl.attention(Q, Q, Q, mask=torch.zeros(5, 5)), "mask is float32; expected booleans, True = may attend"),
    "attention: mask": (lambda: sl.attention(Q, Q, Q, mask=torch.ones(3, 1, 5, 5).bool()), "mask has shape [3, 1, 5, 5]"),
    "attention: three axes": (lambda: sl.attention(Q[0], Q[0], Q[0]), "query has shape [4, 5, 8]; expected [batch, heads, time, head_dim]"),
    "attention: whole numbers": (lambda: sl.attention(Q.long(), Q, Q), "query is int64"),
    "attention: dtypes": (lambda: sl.attention(Q, Q.double(), Q), "one dtype and device"),
    "attention: batch": (lambda: sl.attention(Q, Q[:1], Q[:1]), "query has batch 2, key has 1"),
    "attention: head_dim": (lambda: sl.attention(Q, Q[..., :4], Q), "query has head_dim 8, key has 4"),
    "attention: lengths": (lambda: sl.attention(Q, Q[:, :, :3], Q), "the same heads and time"),
    "attention: groups": (lambda: sl.attention(Q, Q[:, :3], Q[:, :3]), "4 query heads, 3 key heads"),
    "attention: window": (lambda: sl.attention(Q, Q, Q, window=0), "window is 0"),
    "attention: kernel": (lambda: sl.attention(Q, Q, Q, kernel="fast"), "kernel 'fast'"),
    "attention: bias": (lambda: sl.attention(Q, Q, Q, bias=torch.zeros(3, 5)), "broadcasts to [2, 4, 5, 5]"),
    "attention: boolean bias": (lambda: sl.attention(Q, Q, Q, bias=torch.zeros(1, 1, 5, 5).bool()), "mask takes booleans, True = may attend"),
}  # fmt: skip


def past_by_cache() -> None:
    cache = sl.Cache.growing(GPT)
    model()(torch.zeros(1, 45, dtype=torch.long), cache=cache)
    model()(TOKENS[:1], cache=cache)


def source_twice() -> None:
    cache = sl.Cache.growing(ALL["t5"])
    model("t5")(TOKENS, source=TOKENS, cache=cache)
    model("t5")(TOKENS, source=TOKENS, cache=cache)


def other_batch() -> None:
    cache = sl.Cache.growing(GPT)
    model()(TOKENS, cache=cache)
    model()(TOKENS[:1], cache=cache)


def ring_back() -> None:
    cache = sl.Cache.windowed(ALL["window"])
    model("window")(TOKENS, cache=cache)
    cache.truncate(2)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("what", CALLS)
def test_bad_input_is_refused_in_one_sentence(what: str) -> None:
    call, words = CALLS[what]
    with pytest.raises(sl.InputError) as refusal:
        call()
    message = str(refusal.value)
    assert words in message
    assert "\n" not in message
    assert "Fix:" in message


def test_padding_counts_real_tokens_against_the_table() -> None:
    tokens, padding = torch.zeros(1, 60, dtype=torch.long), torch.arange(60)[None] < 20
    assert model()(tokens, padding=padding).shape == (1, 60, 29)
    with pytest.raises(sl.InputError, match="position 49"):
        model()(tokens, padding=torch.arange(60)[None] < 10)
