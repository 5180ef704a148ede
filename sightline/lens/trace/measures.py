"""Plain numbers about attention and the residual stream, by layer and head.

    entropy   H_i = −Σ_j w_ij ln w_ij    in nats; exp(H_i) is the effective number of keys that a
                                         query looks at
    span      Σ_j w_ij |i − j|           how far it looks, in tokens
    first     w_i0                       what goes to the first token, the usual sink
    norm      ‖x_n‖                      of the stream that enters block n

Each is a mean over queries. Where heads have learned sinks, the weights on real keys are made to
sum to 1 first.
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
from sightline.lens.trace.prompt import Text, seen
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace

Table = Float[Tensor, "layer head"]


@dataclass(frozen=True, slots=True)
class AttentionMeasures:
    """One number per layer and head; NaN where a layer has fewer heads than another. `layers` says
    which layers the rows are.

    `keys` is the mean of exp(H_i). `first` leaves out queries that have no choice (the first token
    of a causal text). `span` is None for cross-attention: two texts have no common distance."""

    name: str
    stack: str
    cross: bool
    layers: tuple[int, ...]
    entropy: Table
    keys: Table
    first: Table
    span: Table | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return _plain(self)


def attention_measures(
    trace: Trace, *, stack: str | None = None, cross: bool = False
) -> AttentionMeasures:
    """Entropy, effective number of keys, span and share of the first token, for every head that was
    traced."""
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
    rows = [_of_layer(trace.look(layer, stack=name, cross=cross)) for layer in layers]
    entropy, keys, first, span = (_table([row[n] for row in rows]) for n in range(4))
    return AttentionMeasures(
        trace.name, name, cross, tuple(layers), entropy, keys, first, None if cross else span
    )


def attention_entropy(trace: Trace, *, stack: str | None = None, cross: bool = False) -> Table:
    """The mean entropy of each head, in nats: `[layers, heads]`."""
    return attention_measures(trace, stack=stack, cross=cross).entropy


def effective_keys(trace: Trace, *, stack: str | None = None, cross: bool = False) -> Table:
    """How many keys each head looks at, exp(H): `[layers, heads]`."""
    return attention_measures(trace, stack=stack, cross=cross).keys


def attention_span(trace: Trace, *, stack: str | None = None) -> Table:
    """How far each head looks, in tokens: `[layers, heads]`."""
    span = attention_measures(trace, stack=stack).span
    assert span is not None
    return span


def first_token_share(trace: Trace, *, stack: str | None = None, cross: bool = False) -> Table:
    """What each head gives to the first token: `[layers, heads]`."""
    return attention_measures(trace, stack=stack, cross=cross).first


def _of_layer(look: Look) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four means of one layer, each `[heads]`; its map is rebuilt a band at a time."""
    mask = look.scoring.mask
    sums = torch.zeros(4, look.heads, dtype=torch.float64)
    chosen = 0
    for band in look.bands(range(look.queries)):
        weights = look.weights(rows=band).double().cpu()
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        tile = mask.tile(band, slice(0, mask.keys))
        choice = (tile.allowed()[0, 0].sum(-1) > 1).cpu()
        distance = (tile.query_at[0, :, None] - tile.key_at[0, None]).abs().cpu()
        entropy = -torch.xlogy(weights, weights).sum(-1)
        sums += torch.stack(
            (
                entropy.sum(-1),
                entropy.exp().sum(-1),
                weights[:, choice, 0].sum(-1),
                (weights * distance).sum((-2, -1)),
            )
        )
        chosen += int(choice.sum())
    entropy, keys, first, span = sums
    return (
        entropy / look.queries,
        keys / look.queries,
        first / chosen if chosen else torch.ones_like(first),
        span / look.queries,
    )


def _table(rows: Sequence[Tensor]) -> Table:
    """[layer, head]"""
    most = max(len(row) for row in rows)
    return torch.stack(
        [torch.cat((row, row.new_full((most - len(row),), torch.nan))) for row in rows]
    ).float()


@dataclass(frozen=True, slots=True)
class NormGrowth:
    """‖x‖ of the stream that enters each block, and of what leaves the last one, before the final
    norm (`stream[-1]`); and of what each step adds. Columns are tokens."""

    name: str
    stack: str
    tokens: tuple[Token, ...]
    stream: Float[Tensor, "row time"]
    attention: Float[Tensor, "layer time"]
    feed_forward: Float[Tensor, "layer time"]
    cross_attention: Float[Tensor, "layer time"] | None = None

    @property
    def mean(self) -> Float[Tensor, " row"]:
        """The mean over tokens."""
        return self.stream.mean(-1)

    @property
    def growth(self) -> Float[Tensor, " layer"]:
        """How much longer the stream leaves each block than it came: the ratio of the means."""
        return self.mean[1:] / self.mean[:-1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return _plain(self) | {"mean": self.mean.tolist(), "growth": self.growth.tolist()}


def norm_growth(
    subject: Subject, asked: Text | Trace, *, source: Text | None = None, stack: str | None = None
) -> NormGrowth:
    """How long the residual stream is, layer by layer and token by token."""
    trace = seen(subject, asked, source=source, what=_steps(subject))
    name = trace.stack_named(stack)
    layers = trace.config.stacks[name].layers
    crossed = trace.config.stacks[name].block(0).cross_attention is not None

    def norms(what: str) -> Tensor:
        return torch.stack(
            [trace.kept[name, layer, what].float().norm(dim=-1) for layer in range(layers)]
        )

    owner = subject.running.decoder if name == "decoder" else subject.running.encoder
    assert owner is not None
    block = owner[layers - 1]
    with torch.no_grad():
        last = (
            streams_of(block, lambda what: trace.kept[name, layers - 1, what])[-1]
            .float()
            .norm(dim=-1)
        )
    cross = norms("cross_attention") if crossed else None
    stream = torch.cat((norms("residual"), last[None]))
    return NormGrowth(
        trace.name,
        name,
        trace.tokens_of(name),
        stream,
        norms("attention"),
        norms("feed_forward"),
        cross,
    )


def _steps(subject: Subject) -> tuple[str, ...]:
    config = subject.running.config
    crossed = config.encoder is not None and config.decoder is not None
    return ("residual", "attention", "feed_forward", *(("cross_attention",) if crossed else ()))


def _plain(measured: AttentionMeasures | NormGrowth) -> dict[str, Any]:
    """Tensors as lists with None for NaN, tokens as their texts."""
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(measured)):
        value = getattr(measured, name)
        if isinstance(value, Tensor):
            value = [
                [None if number != number else number for number in row] for row in value.tolist()
            ]
        elif name == "tokens":
            value = [token.text for token in value]
        found[name] = list(value) if isinstance(value, tuple) else value
    return found
