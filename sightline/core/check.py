"""Argument checks: what does not fit is refused before anything is computed, with the fix."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sightline.config import (
    ALiBi,
    AttentionConfig,
    AttentionPosition,
    Cosine,
    Dot,
    Learned,
    ModelConfig,
    NoPosition,
    RelativeBias,
    Rotary,
    StackConfig,
)
from sightline.core.cache.kv_cache import Cache
from sightline.errors import ConfigError, InputError, nearest

KINDS = {"dot": Dot, "cosine": Cosine}


# ----------------------------------------------------------------------------- constructing layers


def attention_kind(kind: str | Dot | Cosine) -> Dot | Cosine:
    """ "dot", "cosine", or the configuration itself."""
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ConfigError(f"attention kind {kind!r}", fix=nearest(kind, KINDS))
        return KINDS[kind]()
    return kind


def attention_config(
    width: int,
    heads: int,
    kv_heads: int | None,
    head_dim: int | None,
    positions: AttentionPosition | None,
    kind: Literal["dot", "cosine"] | Dot | Cosine,
    bias: bool,
    *,
    value_dim: int | None = None,
    window: int | None = None,
) -> AttentionConfig:
    """The configuration of a `MultiHeadAttention(width, heads, …)`."""
    if positions is not None and not isinstance(
        positions, (NoPosition, Rotary, ALiBi, RelativeBias)
    ):
        raise ConfigError(
            f"{type(positions).__name__} positions in an attention layer",
            expected="Rotary, ALiBi, RelativeBias or NoPosition",
            fix=(
                "learned and sinusoidal positions are added to the embeddings, before the first"
                " layer"
            ),
        )
    if head_dim is None and (heads < 1 or width % heads):
        raise ConfigError(
            f"width {width} does not divide into {heads} heads",
            expected="width divisible by heads",
            fix="choose heads that divide width, or give head_dim",
        )
    return AttentionConfig(
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=width // heads if head_dim is None else head_dim,
        value_dim=value_dim,
        kind=attention_kind(kind),
        positions=NoPosition() if positions is None else positions,
        bias=bias,
        output_bias=bias,
        window=window,
    )


# --------------------------------------------------------------------------------- calling layers


def packed_documents(documents: Tensor | None, tokens: Tensor, cache: Cache | None) -> None:
    """One document number per token, and no cache: cached tokens have no document number."""
    if documents is not None and documents.shape != tokens.shape:
        raise InputError(
            f"documents have shape {_shape(documents)}, tokens {_shape(tokens)}",
            expected="one number per token",
        )
    if documents is not None and cache is not None:
        raise InputError(
            "documents that share a row, and a cache",
            expected="one of the two",
            fix="leave documents out",
        )


def attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None,
    key_padding: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    kernel: str,
) -> None:
    """The arguments of `sl.attention`."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise InputError(
                f"{name} has shape {_shape(x)}",
                expected="[batch, heads, time, head_dim]",
                fix=f"{name}.unflatten(-1, (heads, -1)).transpose(1, 2)",
            )
        if not x.is_floating_point():
            raise InputError(
                f"{name} is {_dtype_name(x)}",
                expected="a floating-point tensor",
                fix=f"{name}.float()",
            )
        if x.dtype != query.dtype or x.device != query.device:
            raise InputError(
                f"query is {_dtype_name(query)} on {query.device},"
                f" {name} is {_dtype_name(x)} on {x.device}",
                expected="one dtype and device",
                fix=f"{name}.to(query)",
            )
        if x.shape[0] != query.shape[0]:
            raise InputError(
                f"query has batch {query.shape[0]}, {name} has {x.shape[0]}",
                expected="one batch size",
                fix=f"{name}.expand({query.shape[0]}, -1, -1, -1)",
            )
    if query.shape[-1] != key.shape[-1]:
        raise InputError(
            f"query has head_dim {query.shape[-1]}, key has {key.shape[-1]}",
            expected="the same",
            fix="project both to one head_dim",
        )
    if key.shape[1:3] != value.shape[1:3]:
        raise InputError(
            f"key is {_shape(key)}, value is {_shape(value)}",
            expected="the same heads and time",
            fix="make key and value from one sequence",
        )
    if query.shape[1] % key.shape[1]:
        raise InputError(
            f"{query.shape[1]} query heads, {key.shape[1]} key heads",
            expected="query heads divisible by key heads",
            fix="use as many, or a divisor of them",
        )
    if window is not None and window < 1:
        raise InputError(
            f"window is {window}", expected="1 or more", fix="window=None for no window"
        )
    if kernel not in ("equation", "fused"):
        raise InputError(f"kernel {kernel!r}", fix=nearest(kernel, ("equation", "fused")))
    padding("key_padding", key_padding, (key.shape[0], key.shape[2]))
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    explicit_mask(mask, shape, query.device)
    if bias is not None:
        if bias.dim() != 4 or any(
            have not in (1, want) for have, want in zip(bias.shape, shape, strict=True)
        ):
            raise InputError(
                f"bias has shape {_shape(bias)}",
                expected=f"one that broadcasts to {list(shape)} [batch, heads, query, key]",
                fix="add axes of size 1 with bias[None]",
            )
        if not bias.is_floating_point():
            raise InputError(
                f"bias is {_dtype_name(bias)}",
                expected="numbers to add to the scores",
                fix="mask takes booleans, True = may attend",
            )


def multi_head_call(
    x: Tensor,
    context: Tensor | None,
    width: int,
    config: AttentionConfig,
    key_padding: Tensor | None,
    mask: Tensor | None,
    *,
    causal: bool,
    parameter: Tensor,
) -> None:
    """The arguments of a `MultiHeadAttention`'s call."""
    for name, y in (("x", x), ("context", context)):
        if y is None:
            continue
        if y.dim() != 3 or y.shape[-1] != width:
            raise InputError(
                f"{name} has shape {_shape(y)}",
                expected=f"[batch, time, {width}]",
                fix=f"{name}[None] if the batch is missing, or another width",
            )
        if not y.is_floating_point():
            raise InputError(
                f"{name} is {_dtype_name(y)}",
                expected="vectors, not token ids",
                fix="embed the tokens first",
            )
        if y.device != parameter.device:
            raise InputError(
                f"{name} is on {y.device}, the layer on {parameter.device}",
                expected="one device",
                fix=f"{name}.to('{parameter.device}')",
            )
        if y.dtype != parameter.dtype and not torch.is_autocast_enabled(y.device.type):
            raise InputError(
                f"{name} is {_dtype_name(y)}, the layer {_dtype_name(parameter)}",
                expected="one dtype",
                fix=f"{name}.to({parameter.dtype}), or layer.to({y.dtype})",
            )
    if context is not None:
        if context.shape[0] != x.shape[0]:
            raise InputError(
                f"x has batch {x.shape[0]}, context has {context.shape[0]}",
                expected="one batch size",
                fix=f"context.expand({x.shape[0]}, -1, -1)",
            )
        if causal:
            raise InputError(
                "causal=True with a context",
                expected="one of them: another sequence has no future here",
                fix="causal=False",
            )
        if config.window is not None:
            raise InputError(
                f"a context with window={config.window}",
                expected="no window: two sequences have no common distance",
                fix="make the layer without a window, or give a mask",
            )
        if not isinstance(config.positions, NoPosition):
            raise InputError(
                f"a context with {type(config.positions).__name__} positions",
                expected="no positions: two sequences have no common origin",
                fix="make the layer without positions",
            )
    keys = x if context is None else context
    padding("key_padding", key_padding, (keys.shape[0], keys.shape[1]))
    explicit_mask(mask, (x.shape[0], config.heads, x.shape[1], keys.shape[1]), x.device)


# -------------------------------------------------------------------------------- calling a model


def model_call(
    config: ModelConfig,
    tokens: Tensor,
    pad: Tensor | None,
    types: Tensor | None,
    source: Tensor | None,
    source_pad: Tensor | None,
    cache: Cache | None,
    device: torch.device,
) -> None:
    """The arguments of a Transformer's call."""
    stack = config.last
    token_ids("tokens", tokens, stack.embedding.vocab_size, device)
    padding("padding", pad, (tokens.shape[0], tokens.shape[1]))
    if types is not None:
        if not stack.embedding.types:
            raise InputError("types for a model without token types", fix="leave types out")
        token_ids("types", types, stack.embedding.types, device)
        if types.shape != tokens.shape:
            raise InputError(
                f"types has shape {_shape(types)}",
                expected=f"{_shape(tokens)}, as tokens",
                fix="one type per token",
            )
    _source(config, tokens, source, source_pad, cache, device)
    if cache is not None:
        _cache_shape(config, tokens, cache)
    _learned_length(stack, "tokens", tokens, pad, cache)


def _source(
    config: ModelConfig,
    tokens: Tensor,
    source: Tensor | None,
    source_pad: Tensor | None,
    cache: Cache | None,
    device: torch.device,
) -> None:
    if config.encoder is None or config.decoder is None:
        if source is not None or source_pad is not None:
            raise InputError(
                "a source for a model with one stack",
                expected="tokens only",
                fix="leave source out",
            )
        return
    if source is None:
        if cache is None or not cache.cross or cache.cross[0].recall() is None:
            raise InputError(
                "no source for an encoder–decoder",
                expected="source=[batch, time]",
                fix="model(tokens, source=source)",
            )
        return
    if cache is not None and cache.length > 0:
        raise InputError(
            "a source with a cache that holds one already",
            expected="source in the first call only",
            fix="leave source out, or make a new cache",
        )
    token_ids("source", source, config.encoder.embedding.vocab_size, device)
    if source.shape[0] != tokens.shape[0]:
        raise InputError(
            f"tokens has batch {tokens.shape[0]}, source has {source.shape[0]}",
            expected="one batch size",
            fix="one source per row",
        )
    padding("source_padding", source_pad, (source.shape[0], source.shape[1]))
    _learned_length(config.encoder, "source", source, source_pad, None)


def _cache_shape(config: ModelConfig, tokens: Tensor, cache: Cache) -> None:
    layers = config.decoder.layers if config.decoder else 0
    if len(cache.stores) != layers:
        raise InputError(
            f"a cache of {len(cache.stores)} layers for a decoder of {layers}",
            expected="a cache made for this model",
            fix="Cache.growing(model.config)",
        )
    if cache.batch not in (None, tokens.shape[0]):
        raise InputError(
            f"a cache of batch {cache.batch}, tokens of batch {tokens.shape[0]}",
            expected="the same rows in every call",
            fix="make a new cache",
        )


def _learned_length(
    stack: StackConfig, name: str, tokens: Tensor, pad: Tensor | None, cache: Cache | None
) -> None:
    """Learned positions have a fixed length; the others may be extrapolated."""
    if not isinstance(stack.embedding.positions, Learned):
        return
    length = tokens.shape[1] + (cache.length if cache else 0)
    if length > stack.max_positions and (
        pad is not None or (cache is not None and cache.padding is not None)
    ):
        before = cache.length if cache else 0
        new_padding = torch.zeros_like(tokens, dtype=torch.bool) if pad is None else pad
        old_padding = (
            tokens.new_zeros(tokens.shape[0], before).bool()
            if cache is None or cache.padding is None
            else cache.padding
        )
        length = int((~torch.cat((old_padding, new_padding), dim=1)).sum(1).max())
    if length > stack.max_positions:
        raise InputError(
            f"{name} reach position {length - 1}",
            expected=f"at most {stack.max_positions - 1}, the end of the learned table",
            fix=f"shorten to {stack.max_positions} tokens",
        )


# -------------------------------------------------------------------------------------- the parts


def token_ids(name: str, ids: Tensor, size: int, device: torch.device) -> None:
    """Integers [batch, time] in [0, size), on the model's device."""
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"{name} is {_dtype_name(ids)}", expected="int64 ids", fix=f"{name}.long()"
        )
    if ids.dim() != 2 or ids.shape[0] == 0 or ids.shape[1] == 0:
        raise InputError(
            f"{name} has shape {_shape(ids)}",
            expected="[batch, time] with at least one token",
            fix=f"{name}[None] if the batch is missing",
        )
    if ids.device != device:
        raise InputError(
            f"{name} is on {ids.device}, the model on {device}",
            expected="one device",
            fix=f"{name}.to('{device}')",
        )
    if (
        ids.device.type == "cpu" and not torch.compiler.is_compiling()
    ):  # elsewhere it would force a synchronisation
        low, high = (int(x) for x in torch.aminmax(ids))
        if low < 0 or high >= size:
            wrong = low if low < 0 else high
            raise InputError(
                f"{name} holds id {wrong}",
                expected=f"0 to {size - 1}",
                fix="use the tokenizer that belongs to the model",
            )


def padding(name: str, pad: Tensor | None, shape: tuple[int, int]) -> None:
    """Booleans of the tokens' shape, True where padding."""
    if pad is None:
        return
    if pad.dtype != torch.bool:
        raise InputError(
            f"{name} is {_dtype_name(pad)}",
            expected="booleans, True where padding",
            fix=f"{name} = attention_mask == 0",
        )
    if tuple(pad.shape) != shape:
        raise InputError(
            f"{name} has shape {_shape(pad)}",
            expected=f"{list(shape)}",
            fix="one boolean per token",
        )


def explicit_mask(
    mask: Tensor | None, shape: tuple[int, int, int, int], device: torch.device
) -> None:
    """Booleans per query and key, True = may attend: [query, key], or four axes that broadcast."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        is_additive = mask.is_floating_point()
        fix = (
            "mask == 0 if it is an additive mask"
            if is_additive
            else "mask.bool() if 1 means may attend"
        )
        raise InputError(
            f"mask is {_dtype_name(mask)}", expected="booleans, True = may attend", fix=fix
        )
    if mask.dim() == 3:
        raise InputError(
            f"mask has shape {_shape(mask)}",
            expected="[query, key] or [batch, heads, query, key]",
            fix="mask[:, None] if it has one mask per sequence, mask[None] if one per head",
        )
    has_axes = mask.dim() in (2, 4)
    if not has_axes or any(
        have not in (1, want)
        for have, want in zip(reversed(mask.shape), reversed(shape), strict=False)
    ):
        raise InputError(
            f"mask has shape {_shape(mask)}",
            expected=f"one that broadcasts to {list(shape)} [batch, heads, query, key]",
            fix="one boolean per query and key",
        )
    if mask.device != device:
        raise InputError(
            f"mask is on {mask.device}, the vectors on {device}",
            expected="one device",
            fix=f"mask.to('{device}')",
        )


def _shape(x: Tensor) -> str:
    return str(list(x.shape))


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
