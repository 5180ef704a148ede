"""Attention composed over layers (rollout, flow), and value-weighted attention.

rollout    A'_n = r I + (1 − r) mean_h A_n,  R_n = A'_n R_{n−1},  r = ½ (Abnar & Zuidema 2020)
flow       the maximum flow from a token at the top to one at the bottom, with each A'_n as the
           capacities of one layer (same paper)
weighted   ‖w_ij · v_j W_O‖: the norm of what is transferred, not only its weight
           (Kobayashi et al. 2020)

In an encoder–decoder the decoder's stream mixes target tokens, then source tokens: x ← r x + (1 −
r) (C E), with C the cross-attention and E the encoder's rollout. A row over target and source
tokens together sums to 1, unless heads have learned sinks, which absorb a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.attention import repeat_kv_heads
from sightline.errors import InputError
from sightline.lens.attributions.frozen import affine
from sightline.lens.trace.layer import Look, Map, Rows, attention_at, checked_index, checked_rows
from sightline.lens.trace.prompt import Text, trace_attention
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace

UNITS = 1 << 30  # scipy's capacities are 32-bit integers; at most 1 unit of flow leaves the top


@dataclass(frozen=True, slots=True)
class Rollout:
    """`maps[n]`: the share of each token after layer n that comes from each input token;
    `source_maps` likewise from each source token."""

    name: str
    stack: str
    tokens: tuple[Token, ...]
    source: tuple[Token, ...] | None
    maps: Float[Tensor, "layer query key"]
    source_maps: Float[Tensor, "layer query source"] | None = None

    def __repr__(self) -> str:
        name = self.name or "a model"
        return (
            f"<Rollout of {name} {self.stack}: {len(self.maps)} layers, {len(self.tokens)} tokens>"
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        return {
            "name": self.name,
            "stack": self.stack,
            "tokens": [token.text for token in self.tokens],
            "source": None if self.source is None else [token.text for token in self.source],
            "maps": self.maps.tolist(),
            "source_maps": None if self.source_maps is None else self.source_maps.tolist(),
        }


def rollout(
    trace: Trace, *, stack: str | None = None, keep: float = 0.5, last_only: bool = False
) -> Rollout:
    """The rollout up to each layer (with `last_only`: up to the last layer only). `keep` is the
    share of the stream that a residual step keeps."""
    name = checked_stack(trace, stack, keep)
    maps = list[Tensor]()
    source_maps = list[Tensor]()
    encoder_map = (
        rollout(trace, stack="encoder", keep=keep, last_only=True).maps[-1]
        if has_cross_attention(trace, name)
        else None
    )
    target_map = torch.eye(
        len(trace.tokens_of(name)), device=trace.look(0, stack=name).query.device
    )
    source_map = (
        None if encoder_map is None else target_map.new_zeros(len(target_map), len(encoder_map))
    )
    for layer in range(trace.config.stacks[name].layers):
        step = with_residual(keep, mean_weights(trace.look(layer, stack=name)))
        target_map = step @ target_map
        source_map = None if source_map is None else step @ source_map
        if source_map is not None:
            assert encoder_map is not None
            target_map = keep * target_map
            source_map = (
                keep * source_map
                + (1 - keep) * mean_weights(trace.look(layer, stack=name, cross=True)) @ encoder_map
            )
        maps[:], source_maps[:] = ([], []) if last_only else (maps, source_maps)
        maps.append(target_map)
        source_maps += [] if source_map is None else [source_map]
    source_tokens = trace.source if source_maps else None
    return Rollout(
        trace.name,
        name,
        trace.tokens_of(name),
        source_tokens,
        torch.stack(maps),
        torch.stack(source_maps) if source_maps else None,
    )


def checked_stack(trace: Trace, stack: str | None, keep: float) -> str:
    """The stack's name, if every one of its tokens was traced as a query."""
    name = trace.stack_named(stack)
    if not 0 <= keep <= 1:
        raise InputError(f"keep is {keep}", expected="0 to 1", fix="keep=0.5")
    if trace.look(0, stack=name).queries != len(trace.tokens_of(name)):
        raise InputError(
            "a trace of new tokens only", expected="one of the whole text", fix="model.trace(text)"
        )
    return name


def has_cross_attention(trace: Trace, stack: str) -> bool:
    return trace.config.stacks[stack].block(0).cross_attention is not None


def with_residual(keep: float, weights: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """r I + (1 − r) A"""
    return keep * torch.eye(len(weights), device=weights.device) + (1 - keep) * weights


def mean_weights(look: Look) -> Float[Tensor, "query key"]:
    """The mean over heads, one band of rows at a time."""
    return torch.cat([look.weights(rows=band).mean(0) for band in look.bands(range(look.queries))])


# ------------------------------------------------------------------------------------------- flow


@dataclass(frozen=True, slots=True)
class Flow:
    """The maximum flow from one token after `layer` to each input token; each flow is computed
    independently, so they do not sum to 1."""

    name: str
    stack: str
    layer: int
    position: int
    tokens: tuple[Token, ...]
    source: tuple[Token, ...] | None
    flows: Float[Tensor, " key"]
    source_flows: Float[Tensor, " source"] | None = None

    def __repr__(self) -> str:
        name = self.name or "a model"
        start = f"layer {self.layer}, position {self.position}"
        return f"<Flow of {name} {self.stack}: from {start} to {len(self.tokens)} tokens>"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        return {
            "name": self.name,
            "stack": self.stack,
            "layer": self.layer,
            "position": self.position,
            "tokens": [token.text for token in self.tokens],
            "source": None if self.source is None else [token.text for token in self.source],
            "flows": self.flows.tolist(),
            "source_flows": None if self.source_flows is None else self.source_flows.tolist(),
        }


Edges = tuple[int, int, Tensor]  # first upper node, first lower node, capacities [upper, lower]


def attention_flow(
    trace: Trace,
    *,
    position: int = -1,
    layer: int = -1,
    stack: str | None = None,
    keep: float = 0.5,
) -> Flow:
    """The maximum flow from one token down to each token of the text, and of the source."""
    name = checked_stack(trace, stack, keep)
    layers = trace.config.stacks[name].layers
    time = len(trace.tokens_of(name))
    layer = checked_index("layer", layer, layers)
    position = checked_index("position", position, time)
    has_cross = has_cross_attention(trace, name)
    source = len(trace.source or ()) if has_cross else 0
    below = (
        list(_edges(trace, "encoder", 0, keep, trace.config.stacks["encoder"].layers))
        if has_cross
        else []
    )
    bottom = source * (len(below) + 1) if has_cross else 0
    edges = [
        *below,
        *_edges(
            trace, name, bottom, keep, layer + 1, encoder_top=bottom - source if has_cross else None
        ),
    ]
    top = bottom + time * (layer + 1) * (2 if has_cross else 1) + position
    flows = _maximum_flows(edges, top, [*range(bottom, bottom + time), *range(source)])
    source_tokens = trace.source if has_cross else None
    return Flow(
        trace.name,
        name,
        layer,
        position,
        trace.tokens_of(name),
        source_tokens,
        flows[:time],
        flows[time:] if has_cross else None,
    )


def _edges(
    trace: Trace, stack: str, first: int, keep: float, layers: int, encoder_top: int | None = None
) -> Iterator[Edges]:
    """Edges from each level of a stack to the one below; cross-attention is a separate level, with
    edges to the encoder's top."""
    time = len(trace.tokens_of(stack))
    for layer in range(layers):
        yield first + time, first, with_residual(keep, mean_weights(trace.look(layer, stack=stack)))
        first += time
        if encoder_top is not None:
            yield first + time, first, keep * torch.eye(time)
            yield (
                first + time,
                encoder_top,
                (1 - keep) * mean_weights(trace.look(layer, stack=stack, cross=True)),
            )
            first += time


def _maximum_flows(edges: list[Edges], top: int, bottoms: list[int]) -> Float[Tensor, " bottom"]:
    """The maximum flow from the top to each bottom node (Dinic's algorithm, in scipy)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    rows = list[np.ndarray]()
    columns = list[np.ndarray]()
    sizes = list[np.ndarray]()
    for upper, lower, capacity in edges:
        units = (capacity.double().cpu() * UNITS).round().to(torch.int32).numpy()
        row, column = units.nonzero()
        rows.append(row + upper)
        columns.append(column + lower)
        sizes.append(units[row, column])
    nodes = max(top, *(int(row.max()) for row in rows)) + 1
    where = np.concatenate(rows), np.concatenate(columns)
    graph = coo_array((np.concatenate(sizes), where), shape=(nodes, nodes)).tocsr()
    return torch.tensor([maximum_flow(graph, top, bottom).flow_value / UNITS for bottom in bottoms])


# --------------------------------------------------------------------------------- value-weighted


def value_weighted(
    subject: Subject,
    text: Text | Trace,
    *,
    layer: int,
    head: int | None = None,
    rows: Rows = None,
    source: Text | None = None,
    stack: str | None = None,
    cross: bool = False,
    together: bool = False,
    normalise: bool = False,
) -> Map:
    """‖w_ij v_j W_O‖ of each head, `[heads, query, key]`, of one head, `[query, key]`, or, with
    `together`, of the sum over heads, ‖Σ_h w_ij v_j W_O‖.

    A norm after attention (sandwich, output) is not applied. With `normalise` each row sums to 1.
    """
    trace = trace_attention(subject, text, source=source, value=True)
    look = trace.look(layer, stack=stack, cross=cross)
    if together and head is not None:
        raise InputError(
            f"head {head} and all of them together", expected="one of the two", fix="leave head out"
        )
    outputs = transformed_values(subject, look)  # [heads, key, width]
    selected = list(checked_rows(rows, look.queries))
    if together:
        inner = torch.einsum("hkw,gkw->khg", outputs, outputs)
        bands = [_norm_of_sum(look.weights(rows=band), inner) for band in look.bands(selected)]
        result = torch.cat(bands) if bands else outputs.new_zeros(0, outputs.shape[1])
    else:
        norms = outputs.norm(dim=-1)
        result = look.weights(head, selected) * (
            norms[:, None] if head is None else norms[checked_index("head", head, look.heads)]
        )
    result = (
        result / result.sum(-1, keepdim=True).clamp(min=torch.finfo(result.dtype).tiny)
        if normalise
        else result
    )
    return result[..., 0, :] if isinstance(rows, int) else result


@torch.no_grad()
def transformed_values(subject: Subject, look: Look) -> Float[Tensor, "heads key width"]:
    """v_j W_O of each head: the update that a query with weight 1 on token j would receive."""
    value = repeat_kv_heads(look.needed_value(), look.heads)[0].float()
    weight, _ = affine(
        attention_at(subject.transformer, look.site).output, look.heads * value.shape[-1]
    )
    return value @ weight.detach().float().T.unflatten(0, (look.heads, -1))


def _norm_of_sum(
    weights: Float[Tensor, "heads query key"], inner: Float[Tensor, "key heads other"]
) -> Float[Tensor, "query key"]:
    """√(Σ_hg w_h w_g u_h·u_g): the norm of the sum over heads, without forming the sum."""
    return torch.einsum("hqk,khg,gqk->qk", weights, inner, weights).clamp(min=0).sqrt()
