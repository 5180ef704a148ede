"""Law: whole models and bricks give what the NumPy oracle gives, for every choice together with
every other one."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sightline as sl
from tests.support import numpy_reference as reference
from tests.support.pairwise import all_pairs

WIDTH, LAYERS, VOCAB = 24, 2, 30
CLOSE = 1e-5  # of the largest number, in float32
KERNELS = ("fused", "equation")

# --- what there is to choose from
# ---------------------------------------------------------------------------------------------------

SCALINGS = {
    "linear": sl.LinearScaling(factor=4.0),
    "ntk": sl.NTKScaling(factor=4.0),
    "yarn": sl.YaRNScaling(factor=4.0, original_positions=64, beta_fast=8.0),
    "yarn, whole ramp": sl.YaRNScaling(
        factor=2.0, original_positions=64, beta_fast=8.0, attention_factor=1.2, truncate=False
    ),
    "llama 3": sl.Llama3Scaling(factor=4.0, original_positions=64),
}
POSITIONS = {
    "none": sl.NoPosition(),
    "learned": sl.Learned(),
    "learned + 2": sl.Learned(offset=2),
    "sinusoidal": sl.Sinusoidal(),
    "sinusoidal halves": sl.Sinusoidal(base=50.0, interleaved=False),
    "alibi": sl.ALiBi(),
    "relative": sl.RelativeBias(),
    "relative near": sl.RelativeBias(buckets=8, max_distance=8),
    "rotary": sl.Rotary(),
    "rotary 6 of 8": sl.Rotary(base=50.0, dim=6),
    **{
        f"rotary {name}": sl.Rotary(base=100.0, scaling=scaling)
        for name, scaling in SCALINGS.items()
    },
}
AXES: dict[str, dict[str, Any]] = {
    "positions": POSITIONS,
    "norm": {
        "layer": sl.LayerNorm(),
        "layer, no bias": sl.LayerNorm(bias=False, eps=0.01),
        "rms": sl.RMSNorm(),
        "rms + 1": sl.RMSNorm(eps=0.01, plus_one=True),
        "none": sl.NoNorm(),
    },
    "placement": {name: name for name in ("pre", "post", "sandwich", "output", "parallel")},
    "feed_forward": {
        name: name
        for name in (
            "relu",
            "gelu",
            "gelu_tanh",
            "silu",
            "relu_squared",
            "reglu",
            "geglu",
            "geglu_tanh",
            "swiglu",
        )
    },
    "attention": {
        "dot": sl.Dot(),
        "dot · 0.5": sl.Dot(scale=0.5),
        "cosine": sl.Cosine(),
        "cosine fixed": sl.Cosine(scale=4.0, learnable=False),
    },
    "heads": {"4": (4, 4), "4 : 2": (4, 2), "4 : 1": (4, 1), "3": (3, 3), "6 : 3": (6, 3)},
    "query_key_norm": {
        "no qk-norm": None,
        "qk each": sl.HeadNorm(),
        "qk joined": sl.HeadNorm(per_head=False, norm=sl.RMSNorm(plus_one=True)),
        "qk layer each": sl.HeadNorm(norm=sl.LayerNorm()),
        "qk layer joined": sl.HeadNorm(per_head=False, norm=sl.LayerNorm()),
    },
    "window": {"no window": None, "window 3": 3},
    "softcap": {"no cap": None, "cap 2": 2.0},
    "sinks": {"no sinks": False, "sinks": True},
    "value_dim": {"v 8": None, "v 5": 5},
    "bias": {"bias": True, "no bias": False},
}
HEADS: dict[str, dict[str, Any]] = {
    "decoder": {
        "tied": sl.LanguageHead(),
        "own matrix": sl.LanguageHead(tied=False, bias=True),
        "scaled and capped": sl.LanguageHead(bias=True, scale=0.5, softcap=3.0),
        "no head": sl.NoHead(),
    },
    "encoder": {
        "masked": sl.MaskedHead(),
        "masked, own matrix": sl.MaskedHead(
            tied=False,
            bias=False,
            activation="relu_squared",
            norm=sl.RMSNorm(plus_one=True),
            transform_bias=False,
        ),
        "pooled": sl.Pooler(),
        "first": sl.Pooler(how="first"),
        "mean": sl.Pooler(how="mean"),
        "no head": sl.NoHead(),
    },
}
ELSEWHERE = {  # a rotation or an activation is the same in every family: all of them meet in the decoder
    "positions": {name for name in POSITIONS if name.startswith("rotary ")},
    "feed_forward": {"gelu_tanh", "silu", "relu_squared", "reglu", "geglu"},
}
WITHOUT: dict[str, dict[str, set[str]]] = {  # what a maker cannot take, or need not
    "bert": ELSEWHERE,
    "encoder_decoder": {**ELSEWHERE, "placement": {"parallel"}},
    "ngpt": {
        "positions": {
            "learned",
            "learned + 2",
            "sinusoidal",
            "sinusoidal halves",
            "rotary linear",
            "rotary ntk",
            "rotary llama 3",
        },
        "feed_forward": {"relu", "gelu", "gelu_tanh", "silu", "relu_squared"},
    },
}


def axes_of(maker: str) -> dict[str, dict[str, Any]]:
    """The choices that a maker has."""
    axes = {**AXES, "head": HEADS["encoder" if maker == "bert" else "decoder"]}
    if maker == "bert":
        axes["types"] = {"2 types": 2, "no types": 0}
    if maker == "encoder_decoder":
        axes["share_embeddings"] = {"shared": True, "apart": False}
    if maker == "ngpt":
        axes = {
            name: axes[name]
            for name in (
                "positions",
                "feed_forward",
                "heads",
                "window",
                "softcap",
                "sinks",
                "value_dim",
                "head",
            )
        }
    without = WITHOUT.get(maker, {})
    return {
        axis: {k: v for k, v in values.items() if k not in without.get(axis, ())}
        for axis, values in axes.items()
    }


def configure(maker: str, choice: dict[str, str]) -> sl.ModelConfig:
    """The configuration that a choice names; a maker's default for an axis that it lacks."""
    axes = axes_of(maker)
    picked = {axis: axes[axis][name] for axis, name in choice.items()}
    later = {name: picked.pop(name) for name in ("softcap", "sinks", "value_dim")}
    head, (heads, kv_heads) = picked.pop("head"), picked.pop("heads")
    if picked.get("placement") == "parallel":
        picked |= {"placement": "pre", "parallel": True}
    config = getattr(sl, maker)(
        width=WIDTH,
        layers=LAYERS,
        vocab_size=VOCAB,
        max_positions=16,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=8,
        hidden=20,
        **picked,
    )
    return replace(with_attention(config, **later), head=head)


def with_attention(config: sl.ModelConfig, **fields: Any) -> sl.ModelConfig:
    """The same with other fields in every attention layer."""

    def changed(stack: sl.StackConfig) -> sl.StackConfig:
        def block(old: sl.BlockConfig) -> sl.BlockConfig:
            cross = old.cross_attention and replace(
                old.cross_attention, **{k: v for k, v in fields.items() if k != "window"}
            )
            return replace(old, attention=replace(old.attention, **fields), cross_attention=cross)

        return replace(stack, blocks=tuple(map(block, stack.blocks)))

    return replace(config, **{name: changed(stack) for name, stack in config.stacks.items()})


# --- running both
# -------------------------------------------------------------------------------------------------------------------


def randomise(model: torch.nn.Module, seed: int = 0) -> Any:
    """Parameters of a noticeable size: no gain is 1, no bias is 0, token vectors are as large as
    the positions added to them."""
    generator = torch.Generator().manual_seed(seed)
    scale = model.config.last.embedding.scale if isinstance(model, sl.Transformer) else 1.0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if "embedding" in name or "relative" in name:
            parameter.data = noise * (0.7 / scale if "tokens" in name else 0.7)
        elif parameter.dim() == 2:
            parameter.data = noise / math.sqrt(parameter.shape[1])
        else:
            parameter.data = parameter.data * (1 + 0.3 * noise) if parameter.any() else 0.3 * noise
    if isinstance(model, sl.Transformer):
        model.normalize_weights()
    return model.eval()


def numbers(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def arrays(inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in inputs.items()}


def padded(time: int) -> Tensor:
    """Three rows: padded on the right, on the left, not at all."""
    padding = torch.zeros(3, time, dtype=torch.bool)
    padding[0, -3:] = padding[1, :3] = True
    return padding


def inputs_for(config: sl.ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    fed = {"tokens": torch.randint(VOCAB, (3, 8), generator=generator)}
    if config.last.embedding.types:
        fed["types"] = torch.randint(config.last.embedding.types, (3, 8), generator=generator)
    if len(config.stacks) == 2:
        fed["source"] = torch.randint(VOCAB, (3, 6), generator=generator)
    return fed


def assert_close(ours: Tensor, wanted: np.ndarray, what: object = "") -> None:
    """Within CLOSE of the largest wanted number, wherever the oracle has one (it has none at
    padding)."""
    seen, real = ours.detach().numpy(), ~np.isnan(wanted)
    assert seen.shape == wanted.shape, what
    assert real.any()
    assert np.isfinite(seen).all(), what
    error, largest = np.abs(seen - wanted)[real].max(), np.abs(wanted[real]).max()
    assert error <= CLOSE * largest, f"{error:.1e} of {largest:.1e} {what}"


def compare(config: sl.ModelConfig, seed: int = 0) -> None:
    """The model and the oracle: three rows with padding by both kernels, and one row without, for
    which `fused` takes shorter ways."""
    model, inputs = randomise(sl.build(config), seed), inputs_for(config, seed)
    padding = {"padding": padded(8)}
    if "source" in inputs:
        padding["source_padding"] = padded(6).flip(0)
    state, one_row = numbers(model), {name: value[:1] for name, value in inputs.items()}
    for fed, kernels in ((inputs | padding, KERNELS), (one_row, ("fused",))):
        wanted = reference.forward(config, state, **arrays(fed))
        for kernel in kernels:
            with torch.no_grad():
                assert_close(model(**fed, kernel=kernel), wanted, (kernel, "padding" in fed))


CASES = [
    (maker, choice)
    for maker in ("gpt", "bert", "encoder_decoder", "ngpt")
    for choice in all_pairs(axes_of(maker))
]


@pytest.mark.parametrize(
    ("maker", "choice"),
    CASES,
    ids=lambda part: part if isinstance(part, str) else ", ".join(part.values()),
)
def test_every_pair_of_choices(maker: str, choice: dict[str, str]) -> None:
    compare(configure(maker, choice))


# --- whole models that the pairs do not hold
# ----------------------------------------------------------------------------------------

SMALL = {"width": WIDTH, "layers": LAYERS, "heads": 4, "vocab_size": VOCAB}


@pytest.mark.parametrize("maker", ["gpt", "llama", "bert", "encoder_decoder", "ngpt"])
def test_makers_as_they_come(maker: str) -> None:
    compare(getattr(sl, maker)(**SMALL))


def test_t5() -> None:
    compare(sl.t5(**SMALL, head_dim=8, hidden=20))


def test_ngpt_tied() -> None:
    compare(sl.ngpt(**SMALL, tied=True))


def test_blocks_that_alternate() -> None:
    """Gemma's habit: every other layer has a window and another base, here another norm and
    grouping too."""
    config = sl.llama(**SMALL | {"layers": 5})
    one = config.decoder.blocks[0]
    other = replace(one.attention, kv_heads=2, window=2, positions=sl.Rotary(base=7.0))
    blocks = (one, replace(one, attention=other, norm=sl.LayerNorm(), placement="post"))
    compare(replace(config, decoder=replace(config.decoder, blocks=blocks)))


def test_relative_bias_in_some_layers() -> None:
    config = sl.gpt(**SMALL, positions="relative")
    one = config.decoder.blocks[0]
    blocks = (one, replace(one, attention=replace(one.attention, positions=sl.ALiBi())))
    compare(replace(config, decoder=replace(config.decoder, blocks=blocks)))


def test_encoder_of_another_width() -> None:
    config = sl.encoder_decoder(**SMALL, share_embeddings=False)
    wide = sl.encoder_decoder(
        **SMALL | {"width": 32, "layers": 3}, placement="pre", norm="rms", share_embeddings=False
    )
    compare(replace(config, encoder=wide.encoder))


def test_padding_in_the_middle() -> None:
    config = sl.llama(**SMALL, window=3)
    model, inputs = randomise(sl.build(config)), inputs_for(config)
    inputs["padding"] = torch.rand(3, 8, generator=torch.Generator().manual_seed(4)) < 0.4
    assert_close(model(**inputs), reference.forward(config, numbers(model), **arrays(inputs)))


def test_source_that_is_all_padding() -> None:
    """Nothing to look at in the encoder: cross-attention adds its output bias and no more."""
    config = sl.encoder_decoder(**SMALL)
    model, inputs = randomise(sl.build(config)), inputs_for(config)
    inputs["source_padding"] = torch.ones(3, 6, dtype=torch.bool)
    assert_close(model(**inputs), reference.forward(config, numbers(model), **arrays(inputs)))


def test_types_left_out_are_type_0() -> None:
    config = sl.bert(**SMALL)
    model, inputs = randomise(sl.build(config)), inputs_for(config)
    del inputs["types"]
    assert_close(model(**inputs), reference.forward(config, numbers(model), **arrays(inputs)))


def test_ngpt_matrices_are_unit_along_the_width() -> None:
    """Rows of what reads the stream, columns of what writes to it, both embeddings (Loshchilov et
    al. 2024, 2.6)."""
    state = numbers(randomise(sl.build(sl.ngpt(**SMALL, positions="relative"))))
    for name, matrix in state.items():
        if matrix.ndim == 2 and "relative" not in name:
            axis = 0 if "attention.output" in name or "down" in name else 1
            assert matrix.shape[axis] == WIDTH
            np.testing.assert_allclose(
                np.linalg.norm(matrix, axis=axis), 1, atol=1e-6, err_msg=name
            )
    assert (
        np.abs(np.linalg.norm(state["decoder.relative.weight"], axis=1) - 1).max() > 0.1
    )  # a table of biases is no direction


def test_ngpt_scales_start_where_the_paper_starts_them() -> None:
    """s_qk = s_u = s_v = s_z = 1 and α = 0.05, so the fresh model is the oracle with those written
    out."""
    state = numbers(sl.build(sl.ngpt(**SMALL)))
    root = math.sqrt(WIDTH)
    assert np.allclose(
        state["decoder.0.attention_step.weight"] * root, 1
    )  # the oracle's 0.05 stands before it
    assert np.allclose(state["decoder.0.attention.measure.scale.weight"] * root, 1)
    assert np.allclose(state["output.logit_scale.weight"] * root, 1)
    assert np.allclose(state["decoder.0.feed_forward.gate_scale.weight"], 1)


def test_recorded_weights_are_the_oracles() -> None:
    """Asking for the weights shows those of the equation, per layer and head."""
    config = with_attention(
        sl.gpt(**SMALL, positions="alibi", kv_heads=2, window=4), softcap=2.0, sinks=True
    )
    model, inputs = randomise(sl.build(config)), inputs_for(config)
    seen = sl.Recorder({"weights", "residual"})
    model(**inputs, record=seen)
    attention, params = (
        config.decoder.blocks[0].attention,
        reference.under(numbers(model), "decoder.1"),
    )
    block, before = (
        config.decoder.blocks[0],
        seen["decoder", 1, "residual"].detach().double().numpy(),
    )
    for row in range(3):
        x = reference.norm(
            block.norm, reference.under(params, "attention_residual.before"), before[row]
        )
        bias = reference.position_bias(attention, None, 8, causal=True)
        may = reference.allowed(8, 8, causal=True, window=4)
        _, wanted = reference.multi_head(
            attention, reference.under(params, "attention"), x, x, may=may, bias=bias
        )
        assert_close(seen["decoder", 1, "weights"][row], wanted)
        assert wanted.sum(-1).max() < 1  # the sinks take their share


# --- bricks
# -------------------------------------------------------------------------------------------------------------------------


@st.composite
def attention_cases(draw: st.DrawFn) -> SimpleNamespace:
    """Shapes and options of `sl.attention`."""
    kv_heads, group, batch = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
    )
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    dim, value_dim = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    heads = kv_heads * group

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    broadcast = tuple(n if draw(st.booleans()) else 1 for n in (batch, heads, queries, keys))
    masked = broadcast if draw(st.booleans()) else (queries, keys)
    return SimpleNamespace(
        query=normal(batch, heads, queries, dim),
        key=normal(batch, kv_heads, keys, dim),
        value=normal(batch, kv_heads, keys, value_dim),
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 8)),
        key_padding=draw(st.none() | st.just(torch.rand(batch, keys, generator=generator) < 0.4)),
        mask=draw(st.none() | st.just(torch.rand(masked, generator=generator) < 0.6)),
        bias=draw(st.none() | st.just(2 * normal(*broadcast))),
        scale=draw(st.none() | st.floats(0.1, 2.0)),
    )


def check_attention(case: SimpleNamespace, kernel: str) -> None:
    """`sl.attention` against the oracle: output and weights, row by row."""
    batch, heads, queries, _ = case.query.shape
    keys = case.key.shape[2]
    ours, weights = sl.attention(**vars(case), kernel=kernel, return_weights=True)
    offset = keys - queries if case.causal or case.window is not None else 0
    bias = (
        None
        if case.bias is None
        else case.bias.expand(batch, heads, queries, keys).double().numpy()
    )
    for row in range(batch):
        may = reference.allowed(
            queries, keys, causal=case.causal, window=case.window, offset=offset
        )
        if case.key_padding is not None:
            may &= ~case.key_padding[row].numpy()
        may = np.repeat(may[None], heads, axis=0)
        if case.mask is not None:
            may &= case.mask.expand(batch, heads, queries, keys)[row].numpy()
        query, key, value = (x[row].double().numpy() for x in (case.query, case.key, case.value))
        wanted, wanted_weights = reference.attention(
            query, key, value, scale=case.scale, may=may, bias=None if bias is None else bias[row]
        )
        np.testing.assert_allclose(ours[row].numpy(), wanted, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(weights[row].numpy(), wanted_weights, atol=1e-5, rtol=1e-5)
        assert not ours[row].numpy()[~may.any(-1)].any()  # nothing to look at: exactly 0
        assert not weights[row].numpy()[~may].any()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=attention_cases(), kernel=st.sampled_from(KERNELS))
def test_attention(case: SimpleNamespace, kernel: str) -> None:
    check_attention(case, kernel)


@pytest.mark.parametrize("more", ["", "bias", "mask", "a mask for each head"])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, 20), (False, 20), (False, None)]
)
@pytest.mark.parametrize("keys", [150, 190])
def test_attention_in_bands(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None, keys: int, more: str
) -> None:
    """A mask too large for one tile is built band by band; the tile is made small here, so that 150
    queries need three."""
    monkeypatch.setattr("sightline.core.attention.TILE", 1)
    generator = torch.Generator().manual_seed(keys)
    query, key, value = (
        torch.randn(1, heads, time, 4, generator=generator)
        for heads, time in ((2, 150), (1, keys), (1, keys))
    )
    bias = torch.randn(1, 2, 150, keys, generator=generator) if more == "bias" else None
    masks = {"mask": (150, keys), "a mask for each head": (1, 2, 150, keys)}
    mask = torch.rand(masks[more], generator=generator) < 0.5 if more in masks else None
    case = SimpleNamespace(
        query=query,
        key=key,
        value=value,
        causal=causal,
        window=window,
        bias=bias,
        mask=mask,
        key_padding=None,
        scale=None,
    )
    check_attention(case, "fused")


BRICKS = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "wide heads": {"kv_heads": 1, "head_dim": 10},
    "no bias": {"bias": False},
    "cosine": {"kind": "cosine", "kv_heads": 2},
    "rotary": {"positions": sl.Rotary()},
    "alibi": {"positions": sl.ALiBi()},
    "relative": {"positions": sl.RelativeBias(buckets=8, max_distance=8)},
    "rotary cosine": {"positions": sl.Rotary(dim=4), "kind": sl.Cosine(learnable=False)},
    "small values": {"value_dim": 3, "kv_heads": 2},
    "large values": {"value_dim": 11},
    "window": {"positions": sl.Rotary(), "window": 3, "value_dim": 8},
}


def check_brick(
    brick: Any,
    x: Tensor,
    context: Tensor | None,
    *,
    causal: bool,
    padding: Tensor | None,
    mask: Tensor | None,
    kernel: str,
) -> None:
    """`MultiHeadAttention` against the oracle. Its relative bias looks both ways, for it does not
    know who will call it."""
    ours, weights = brick(
        x,
        context,
        causal=causal,
        key_padding=padding,
        mask=mask,
        kernel=kernel,
        return_weights=True,
    )
    params, time = numbers(brick), x.shape[1]
    for row in range(len(x)):
        seen = (x if context is None else context)[row].double().numpy()
        may = reference.allowed(time, len(seen), causal=causal, window=brick.config.window)
        if padding is not None:
            may &= ~padding[row].numpy()
        if mask is not None:
            may = may[None] & mask.expand(len(x), 4, *may.shape)[row].numpy()
        bias = (
            reference.position_bias(brick.config, params.get("relative.weight"), time, causal=False)
            if context is None
            else None
        )
        wanted, wanted_weights = reference.multi_head(
            brick.config, params, x[row].double().numpy(), seen, may=may, bias=bias
        )
        assert_close(ours[row], wanted)
        assert_close(weights[row], wanted_weights)


@pytest.mark.parametrize("name", BRICKS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 3),
    time=st.integers(1, 9),
    causal=st.booleans(),
    pad=st.booleans(),
    masked=st.sampled_from(("", "pairs", "heads")),
    kernel=st.sampled_from(KERNELS),
)
def test_multi_head_attention_to_itself(
    name: str, batch: int, time: int, causal: bool, pad: bool, masked: str, kernel: str
) -> None:
    brick = randomise(sl.MultiHeadAttention(24, heads=4, **BRICKS[name]), seed=time)
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, time, 24, generator=generator)
    padding = torch.rand(batch, time, generator=generator) < 0.4 if pad else None
    shape = (batch, 4, time, time) if masked == "heads" else (time, time)
    mask = torch.rand(shape, generator=generator) < 0.6 if masked else None
    with torch.no_grad():
        check_brick(brick, x, None, causal=causal, padding=padding, mask=mask, kernel=kernel)


@pytest.mark.parametrize("name", [name for name in BRICKS if "positions" not in BRICKS[name]])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 3),
    time=st.integers(1, 7),
    keys=st.integers(1, 9),
    pad=st.booleans(),
    masked=st.booleans(),
    kernel=st.sampled_from(KERNELS),
)
def test_multi_head_attention_to_another_sequence(
    name: str, batch: int, time: int, keys: int, pad: bool, masked: bool, kernel: str
) -> None:
    brick = randomise(sl.MultiHeadAttention(24, heads=4, **BRICKS[name]), seed=time)
    generator = torch.Generator().manual_seed(keys)
    x, context = (
        torch.randn(batch, time, 24, generator=generator),
        torch.randn(batch, keys, 24, generator=generator),
    )
    padding = torch.rand(batch, keys, generator=generator) < 0.4 if pad else None
    mask = torch.rand(batch, 1, time, keys, generator=generator) < 0.6 if masked else None
    with torch.no_grad():
        check_brick(brick, x, context, causal=False, padding=padding, mask=mask, kernel=kernel)


# --- the oracle and the core against Hugging Face's conventions
# ---------------------------------------------------------------------

BASES, DIMS = (10000.0, 500000.0), (64, 128)
PUBLISHED_SCALINGS: list[tuple[str, sl.config.RotaryScaling, dict[str, Any]]] = [
    ("linear", sl.LinearScaling(factor=4.0), {"factor": 4.0}),
    (
        "yarn",
        sl.YaRNScaling(factor=4.0, original_positions=4096),
        {"factor": 4.0, "original_max_position_embeddings": 4096},
    ),
    (
        "yarn",
        sl.YaRNScaling(factor=32.0, original_positions=4096, truncate=False),  # gpt-oss
        {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
    ),
    (
        "yarn",
        sl.YaRNScaling(
            factor=8.0, original_positions=2048, beta_fast=16.0, beta_slow=2.0, attention_factor=1.1
        ),
        {
            "factor": 8.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.1,
        },
    ),
    (
        "llama3",
        sl.Llama3Scaling(factor=8.0, original_positions=8192),
        {
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    (
        "dynamic",
        sl.NTKScaling(factor=4.0),
        {"factor": 1.0},
    ),  # at four times the length, its base is that of a fixed factor 4
]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("kind", "scaling", "keys"),
    PUBLISHED_SCALINGS,
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_rotary_frequencies_are_those_of_transformers(
    kind: str, scaling: sl.config.RotaryScaling, keys: dict[str, Any], base: float, dim: int
) -> None:
    pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from sightline.core.positions import rotary_frequencies

    config = SimpleNamespace(
        head_dim=dim,
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": kind, "rope_theta": base, **keys},
        standardize_rope_params=lambda: None,
    )
    theirs, their_factor = ROPE_INIT_FUNCTIONS[kind](
        config, device="cpu", seq_len=4 * 4096 if kind == "dynamic" else None
    )
    rotary = sl.Rotary(base=base, scaling=scaling)
    wanted, factor = reference.rotary_frequencies(rotary, dim)
    ours, our_factor = rotary_frequencies(rotary, dim)
    np.testing.assert_allclose(theirs.numpy(), wanted, rtol=3e-6)
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=3e-6)
    assert factor == our_factor == pytest.approx(their_factor)


def test_t5_buckets_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    from sightline.core.positions import relative_bucket

    distance = torch.arange(-300, 301)
    for buckets, farthest in ((32, 128), (8, 8), (16, 20), (4, 100)):
        for both in (True, False):
            theirs = T5Attention._relative_position_bucket(
                distance, bidirectional=both, num_buckets=buckets, max_distance=farthest
            )
            wanted = [
                reference.t5_bucket(
                    int(d), buckets=buckets, max_distance=farthest, bidirectional=both
                )
                for d in distance
            ]
            assert (
                theirs.tolist()
                == wanted
                == relative_bucket(distance, buckets, farthest, causal=not both).tolist()
            )


def test_alibi_slopes_are_those_of_the_paper() -> None:
    """Twelve heads: the eight of H = 8, then the first, third, fifth and seventh of H = 16 (Press
    et al. 2022)."""
    from sightline.core.positions import alibi_slopes

    eight, sixteen = [2.0**-h for h in range(1, 9)], [2 ** (-h / 2) for h in range(1, 17)]
    assert alibi_slopes(8) == reference.alibi_slopes(8) == eight
    assert alibi_slopes(12) == pytest.approx([*eight, *sixteen[0:8:2]])
    for heads in range(1, 40):
        assert alibi_slopes(heads) == pytest.approx(reference.alibi_slopes(heads))
        assert len(set(alibi_slopes(heads))) == heads
