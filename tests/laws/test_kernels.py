"""One place where the mathematics is written, one where speed is chosen, and this law that holds
them equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.core import attention as kernels
from tests.support.tiny import ALL, distance, inputs, left_padding, make


def gradients(model: sl.Transformer, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(
        torch.autograd.grad(
            loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True
        )
    )


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ALL)
def test_fused_is_the_equation_forward_and_backward(
    name: str, padded: bool, training: bool
) -> None:
    model = make(ALL[name]).train(training)
    arguments = inputs(ALL[name]) | ({"padding": left_padding()} if padded else {})
    result = {}
    for kernel in ("equation", "fused"):
        output = model(**arguments, kernel=kernel)
        real = output if output.dim() == 2 or not padded else output[~arguments["padding"]]
        result[kernel] = (real, gradients(model, real.square().mean()))
    assert distance(result["equation"][0], result["fused"][0]) < 1e-5
    for ours, theirs in zip(result["equation"][1], result["fused"][1], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert torch.isfinite(ours).all()
            assert (ours - theirs).abs().max() <= 1e-5 * max(1.0, float(ours.abs().max()))


@pytest.mark.parametrize(
    "name", ["rotary", "alibi", "relative", "grouped", "window", "soft-cap", "ngpt", "bert", "t5"]
)
def test_fused_is_the_equation_in_bfloat16(name: str) -> None:
    model = make(ALL[name]).bfloat16()
    a, b = (model(**inputs(ALL[name]), kernel=kernel).float() for kernel in ("equation", "fused"))
    assert a.dtype == torch.float32
    assert distance(a, b) < 0.06, "bfloat16 keeps 8 bits: two layers of rounding"


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3), groups=st.integers(1, 3), kv_heads=st.integers(1, 3), queries=st.integers(1, 9), keys=st.integers(1, 9),
    head_dim=st.integers(1, 9), value_dim=st.integers(1, 9), causal=st.booleans(), window=st.none() | st.integers(1, 9), padded=st.booleans(),
    biased=st.booleans(), masked=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_shape_any_mask(
    batch: int, groups: int, kv_heads: int, queries: int, keys: int, head_dim: int, value_dim: int, causal: bool, window: int | None,
    padded: bool, biased: bool, masked: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    query = torch.randn(batch, groups * kv_heads, queries, head_dim)
    key, value = (
        torch.randn(batch, kv_heads, keys, head_dim),
        torch.randn(batch, kv_heads, keys, value_dim),
    )
    options = {
        "causal": causal,
        "window": window,
        "key_padding": torch.rand(batch, keys) < 0.4 if padded else None,
        "mask": torch.rand(batch, groups * kv_heads, queries, keys) < 0.6 if masked else None,
        "bias": torch.randn(1, groups * kv_heads, queries, keys) if biased else None,
    }
    a, weights = sl.attention(query, key, value, **options, kernel="equation", return_weights=True)
    b, rebuilt = sl.attention(query, key, value, **options, kernel="fused", return_weights=True)
    assert a.shape == (batch, groups * kv_heads, queries, value_dim)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, rebuilt)
    sums = weights.sum(-1)
    assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all()), (
        "rows sum to 1, or to 0 where nothing is allowed"
    )
    assert bool((b[sums == 0] == 0).all())


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_tiles_change_nothing(
    monkeypatch: pytest.MonkeyPatch, window: int | None, causal: bool, biased: bool
) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 200, 8) for _ in range(3))
    options = {
        "causal": causal,
        "window": window,
        "bias": torch.randn(1, 4, 200, 200) if biased else None,
    }
    whole = sl.attention(query, key, value, **options, kernel="equation")
    monkeypatch.setattr(kernels, "TILE", 1000)
    torch.testing.assert_close(
        sl.attention(query, key, value, **options), whole, atol=1e-5, rtol=1e-5
    )


def test_a_fully_masked_row_is_zero_with_finite_gradients() -> None:
    for kernel in ("equation", "fused"):
        query, key, value = (torch.randn(2, 2, 4, 8, requires_grad=True) for _ in range(3))
        padding = torch.tensor([[True] * 4, [False, True, True, False]])
        output, weights = sl.attention(
            query, key, value, key_padding=padding, kernel=kernel, return_weights=True
        )
        assert bool((output[0] == 0).all())
        assert bool((weights[0] == 0).all())
        output.sum().backward()
        assert all(
            bool(torch.isfinite(x.grad).all()) for x in (query, key, value) if x.grad is not None
        )


@pytest.mark.parametrize("kernel", ["equation", "fused"])
def test_a_row_that_a_mask_empties_is_zero_with_finite_gradients(kernel: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 4, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(1, 2, 4, 4, dtype=torch.bool)
    mask[0, 1, 2] = False
    output, weights = sl.attention(query, key, value, mask=mask, kernel=kernel, return_weights=True)
    assert bool((output[:, 1, 2] == 0).all())
    assert bool((weights[:, 1, 2] == 0).all())
    output.square().sum().backward()
    assert all(
        bool(torch.isfinite(x.grad).all()) for x in (query, key, value) if x.grad is not None
    )
    brick = sl.MultiHeadAttention(16, heads=2)
    x = torch.randn(2, 4, 16, requires_grad=True)
    empty = brick(x, mask=torch.zeros(4, 4, dtype=torch.bool), kernel=kernel)
    torch.testing.assert_close(empty, brick.output.bias.expand(2, 4, 16))
    empty.sum().backward()
    assert x.grad is not None
    assert bool(torch.isfinite(x.grad).all())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"value_dim": 3},
        {"value_dim": 9, "kv_heads": 2},
        {"window": 3},
        {"window": 2, "value_dim": 6},
    ],
    ids=str,
)
def test_a_brick_with_its_own_value_size_and_window_learns_the_same_by_both_kernels(
    options: dict[str, int], masked: bool
) -> None:
    torch.manual_seed(0)
    brick = sl.MultiHeadAttention(16, heads=4, **options)
    x, mask = torch.randn(2, 7, 16), torch.rand(2, 4, 7, 7) < 0.6 if masked else None
    result = {}
    for kernel in ("equation", "fused"):
        y = brick(x, causal=True, mask=mask, kernel=kernel)
        result[kernel] = [y, *torch.autograd.grad(y.square().sum(), list(brick.parameters()))]
    assert brick.output.weight.shape == (16, 4 * options.get("value_dim", 4))
    for ours, theirs in zip(result["equation"], result["fused"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_new_queries_behind_cached_keys_see_what_they_see_in_the_whole_sequence() -> None:
    """The last queries alone, with a window and their rows of the mask: as with a cache."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 5)
    mask = torch.rand(2, 4, 9, 9) < 0.7
    whole = sl.attention(query, key, value, causal=True, window=4, mask=mask)
    for count in (1, 3):
        last = sl.attention(
            query[:, :, -count:], key, value, causal=True, window=4, mask=mask[:, :, -count:]
        )
        torch.testing.assert_close(last, whole[:, :, -count:])


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kernel", ["equation", "fused"])
@pytest.mark.parametrize("how", ["padding", "causal", "window", "mask"])
def test_nan_behind_a_mask_never_leaks(kernel: str, how: str, poison: float) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 6, 8) for _ in range(3))
    options = {
        "padding": {"key_padding": torch.tensor([[False] * 5 + [True]])},
        "causal": {"causal": True},
        "window": {"causal": True, "window": 2},
        "mask": {"mask": torch.arange(6)[None] < 5},
    }[how]
    clean = sl.attention(query, key, value, **options, kernel=kernel)
    spot = 0 if how == "window" else 5
    key, value = key.clone(), value.clone()
    key[:, :, spot], value[:, :, spot] = poison, poison
    dirty = sl.attention(query, key, value, **options, kernel=kernel)
    blind = {
        "padding": slice(0, 6),
        "mask": slice(0, 6),
        "causal": slice(0, 5),
        "window": slice(2, 6),
    }[how]
    torch.testing.assert_close(dirty[:, :, blind], clean[:, :, blind])
    seeing = {
        "padding": slice(0, 0),
        "mask": slice(0, 0),
        "causal": slice(5, 6),
        "window": slice(0, 2),
    }[how]
    assert bool(dirty[:, :, seeing].isnan().all()), "a query that may look at it must not hide it"


def test_attention_dropout_drops_the_stated_share_in_both_kernels() -> None:
    config = sl.gpt(width=32, layers=1, heads=2, vocab_size=11, dropout=0.5)
    model = make(config).train()
    tokens = torch.randint(0, 11, (64, 16))
    for kernel in ("equation", "fused"):
        torch.manual_seed(0)
        a, b = model(tokens, kernel=kernel), model(tokens, kernel=kernel)
        assert distance(a, b) > 1e-3, "two draws differ"
        plain = model.eval()(tokens, kernel=kernel)
        model.train()
        mean = torch.stack([model(tokens, kernel=kernel) for _ in range(30)]).mean(0)
        assert distance(plain, mean) < 1.0
