"""Law: with the same weights, the layers of `torch.nn` and ours give the same outputs, gradients of
inputs and gradients of weights.

Our models take tokens where torch's take vectors, so each vector becomes a token of its own: row n
of the embedding matrix is vector n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sightline as sl

WIDTH, HEADS, HIDDEN, BATCH, TIME, SOURCE = 16, 4, 20, 3, 6, 5
KERNELS = ("fused", "equation")
Read = Callable[[nn.Parameter], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def randomise(module: nn.Module) -> Any:
    """Every parameter of a noticeable size, biases and gains too."""
    for seed, parameter in enumerate(module.parameters()):
        noise = normal(*parameter.shape, seed=seed)
        parameter.data = (
            noise / WIDTH**0.5 if parameter.dim() == 2 else parameter.data + 0.3 * noise
        )
    return module


def right_padded(batch: int, time: int) -> Tensor:
    """Rows 0, 1, 2, … lose 0, 1, 2, … tokens at the end."""
    return torch.arange(time)[None] >= time - torch.arange(batch)[:, None]


# --- whose weight is whose
# ----------------------------------------------------------------------------------------------------------


def attention_names(theirs: nn.MultiheadAttention, read: Read, path: str = "") -> dict[str, Tensor]:
    """`nn.MultiheadAttention` keeps q, k and v in one matrix, one after the other."""
    names = {
        f"{path}output.weight": read(theirs.out_proj.weight),
        f"{path}output.bias": read(theirs.out_proj.bias),
    }
    weights, biases = read(theirs.in_proj_weight).chunk(3), read(theirs.in_proj_bias).chunk(3)
    for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        names |= {f"{path}{name}.weight": weight, f"{path}{name}.bias": bias}
    return names


def layer_names(theirs: Any, read: Read, path: str, placement: str) -> dict[str, Tensor]:
    """A `TransformerEncoderLayer` or `TransformerDecoderLayer`, by our names."""
    where = "before" if placement == "pre" else "after"
    parts = {f"{path}.feed_forward.up": theirs.linear1, f"{path}.feed_forward.down": theirs.linear2}
    residuals = (
        ["attention", "cross", "feed_forward"]
        if hasattr(theirs, "multihead_attn")
        else ["attention", "feed_forward"]
    )
    parts |= {
        f"{path}.{name}_residual.{where}": getattr(theirs, f"norm{n}")
        for n, name in enumerate(residuals, 1)
    }
    names = {
        f"{name}.{kind}": read(getattr(part, kind))
        for name, part in parts.items()
        for kind in ("weight", "bias")
    }
    names |= attention_names(theirs.self_attn, read, f"{path}.attention.")
    if hasattr(theirs, "multihead_attn"):
        names |= attention_names(theirs.multihead_attn, read, f"{path}.cross_attention.")
    return names


def transformer_names(theirs: nn.Transformer, read: Read, placement: str) -> dict[str, Tensor]:
    """A whole `nn.Transformer`: both stacks end in a norm."""
    names: dict[str, Tensor] = {}
    for stack in ("encoder", "decoder"):
        part = getattr(theirs, stack)
        names |= {
            f"{stack}.norm.weight": read(part.norm.weight),
            f"{stack}.norm.bias": read(part.norm.bias),
        }
        for n, layer in enumerate(part.layers):
            names |= layer_names(layer, read, f"{stack}.{n}", placement)
    return names


def copy(names: dict[str, Tensor], ours: nn.Module) -> None:
    """Their weights into our parameters: each of them, but for the embeddings."""
    parameters = dict(ours.named_parameters())
    assert {name for name in parameters if "embedding" not in name} == set(names)
    for name, weight in names.items():
        assert parameters[name].shape == weight.shape, name
        parameters[name].data = weight.detach().clone()


def assert_same(ours: Tensor, theirs: Tensor, what: str) -> None:
    largest = float(theirs.detach().abs().max())
    assert largest > 1e-3, what
    torch.testing.assert_close(
        ours, theirs, atol=1e-5 * largest, rtol=1e-4, msg=lambda text: f"{what}: {text}"
    )


def assert_same_gradients(ours: nn.Module, names: dict[str, Tensor]) -> None:
    """The gradient of every weight. A key's bias moves all scores of a row alike, so its gradient
    is 0 but for rounding."""
    parameters = dict(ours.named_parameters())
    for name, gradient in names.items():
        if name.endswith("key.bias"):
            assert parameters[name].grad.abs().max() < 1e-4
        else:
            assert_same(parameters[name].grad, gradient, name)


# --- attention
# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("case", ["self", "causal", "cross"])
def test_multi_head_attention(case: str, pad: bool, kernel: str) -> None:
    theirs = randomise(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    ours = sl.MultiHeadAttention(WIDTH, heads=HEADS)
    copy(attention_names(theirs, lambda p: p), ours)
    keys = SOURCE if case == "cross" else TIME
    padding, future = (
        right_padded(BATCH, keys) if pad else None,
        torch.ones(TIME, TIME, dtype=torch.bool).triu(1),
    )
    results = []
    for who in ("ours", "theirs"):
        x, context = (
            normal(BATCH, TIME, WIDTH, seed=1).requires_grad_(),
            normal(BATCH, SOURCE, WIDTH, seed=2).requires_grad_(),
        )
        if who == "ours":
            y, weights = ours(
                x,
                context if case == "cross" else None,
                causal=case == "causal",
                key_padding=padding,
                kernel=kernel,
                return_weights=True,
            )
        else:
            seen = context if case == "cross" else x
            y, weights = theirs(
                x,
                seen,
                seen,
                key_padding_mask=padding,
                attn_mask=future if case == "causal" else None,
                average_attn_weights=False,
            )
        (y * normal(*y.shape, seed=3)).sum().backward()
        results.append((y, weights, x.grad, context.grad))
    for what, mine, other in zip(("output", "weights", "x", "context"), *results, strict=True):
        if other is not None:
            assert_same(mine, other, what)
    assert results[0][1].shape == (BATCH, HEADS, TIME, keys)
    assert_same_gradients(ours, attention_names(theirs, lambda p: p.grad))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("axes", ["pairs", "heads"])
def test_a_mask_is_true_where_torchs_scaled_dot_product_attention_looks_and_its_layer_does_not(
    axes: str, kernel: str
) -> None:
    theirs = randomise(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    ours = sl.MultiHeadAttention(WIDTH, heads=HEADS)
    copy(attention_names(theirs, lambda p: p), ours)
    shape = (TIME, TIME) if axes == "pairs" else (BATCH, HEADS, TIME, TIME)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.5
    mask |= torch.eye(TIME, dtype=torch.bool)
    results = []
    for who in ("ours", "theirs"):
        x = normal(BATCH, TIME, WIDTH, seed=1).requires_grad_()
        hidden = ~mask if axes == "pairs" else ~mask.flatten(0, 1)
        y = (
            ours(x, mask=mask, kernel=kernel)
            if who == "ours"
            else theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]
        )
        (y * normal(*y.shape, seed=3)).sum().backward()
        results.append((y, x.grad))
    for what, mine, other in zip(("output", "x"), *results, strict=True):
        assert_same(mine, other, what)
    assert_same_gradients(ours, attention_names(theirs, lambda p: p.grad))
    query, key, value = (normal(BATCH, HEADS, TIME, size, seed=size) for size in (4, 4, 4))
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert_same(
        sl.attention(query, key, value, mask=mask, kernel=kernel),
        mixed,
        "scaled_dot_product_attention",
    )


# --- layers
# -------------------------------------------------------------------------------------------------------------------------


def choices(placement: str, activation: str, layers: int, vectors: int) -> dict[str, Any]:
    return {
        "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "layers": layers, "vocab_size": vectors,
        "positions": "none", "placement": placement, "feed_forward": activation,
    }  # fmt: skip


def as_tokens(model: sl.Transformer, stack: str, vectors: Tensor) -> Tensor:
    """Vector n becomes token n: [batch, time, width] → [batch, time]."""
    getattr(model, stack).embedding.tokens.weight.data = vectors.detach().flatten(0, 1).clone()
    return torch.arange(vectors.shape[0] * vectors.shape[1]).view(vectors.shape[:2])


def input_gradient(model: sl.Transformer, stack: str, like: Tensor) -> Tensor:
    return getattr(model, stack).embedding.tokens.weight.grad.view_as(like)


PLACEMENTS = pytest.mark.parametrize("placement", ["pre", "post"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu"])
BY_KERNEL = pytest.mark.parametrize("kernel", KERNELS)


@BY_KERNEL
@PLACEMENTS
@ACTIVATIONS
def test_encoder_layer(placement: str, activation: str, kernel: str) -> None:
    theirs = randomise(
        nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=placement == "pre", batch_first=True
        )
    )
    config = sl.bert(
        **choices(placement, activation, 1, BATCH * TIME), norm="layer", types=0, head="none"
    )
    bare = replace(
        config.encoder,
        embedding=sl.EmbeddingConfig(vocab_size=BATCH * TIME),
        final_norm=sl.NoNorm(),
    )
    ours = sl.build(replace(config, encoder=bare))
    copy(layer_names(theirs, lambda p: p, "encoder.0", placement), ours)
    x, padding = normal(BATCH, TIME, WIDTH, seed=1).requires_grad_(), right_padded(BATCH, TIME)
    probe = normal(BATCH, TIME, WIDTH, seed=2) * ~padding[..., None]
    y = ours(as_tokens(ours, "encoder", x), padding=padding, kernel=kernel)
    z = theirs(x, src_key_padding_mask=padding)
    for out in (y, z):
        (out * probe).sum().backward()
    assert_same(y[~padding], z[~padding], "output")
    assert_same(input_gradient(ours, "encoder", x), x.grad, "x")
    assert_same_gradients(ours, layer_names(theirs, lambda p: p.grad, "encoder.0", placement))


def decoder_alone(placement: str, activation: str) -> sl.ModelConfig:
    """An encoder–decoder whose encoder can be made the identity: no norms, so x + 0 + 0."""
    pair = sl.encoder_decoder(
        **choices(placement, activation, 1, BATCH * TIME), share_embeddings=False
    )
    through = sl.encoder_decoder(
        **choices("pre", "relu", 1, BATCH * SOURCE), share_embeddings=False, norm="none"
    ).encoder
    encoder = replace(through, embedding=sl.EmbeddingConfig(vocab_size=BATCH * SOURCE))
    decoder = replace(
        pair.decoder, embedding=sl.EmbeddingConfig(vocab_size=BATCH * TIME), final_norm=sl.NoNorm()
    )
    return sl.ModelConfig(encoder=encoder, decoder=decoder)


@BY_KERNEL
@PLACEMENTS
@ACTIVATIONS
def test_decoder_layer(placement: str, activation: str, kernel: str) -> None:
    theirs = randomise(
        nn.TransformerDecoderLayer(
            WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=placement == "pre", batch_first=True
        )
    )
    ours = sl.build(decoder_alone(placement, activation))
    nothing = {
        name: torch.zeros_like(p)
        for name, p in ours.named_parameters()
        if name.startswith("encoder.0")
    }
    copy(nothing | layer_names(theirs, lambda p: p, "decoder.0", placement), ours)
    x, memory = (
        normal(BATCH, TIME, WIDTH, seed=1).requires_grad_(),
        normal(BATCH, SOURCE, WIDTH, seed=2).requires_grad_(),
    )
    padding, memory_padding = (
        right_padded(BATCH, TIME),
        right_padded(BATCH, SOURCE).flip(0, 1),
    )  # the source on the left
    y = ours(
        as_tokens(ours, "decoder", x),
        padding=padding,
        source=as_tokens(ours, "encoder", memory),
        source_padding=memory_padding,
        kernel=kernel,
    )
    future = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
    z = theirs(
        x,
        memory,
        tgt_mask=future,
        tgt_key_padding_mask=padding,
        memory_key_padding_mask=memory_padding,
    )
    for out in (y, z):
        (out * normal(*z.shape, seed=3) * ~padding[..., None]).sum().backward()
    assert_same(y[~padding], z[~padding], "output")
    assert_same(input_gradient(ours, "decoder", x), x.grad, "x")
    assert_same(input_gradient(ours, "encoder", memory), memory.grad, "memory")
    assert_same_gradients(ours, layer_names(theirs, lambda p: p.grad, "decoder.0", placement))


@BY_KERNEL
@PLACEMENTS
@ACTIVATIONS
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer(placement: str, activation: str, kernel: str) -> None:
    theirs = randomise(
        nn.Transformer(
            WIDTH,
            HEADS,
            2,
            2,
            HIDDEN,
            0.0,
            activation,
            norm_first=placement == "pre",
            batch_first=True,
        )
    )
    config = sl.encoder_decoder(
        **choices(placement, activation, 2, BATCH * TIME), share_embeddings=False
    )
    stacks = {
        name: replace(
            stack, embedding=sl.EmbeddingConfig(vocab_size=BATCH * time), final_norm=sl.LayerNorm()
        )
        for (name, stack), time in zip(config.stacks.items(), (SOURCE, TIME), strict=True)
    }
    ours = sl.build(sl.ModelConfig(**stacks))
    copy(transformer_names(theirs, lambda p: p, placement), ours)
    source, x = (
        normal(BATCH, SOURCE, WIDTH, seed=1).requires_grad_(),
        normal(BATCH, TIME, WIDTH, seed=2).requires_grad_(),
    )
    source_padding, padding = right_padded(BATCH, SOURCE), right_padded(BATCH, TIME)
    y = ours(
        as_tokens(ours, "decoder", x),
        padding=padding,
        source=as_tokens(ours, "encoder", source),
        source_padding=source_padding,
        kernel=kernel,
    )
    z = theirs(
        source,
        x,
        tgt_mask=torch.ones(TIME, TIME, dtype=torch.bool).triu(1),
        src_key_padding_mask=source_padding,
        tgt_key_padding_mask=padding,
        memory_key_padding_mask=source_padding,
    )
    for out in (y, z):
        (out * normal(*z.shape, seed=3) * ~padding[..., None]).sum().backward()
    assert_same(y[~padding], z[~padding], "output")
    assert_same(input_gradient(ours, "decoder", x), x.grad, "x")
    assert_same(input_gradient(ours, "encoder", source), source.grad, "source")
    assert_same_gradients(ours, transformer_names(theirs, lambda p: p.grad, placement))
