"""Multi-head attention: Concat(head_1 … head_h) W_O, with head_i = attention(x W_Q, y W_K, y W_V).

Self-attention when y is x, cross-attention when y is another sequence. Tensors
live as [batch, heads, time, head_dim]; flattening happens only in `split_heads` and `merge_heads`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sightline.config import AttentionConfig, AttentionPosition, Cosine, Dot, RelativeBias
from sightline.core import check
from sightline.core.attention import Kernel, Scoring, attend, attention_weights, mix
from sightline.core.cache.stores import KeyValues, Store
from sightline.core.context import Place, place_for
from sightline.core.linear import BlockedLinear, Linear
from sightline.core.masks import Mask
from sightline.core.norms import make_head_norm, unit
from sightline.core.positions import Bias, RelativeTable, TensorBias, rotate
from sightline.kernels import library as kernels
from sightline.record import NOTHING, Record, Recorder

Stream = Float[Tensor, "batch time width"]


def split_heads(
    x: Float[Tensor, "batch time joined"], heads: int
) -> Float[Tensor, "batch heads time dim"]:
    """[batch, time, heads · dim] → [batch, heads, time, dim]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch heads time dim"]) -> Float[Tensor, "batch time joined"]:
    """[batch, heads, time, dim] → [batch, time, heads · dim]"""
    return x.transpose(1, 2).flatten(2)


class DotMeasure(nn.Module):
    """q·k as it is."""

    def query(self, query: Tensor) -> Tensor:
        return query

    def key(self, key: Tensor) -> Tensor:
        return key


class CosineMeasure(DotMeasure):
    """q·k = scale_h · cos θ: both on the unit sphere, the scale put on q."""

    def __init__(self, config: Cosine, heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(
            torch.full((heads,), float(config.scale)), requires_grad=config.learnable
        )

    def query(self, query: Tensor) -> Tensor:
        return unit(query) * self.scale[:, None, None].to(query.dtype)

    def key(self, key: Tensor) -> Tensor:
        return unit(key)


class Attention(nn.Module):
    """One attention layer of a block. `MultiHeadAttention` is the same as a stand-alone layer."""

    def __init__(
        self,
        width: int,
        config: AttentionConfig,
        *,
        context_width: int | None = None,
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.width = width
        self.context_width = context_width or width
        self.names = "cross_" if cross else ""
        query_dim = config.heads * config.head_dim
        key_dim = config.kv_heads * config.head_dim
        self.query = Linear(width, query_dim, bias=config.bias)
        self.key = Linear(self.context_width, key_dim, bias=config.bias)
        self.value = Linear(
            self.context_width, config.kv_heads * config.value_width, bias=config.bias
        )
        self.output = Linear(config.heads * config.value_width, width, bias=config.output_bias)
        self.query_norm = make_head_norm(config.query_key_norm, config.heads, config.head_dim)
        self.key_norm = make_head_norm(config.query_key_norm, config.kv_heads, config.head_dim)
        self.measure = (
            CosineMeasure(config.kind, config.heads)
            if isinstance(config.kind, Cosine)
            else DotMeasure()
        )
        self.sinks = nn.Parameter(torch.zeros(config.heads)) if config.sinks else None
        self.fused_qkv: BlockedLinear | None = None

    @property
    def scale(self) -> float:
        """The factor on q·k: 1/√head_dim unless configured otherwise; cosine attention has its own
        scale."""
        kind = self.config.kind
        if isinstance(kind, Dot):
            return 1 / math.sqrt(self.config.head_dim) if kind.scale is None else kind.scale
        return 1.0

    def compute(
        self,
        x: Stream,
        context: Float[Tensor, "batch key context"] | None = None,
        *,
        place: Place,
        context_at: Int[Tensor, "#batch key"] | None = None,
        context_offset: int | None = None,
        store: Store | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Stream:
        """Attend from x to x and the cached keys and values of earlier tokens, or to the
        context."""
        x = record(self.names + "input", x)
        key_at, offset = (
            (place.query_at, place.offset) if context_at is None else (context_at, context_offset)
        )
        cached = None if store is None else store.recall()
        if cached is None:
            query, key, value = self.project(x, context)
            cached = KeyValues(
                self.as_keys(key, place), split_heads(value, self.config.kv_heads), key_at, offset
            )
            cached = cached if store is None else store.update(cached)
        else:
            query = self.query(x)
        query = self.as_queries(query, place)
        query = record(self.names + "query", query)
        key = record(self.names + "key", cached.key)
        value = record(self.names + "value", cached.value)
        documents = place.documents
        mask = Mask(
            place.query_at,
            cached.at,
            place.causal,
            self.config.window,
            cached.offset,
            documents,
            documents,
            place.explicit,
        )
        scoring = self.scoring(mask, place.bias, record)
        if record.wants(self.names + "weights"):
            mixed = mix(
                record(self.names + "weights", attention_weights(query, key, scoring)), value
            )
        else:
            mixed = attend(query, key, value, scoring, kernel=kernel)
        return self.output(merge_heads(record(self.names + "heads", mixed)))

    def project(
        self, x: Stream, context: Float[Tensor, "batch key context"] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x W_Q, y W_K, y W_V: three products, or one where they were fused for inference
        (see `packed_weights`) or a gradient will be needed."""
        parts = (self.query, self.key, self.value)
        if self.fused_qkv is not None and context is None and self.fused_qkv.suits(x):
            return self.fused_qkv(x).split([part.weight.shape[0] for part in parts], dim=-1)
        fusable = (
            self.config.softcap is None
            and self.sinks is None
            and all(type(part) is Linear for part in parts)
        )
        if context is None and fusable and kernels.learns(x):  # adapters stay separate
            query, key, value = kernels.linear_parts(
                x, [part.weight for part in parts], [part.bias for part in parts]
            )
            return query, key, value
        context = x if context is None else context
        return self.query(x), self.key(context), self.value(context)

    def as_queries(
        self, query: Float[Tensor, "batch time joined"], place: Place
    ) -> Float[Tensor, "batch heads time head_dim"]:
        """x W_Q as heads: normed, rotated, measured."""
        return self.measure.query(
            rotate(split_heads(self.query_norm(query), self.config.heads), place.rotation)
        )

    def as_keys(
        self, key: Float[Tensor, "batch key joined"], place: Place
    ) -> Float[Tensor, "batch kv_heads key head_dim"]:
        """y W_K as heads: normed, rotated, measured."""
        return self.measure.key(
            rotate(split_heads(self.key_norm(key), self.config.kv_heads), place.rotation)
        )

    def scoring(self, mask: Mask, bias: Bias | None, record: Record = NOTHING) -> Scoring:
        """Scale, bias, soft-cap, sinks and dropout for this mask."""
        mask = record(self.names + "mask", mask)
        bias = record(self.names + "bias", bias)
        dropout = self.config.dropout if self.training else 0.0
        return Scoring(mask, self.scale, bias, self.config.softcap, self.sinks, dropout)


class MultiHeadAttention(Attention):
    """Multi-head attention as a layer for any model.

    attention = MultiHeadAttention(64, heads=8)
    y = attention(x)                                  # x [batch, time, 64] → y [batch, time, 64]
    y, weights = attention(x, return_weights=True)    # weights [batch, 8, time, time]
    y = attention(x, memory, key_padding=padding)     # cross-attention; memory may have another
                                                      # length
    y = attention(x, mask=mask)                       # mask [time, time], True = may attend

    `head_dim` is the size of a head's queries and keys (default: width / heads), `value_dim` that
    of its values (default: head_dim). With a `window` w, a query attends only to keys at a distance
    below w."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        window: int | None = None,
        positions: AttentionPosition | None = None,
        kind: Literal["dot", "cosine"] | Dot | Cosine = "dot",
        bias: bool = True,
    ) -> None:
        config = check.attention_config(
            width,
            heads,
            kv_heads,
            head_dim,
            positions,
            kind,
            bias,
            value_dim=value_dim,
            window=window,
        )
        super().__init__(width, config)
        relative = config.positions if isinstance(config.positions, RelativeBias) else None
        self.relative = (
            RelativeTable(relative.buckets, relative.max_distance, heads, causal=False)
            if relative
            else None
        )

    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        causal: bool = False,
        key_padding: Tensor | None = None,
        mask: Tensor | None = None,
        kernel: Kernel = "fused",
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        causal: bool = False,
        key_padding: Tensor | None = None,
        mask: Tensor | None = None,
        kernel: Kernel = "fused",
        return_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        causal: bool = False,
        key_padding: Bool[Tensor, "batch key"] | None = None,
        mask: Bool[Tensor, ...] | None = None,
        kernel: Kernel = "fused",
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Self-attention, or cross-attention to `context`.

        `key_padding` [batch, key] is True where a key is padding, which is never attended to
        (`attention_mask == 0` of Hugging Face, `key_padding_mask` of torch.nn). `mask` is True
        where a query may attend to a key: [query, key], or [batch, heads, query, key] with axes of
        size 1 broadcast (`attn_mask` of scaled_dot_product_attention; nn.MultiheadAttention means
        the opposite). A key is attended to where padding, mask, `causal` and window all allow it; a
        query without any key gets only the output layer's bias.
        """
        check.multi_head_call(
            x,
            context,
            self.width,
            self.config,
            key_padding,
            mask,
            causal=causal,
            parameter=self.query.weight,
        )
        keys = x.shape[1] if context is None else context.shape[1]
        query_at = torch.arange(x.shape[1], device=x.device)[None]
        key_at, offset = key_positions(keys, key_padding, x.device)
        place = place_for(
            self.config.positions,
            self.config.head_dim,
            self.config.heads,
            query_at,
            offset,
            causal=causal,
            table=self.relative,
        )
        place = replace(place, explicit=four_axes(mask))
        record = Recorder({"query", "key", "mask"}) if return_weights else NOTHING
        mixed = self.compute(
            x,
            context,
            place=place,
            context_at=key_at,
            context_offset=offset,
            kernel=kernel,
            record=record,
        )
        if isinstance(record, Recorder):
            query, key, final_mask = (
                record["model", None, name] for name in ("query", "key", "mask")
            )
            return mixed, attention_weights(query, key, self.scoring(final_mask, place.bias))
        return mixed


def key_positions(
    keys: int, padding: Bool[Tensor, "batch key"] | None, device: torch.device
) -> tuple[Int[Tensor, "#batch key"], int | None]:
    """Positions of the keys, −1 for padding, and the offset if there is no padding."""
    at = torch.arange(keys, device=device)[None]
    return (at, 0) if padding is None else (at.masked_fill(padding, -1), None)


def four_axes(mask: Bool[Tensor, ...] | None) -> Bool[Tensor, "#batch #heads #query #key"] | None:
    """[query, key] as [1, 1, query, key]."""
    return mask[None, None] if mask is not None and mask.dim() == 2 else mask


def attention(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch kv_heads key head_dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    causal: bool = False,
    window: int | None = None,
    key_padding: Bool[Tensor, "batch key"] | None = None,
    mask: Bool[Tensor, ...] | None = None,
    bias: Float[Tensor, ...] | None = None,
    scale: float | None = None,
    kernel: Kernel = "fused",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale + bias) v over the allowed keys.

    `key_padding` [batch, key] is True where a key is padding, which is never attended to.
    `mask` is True where a query may attend to a key: [query, key], or [batch, heads, query, key]
    with axes of size 1 broadcast. With `causal` or a `window`, the last query is aligned with the
    last key, so a few new queries may follow many cached keys. A key is attended to where all of
    these allow it; a query without any key gets zeros. With `return_weights` the weights
    [batch, heads, query, key] are recomputed beside the kernel.
    """
    check.attention_call(
        query,
        key,
        value,
        window=window,
        key_padding=key_padding,
        mask=mask,
        bias=bias,
        kernel=kernel,
    )
    queries = query.shape[2]
    keys = key.shape[2]
    aligned = keys - queries if causal or window is not None else 0
    query_at = torch.arange(aligned, aligned + queries, device=query.device)[None]
    key_at, offset = key_positions(keys, key_padding, query.device)
    known = None if offset is None or aligned < 0 else aligned
    predicate = Mask(query_at, key_at, causal, window, known, explicit=four_axes(mask))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scoring = Scoring(predicate, scale, None if bias is None else TensorBias(bias))
    mixed = attend(query, key, value, scoring, kernel=kernel)
    return (mixed, attention_weights(query, key, scoring)) if return_weights else mixed
