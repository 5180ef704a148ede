"""Scaled dot-product attention: the equation, the fused kernel, and the one place that chooses
between them.

    scores  = q kᵀ · scale                [batch, heads, query, key]
    scores  = cap · tanh(scores / cap)    where a soft-cap is set
    scores  = scores + bias               ALiBi, T5
    weights = softmax(scores)             over the allowed keys, in float32; a row with none is all
                                          zeros
    output  = weights v                   [batch, heads, query, value_dim]

q has `heads` heads, k and v may have fewer (grouped-query): each is shared by heads / kv_heads
query heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.core.masks import Mask
from sightline.core.norms import at_least_float32
from sightline.core.positions import Bias
from sightline.kernels import library as kernels

Kernel = Literal["equation", "fused"]
Queries = Float[Tensor, "batch heads query head_dim"]
Keys = Float[Tensor, "batch kv_heads key head_dim"]
Values = Float[Tensor, "batch kv_heads key value_dim"]
Weights = Float[Tensor, "batch heads query key"]
Mixed = Float[Tensor, "batch heads query value_dim"]

TILE = 1 << 21  # elements of a mask or bias that are in memory at once
# Up to this many tokens, two plain products are up to twice as fast as torch's flash kernel on a
# CPU.
SHORT = 96


@dataclass(frozen=True)
class Scoring:
    """Everything between q·k and the softmax: scale, soft-cap, bias, sinks, mask."""

    mask: Mask
    scale: float
    bias: Bias | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None
    dropout: float = 0.0

    def tile(self, rows: slice, columns: slice) -> Scoring:
        """The same for some of the queries and keys."""
        bias = None if self.bias is None else self.bias.tile(rows, columns)
        return replace(self, mask=self.mask.tile(rows, columns), bias=bias)


def attend(
    query: Queries, key: Keys, value: Values, scoring: Scoring, *, kernel: Kernel = "fused"
) -> Mixed:
    """softmax(q kᵀ · scale + bias) v, by the requested kernel."""
    if kernel == "equation" or (not scoring.mask.hides_nothing and _has_nan(key, value)):
        return equation(query, key, value, scoring)
    return fused(query, key, value, scoring)


def _has_nan(key: Tensor, value: Tensor) -> bool:
    """0 · NaN is NaN in every fused kernel, so a NaN behind a mask would leak; one sum over k and v
    detects it."""
    if torch.compiler.is_compiling() or key.device.type != "cpu":
        return False
    total = key.detach().sum(dtype=torch.float32) + value.detach().sum(dtype=torch.float32)
    return not math.isfinite(float(total))


# ----------------------------------------------------------------------------------- the equation


def equation(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """The formula, line by line."""
    weights = attention_weights(query, key, scoring)
    if scoring.dropout:
        weights = F.dropout(weights, scoring.dropout)
    return mix(weights, value)


def attention_scores(query: Queries, key: Keys, scoring: Scoring) -> Weights:
    """q kᵀ · scale, soft-capped, plus bias; before the mask."""
    key = repeat_kv_heads(key, query.shape[1])
    scores = at_least_float32(query) @ at_least_float32(key).transpose(-2, -1) * scoring.scale
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    if scoring.bias is not None:
        scores = scores + scoring.bias(scoring.mask.query_at, scoring.mask.key_at)
    return scores


def attention_weights(query: Queries, key: Keys, scoring: Scoring) -> Weights:
    """softmax over the allowed keys; exactly 0 elsewhere."""
    scores = attention_scores(query, key, scoring)
    allowed = scoring.mask.allowed()
    if scoring.bias is not None:  # a bias may hide a key as well, with −∞
        allowed = allowed & ~scores.isneginf()
    return masked_softmax(scores, allowed, scoring.sinks).to(query.dtype)


def masked_softmax(
    scores: Weights,
    allowed: Bool[Tensor, "#batch #heads query key"],
    sinks: Float[Tensor, " heads"] | None = None,
) -> Weights:
    """exp(s_j) / Σ exp(s) over the allowed j, plus exp(sink_h) in the sum where a head has a
    sink."""
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    if sinks is None:
        return scores.softmax(-1) * allowed
    sink = sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1] * allowed


def mix(weights: Weights, value: Values) -> Mixed:
    """Σ_j w_ij v_j, where a weight of zero silences even NaN and infinity."""
    value = repeat_kv_heads(value, weights.shape[1])
    broken = ~value.isfinite().all(-1)
    if torch.compiler.is_compiling() or not bool(broken.any()):
        return weights.to(value.dtype) @ value
    tainted = ((weights != 0) & broken[..., None, :]).any(-1, keepdim=True)
    clean = weights.to(value.dtype) @ value.masked_fill(broken[..., None], 0)
    return clean.masked_fill(tainted, math.nan)


def repeat_kv_heads(
    x: Float[Tensor, "batch kv_heads key dim"], heads: int
) -> Float[Tensor, "batch heads key dim"]:
    """Each key-value head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


# ------------------------------------------------------------------------------------- the kernel


def fused(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Our kernel where each query attends to one contiguous range of keys, else torch's. Masks and
    biases are built and used tile by tile, so that memory stays linear."""
    mask = scoring.mask
    mask_only = scoring.bias is None and scoring.softcap is None and scoring.sinks is None
    if (
        mask_only
        and 1 < mask.queries <= SHORT
        and mask.keys <= SHORT
        and _scores_are_cheap(query, key, scoring)
    ):
        return _unfused(query, key, value, scoring)
    if (
        mask_only
        and _own_kernel_fits(query, key, value, scoring)
        and (ranges := mask.key_ranges()) is not None
    ):
        first, end = (
            (None, None)
            if mask.hides_nothing
            else (x.expand(len(query), -1).contiguous() for x in ranges)
        )
        return kernels.attention(query, key, value, scale=scoring.scale, first=first, end=end)
    if mask_only and (mask.hides_nothing or mask.is_triangle):
        return _flash(query, key, value, scoring, None, triangle=not mask.hides_nothing)
    shared_by_heads = mask_only and mask.explicit is None
    rows = max(64, TILE // max(1, mask.keys * (1 if shared_by_heads else query.shape[1])))
    if rows >= mask.queries:
        return _tile(query, key, value, scoring)
    mixed: list[Tensor] = []
    for start in range(0, mask.queries, rows):
        band = slice(start, min(start + rows, mask.queries))
        columns = mask.columns(band)
        mixed.append(
            _tile(
                query[:, :, band],
                key[:, :, columns],
                value[:, :, columns],
                scoring.tile(band, columns),
            )
        )
    return torch.cat(mixed, dim=2)


def _scores_are_cheap(query: Queries, key: Keys, scoring: Scoring) -> bool:
    """Whether the score matrix can be materialised: float32 on a CPU, without gradient or
    dropout."""
    needs_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    return (
        query.dtype == torch.float32
        and query.device.type == "cpu"
        and not needs_gradient
        and not scoring.dropout
    )


def _own_kernel_fits(query: Queries, key: Keys, value: Values, scoring: Scoring) -> bool:
    """Whether our kernel supports these tensors. A single query is faster with torch."""
    return (
        kernels.suits(query, key, value)
        and query.shape[-1] == value.shape[-1]
        and scoring.mask.queries > 1
        and not scoring.dropout
    )


def _unfused(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """The equation without its NaN guards: `attend` has checked for NaN behind a mask."""
    scores = (query * scoring.scale) @ repeat_kv_heads(key, query.shape[1]).transpose(-2, -1)
    value = repeat_kv_heads(value, query.shape[1])
    if scoring.mask.hides_nothing:
        return scores.softmax(-1) @ value
    allowed = scoring.mask.allowed()
    return (
        scores.masked_fill_(~allowed, torch.finfo(scores.dtype).min).softmax(-1) * allowed
    ) @ value


def _tile(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """One band of queries, with its mask and bias in memory. The flash kernel has no soft-cap and
    no sinks."""
    if scoring.softcap is not None or scoring.sinks is not None:
        return equation(query, key, value, scoring)
    allowed = scoring.mask.allowed()
    if scoring.bias is None:
        return _flash(query, key, value, scoring, allowed)
    bias = scoring.bias(scoring.mask.query_at, scoring.mask.key_at).to(query.dtype)
    return _flash(query, key, value, scoring, bias.masked_fill(~allowed, -math.inf))


def _flash(
    query: Queries,
    key: Keys,
    value: Values,
    scoring: Scoring,
    mask: Tensor | None,
    *,
    triangle: bool = False,
) -> Mixed:
    """torch's kernel needs q, k and v of one size, so the smaller are padded with zeros, which
    change no score."""
    largest = max(query.shape[-1], value.shape[-1])
    value_dim = value.shape[-1]
    query, key, value = (
        x if x.shape[-1] == largest else F.pad(x, (0, largest - x.shape[-1]))
        for x in (query, key, value)
    )
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=triangle,
        dropout_p=scoring.dropout,
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed[..., :value_dim]
