"""Summary statistics of attention and the residual stream, by layer and head.

    entropy   H_i = −Σ_j w_ij ln w_ij    in nats; exp(H_i) is the effective number of keys of a
                                         query
    span      Σ_j w_ij |i − j|           mean attention distance, in tokens
    first     w_i0                       weight on the first token, the usual sink
    norm      ‖x_n‖                      of the stream that enters block n

Each is a mean over queries. With learned sinks, the weights on real keys are renormalized to sum to
1 first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.attributions.frozen import streams_of
from sightline.lens.trace.layer import Look
from sightline.lens.trace.prompt import Text, trace_prompt
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace

Table = Float[Tensor, "layer head"]


@dataclass(frozen=True, slots=True)
class AttentionMeasures:
    """One number per layer and head; NaN where a layer has fewer heads than another. `layers` are
    the layers of the rows.

    `keys` is the mean of exp(H_i). `first` leaves out queries with a single visible key (the first
    token of a causal model). `span` is None for cross-attention, where distances are undefined."""

    name: str
    stack: str
    cross: bool
    layers: tuple[int, ...]
    entropy: Table
    keys: Table
    first: Table
    span: Table | None

    def __repr__(self) -> str:
        kind = " cross-attention" if self.cross else ""
        layers, heads = self.entropy.shape
        name = self.name or "a model"
        return f"<AttentionMeasures of {name} {self.stack}{kind}: {layers} layers × {heads} heads>"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        return _json_fields(self)


def attention_measures(
    trace: Trace, *, stack: str | None = None, cross: bool = False
) -> AttentionMeasures:
    """Entropy, effective number of keys, span and first-token weight of every traced head."""
    name = trace.stack_named(stack)
    if cross:
        trace.look(0, stack=name, cross=True)
    layers = sorted(site[1] for site in trace.looks if site[0] == name and site[2] == cross)
    if not layers:
        raise InputError(
            "a trace without attention",
            expected="query and key in it",
            fix="trace(text, what=('query', 'key'))",
        )
    rows = [_layer_means(trace.look(layer, stack=name, cross=cross)) for layer in layers]
    entropy, keys, first, span = (_padded_table([row[n] for row in rows]) for n in range(4))
    return AttentionMeasures(
        trace.name, name, cross, tuple(layers), entropy, keys, first, None if cross else span
    )


def attention_entropy(trace: Trace, *, stack: str | None = None, cross: bool = False) -> Table:
    """The mean entropy of each head, in nats: `[layers, heads]`."""
    return attention_measures(trace, stack=stack, cross=cross).entropy


def effective_keys(trace: Trace, *, stack: str | None = None, cross: bool = False) -> Table:
    """The effective number of keys of each head, exp(H): `[layers, heads]`."""
    return attention_measures(trace, stack=stack, cross=cross).keys


def attention_span(trace: Trace, *, stack: str | None = None) -> Table:
    """The mean attention distance of each head, in tokens: `[layers, heads]`."""
    span = attention_measures(trace, stack=stack).span
    assert span is not None
    return span


def first_token_share(trace: Trace, *, stack: str | None = None, cross: bool = False) -> Table:
    """The weight of each head on the first token: `[layers, heads]`."""
    return attention_measures(trace, stack=stack, cross=cross).first


def _layer_means(look: Look) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four means of one layer, each `[heads]`; the map is rebuilt by bands of rows."""
    mask = look.scoring.mask
    sums = torch.zeros(4, look.heads, dtype=torch.float64)
    rows_with_choice = 0
    for band in look.bands(range(look.queries)):
        weights = look.weights(rows=band).double().cpu()
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        tile = mask.tile(band, slice(0, mask.keys))
        has_choice = (tile.allowed()[0, 0].sum(-1) > 1).cpu()
        distance = (tile.query_at[0, :, None] - tile.key_at[0, None]).abs().cpu()
        entropy = -torch.xlogy(weights, weights).sum(-1)
        sums += torch.stack(
            (
                entropy.sum(-1),
                entropy.exp().sum(-1),
                weights[:, has_choice, 0].sum(-1),
                (weights * distance).sum((-2, -1)),
            )
        )
        rows_with_choice += int(has_choice.sum())
    entropy, keys, first, span = sums
    return (
        entropy / look.queries,
        keys / look.queries,
        first / rows_with_choice if rows_with_choice else torch.ones_like(first),
        span / look.queries,
    )


def _padded_table(rows: Sequence[Tensor]) -> Table:
    """[layer, head], padded with NaN."""
    width = max(len(row) for row in rows)
    return torch.stack(
        [torch.cat((row, row.new_full((width - len(row),), torch.nan))) for row in rows]
    ).float()


@dataclass(frozen=True, slots=True)
class NormGrowth:
    """‖x‖ of the stream that enters each block and leaves the last one before the final norm
    (`stream[-1]`), and of the update of each residual step. Columns are tokens."""

    name: str
    stack: str
    tokens: tuple[Token, ...]
    stream: Float[Tensor, "row time"]
    attention: Float[Tensor, "layer time"]
    feed_forward: Float[Tensor, "layer time"]
    cross_attention: Float[Tensor, "layer time"] | None = None

    def __repr__(self) -> str:
        name = self.name or "a model"
        sizes = f"{len(self.attention)} layers, {len(self.tokens)} tokens"
        ends = f"mean norm {float(self.mean[0]):.3g} → {float(self.mean[-1]):.3g}"
        return f"<NormGrowth of {name} {self.stack}: {sizes}, {ends}>"

    @property
    def mean(self) -> Float[Tensor, " row"]:
        """The mean over tokens."""
        return self.stream.mean(-1)

    @property
    def growth(self) -> Float[Tensor, " layer"]:
        """The ratio of the mean norms after and before each block."""
        return self.mean[1:] / self.mean[:-1]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        return _json_fields(self) | {"mean": self.mean.tolist(), "growth": self.growth.tolist()}


def norm_growth(
    subject: Subject, text: Text | Trace, *, source: Text | None = None, stack: str | None = None
) -> NormGrowth:
    """The norm of the residual stream, by layer and token."""
    trace = trace_prompt(subject, text, source=source, what=_residual_steps(subject))
    name = trace.stack_named(stack)
    layers = trace.config.stacks[name].layers
    has_cross = trace.config.stacks[name].block(0).cross_attention is not None

    def norms(what: str) -> Tensor:
        return torch.stack(
            [trace.kept[name, layer, what].float().norm(dim=-1) for layer in range(layers)]
        )

    transformer = subject.transformer
    module = transformer.decoder if name == "decoder" else transformer.encoder
    assert module is not None
    block = module[layers - 1]
    with torch.no_grad():
        last_norms = (
            streams_of(block, lambda what: trace.kept[name, layers - 1, what])[-1]
            .float()
            .norm(dim=-1)
        )
    cross = norms("cross_attention") if has_cross else None
    stream = torch.cat((norms("residual"), last_norms[None]))
    return NormGrowth(
        trace.name,
        name,
        trace.tokens_of(name),
        stream,
        norms("attention"),
        norms("feed_forward"),
        cross,
    )


def _residual_steps(subject: Subject) -> tuple[str, ...]:
    config = subject.transformer.config
    has_cross = config.encoder is not None and config.decoder is not None
    return ("residual", "attention", "feed_forward", *(("cross_attention",) if has_cross else ()))


def _json_fields(measured: AttentionMeasures | NormGrowth) -> dict[str, Any]:
    """The fields as JSON values: tensors as lists with None for NaN, tokens as their texts."""
    result: dict[str, Any] = {}
    for name in (field.name for field in fields(measured)):
        value = getattr(measured, name)
        if isinstance(value, Tensor):
            value = [
                [None if number != number else number for number in row] for row in value.tolist()
            ]
        elif name == "tokens":
            value = [token.text for token in value]
        result[name] = list(value) if isinstance(value, tuple) else value
    return result
