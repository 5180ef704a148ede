"""Attention through all layers at once, and attention weighted by what it carries.

rollout    A'_n = r I + (1 − r) mean_h A_n,  R_n = A'_n R_{n−1},  r = ½ (Abnar & Zuidema 2020)
flow       the most that can flow from a token at the top to one at the bottom, each A'_n a layer of
           pipes (the same paper)
weighted   ‖w_ij · v_j W_O‖: how much is handed over, not how often it is looked up (Kobayashi et
           al. 2020)

In an encoder–decoder the decoder's stream mixes itself, then the source: x ← r x + (1 − r) (C E),
with C the cross-attention and E the encoder's own rollout. A row over the target's and the source's
tokens together sums to 1, unless heads have sinks, which swallow some.
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
from sightline.lens.trace.layer import Look, Map, Rows, attention_at, checked, checked_rows
from sightline.lens.trace.prompt import Text, seen_attention
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace

UNITS = 1 << 30  # scipy's pipes hold whole numbers below 2³¹, and no more than 1 leaves the top


@dataclass(frozen=True, slots=True)
class Rollout:
    """`maps[n]`: how much of each token after layer n comes from each token that entered;
    `source_maps` from each of the source's."""

    name: str
    stack: str
    tokens: tuple[Token, ...]
    source: tuple[Token, ...] | None
    maps: Float[Tensor, "layer query key"]
    source_maps: Float[Tensor, "layer query source"] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
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
    """The rollout up to each layer (with `last_only`: to the top alone). `keep` is what a residual
    step keeps of the stream."""
    name = checked_stack(trace, stack, keep)
    maps = list[Tensor]()
    source_maps = list[Tensor]()
    below = (
        rollout(trace, stack="encoder", keep=keep, last_only=True).maps[-1]
        if crosses(trace, name)
        else None
    )
    own = torch.eye(len(trace.tokens_of(name)), device=trace.look(0, stack=name).query.device)
    other = None if below is None else own.new_zeros(len(own), len(below))
    for layer in range(trace.config.stacks[name].layers):
        step = kept(keep, mean_weights(trace.look(layer, stack=name)))
        own = step @ own
        other = None if other is None else step @ other
        if other is not None:
            assert below is not None
            own = keep * own
            other = (
                keep * other
                + (1 - keep) * mean_weights(trace.look(layer, stack=name, cross=True)) @ below
            )
        maps[:], source_maps[:] = ([], []) if last_only else (maps, source_maps)
        maps.append(own)
        source_maps += [] if other is None else [other]
    read = trace.source if source_maps else None
    return Rollout(
        trace.name,
        name,
        trace.tokens_of(name),
        read,
        torch.stack(maps),
        torch.stack(source_maps) if source_maps else None,
    )


def checked_stack(trace: Trace, stack: str | None, keep: float) -> str:
    """The stack that is meant, if all of its tokens asked."""
    name = trace.stack_named(stack)
    if not 0 <= keep <= 1:
        raise InputError(f"keep is {keep}", expected="0 to 1", fix="keep=0.5")
    if trace.look(0, stack=name).queries != len(trace.tokens_of(name)):
        raise InputError(
            "a trace of new tokens only", expected="one of the whole text", fix="model.trace(text)"
        )
    return name


def crosses(trace: Trace, stack: str) -> bool:
    return trace.config.stacks[stack].block(0).cross_attention is not None


def kept(keep: float, weights: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """r I + (1 − r) A"""
    return keep * torch.eye(len(weights), device=weights.device) + (1 - keep) * weights


def mean_weights(look: Look) -> Float[Tensor, "query key"]:
    """The mean over heads, a band of rows at a time."""
    return torch.cat([look.weights(rows=band).mean(0) for band in look.bands(range(look.queries))])


# ------------------------------------------------------------------------------------------- flow


@dataclass(frozen=True, slots=True)
class Flow:
    """What can flow from one token after `layer` to each token that entered; each flow for itself,
    so that they do not add up to 1."""

    name: str
    stack: str
    layer: int
    position: int
    tokens: tuple[Token, ...]
    source: tuple[Token, ...] | None
    flows: Float[Tensor, " key"]
    source_flows: Float[Tensor, " source"] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
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


Pipes = tuple[
    int, int, Tensor
]  # the first upper node, the first lower node, capacities [upper, lower]


def attention_flow(
    trace: Trace,
    *,
    position: int = -1,
    layer: int = -1,
    stack: str | None = None,
    keep: float = 0.5,
) -> Flow:
    """The greatest flow from one token down to each token of the text, and of the source."""
    name = checked_stack(trace, stack, keep)
    layers = trace.config.stacks[name].layers
    time = len(trace.tokens_of(name))
    layer = checked("layer", layer, layers)
    position = checked("position", position, time)
    crossed = crosses(trace, name)
    source = len(trace.source or ()) if crossed else 0
    below = (
        list(_pipes(trace, "encoder", 0, keep, trace.config.stacks["encoder"].layers))
        if crossed
        else []
    )
    bottom = source * (len(below) + 1) if crossed else 0
    pipes = [
        *below,
        *_pipes(trace, name, bottom, keep, layer + 1, memory=bottom - source if crossed else None),
    ]
    top = bottom + time * (layer + 1) * (2 if crossed else 1) + position
    found = _greatest(pipes, top, [*range(bottom, bottom + time), *range(source)])
    read = trace.source if crossed else None
    return Flow(
        trace.name,
        name,
        layer,
        position,
        trace.tokens_of(name),
        read,
        found[:time],
        found[time:] if crossed else None,
    )


def _pipes(
    trace: Trace, stack: str, first: int, keep: float, layers: int, memory: int | None = None
) -> Iterator[Pipes]:
    """From each level of a stack to the one below; a cross-attention is a level of its own, with
    pipes to the encoder's top."""
    time = len(trace.tokens_of(stack))
    for layer in range(layers):
        yield first + time, first, kept(keep, mean_weights(trace.look(layer, stack=stack)))
        first += time
        if memory is not None:
            yield first + time, first, keep * torch.eye(time)
            yield (
                first + time,
                memory,
                (1 - keep) * mean_weights(trace.look(layer, stack=stack, cross=True)),
            )
            first += time


def _greatest(pipes: list[Pipes], top: int, bottoms: list[int]) -> Float[Tensor, " bottom"]:
    """The maximum flow from the top to each of the bottoms (Dinic's algorithm, in scipy)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    rows = list[np.ndarray]()
    columns = list[np.ndarray]()
    sizes = list[np.ndarray]()
    for upper, lower, capacity in pipes:
        whole = (capacity.double().cpu() * UNITS).round().to(torch.int32).numpy()
        row, column = whole.nonzero()
        rows.append(row + upper)
        columns.append(column + lower)
        sizes.append(whole[row, column])
    nodes = max(top, *(int(row.max()) for row in rows)) + 1
    where = np.concatenate(rows), np.concatenate(columns)
    graph = coo_array((np.concatenate(sizes), where), shape=(nodes, nodes)).tocsr()
    return torch.tensor([maximum_flow(graph, top, bottom).flow_value / UNITS for bottom in bottoms])


# --------------------------------------------------------------------------------- value-weighted


def value_weighted(
    subject: Subject,
    asked: Text | Trace,
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
    """‖w_ij v_j W_O‖ of each head, `[heads, query, key]`, of one, `[query, key]`, or of all heads'
    vectors `together`, ‖Σ_h w_ij v_j W_O‖.

    A norm after attention (sandwich, output) is left out. With `normalise` each row sums to 1.
    """
    trace = seen_attention(subject, asked, source=source, value=True)
    look = trace.look(layer, stack=stack, cross=cross)
    if together and head is not None:
        raise InputError(
            f"head {head} and all of them together", expected="one of the two", fix="leave head out"
        )
    carried = transformed_values(subject, look)  # [heads, key, width]
    chosen = list(checked_rows(rows, look.queries))
    if together:
        inner = torch.einsum("hkw,gkw->khg", carried, carried)
        bands = [_together(look.weights(rows=band), inner) for band in look.bands(chosen)]
        found = torch.cat(bands) if bands else carried.new_zeros(0, carried.shape[1])
    else:
        norms = carried.norm(dim=-1)
        found = look.weights(head, chosen) * (
            norms[:, None] if head is None else norms[checked("head", head, look.heads)]
        )
    found = (
        found / found.sum(-1, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)
        if normalise
        else found
    )
    return found[..., 0, :] if isinstance(rows, int) else found


@torch.no_grad()
def transformed_values(subject: Subject, look: Look) -> Float[Tensor, "heads key width"]:
    """v_j W_O of each head: what a token adds to the stream of one that gives it all of its
    attention."""
    value = repeat_kv_heads(look.needed_value(), look.heads)[0].float()
    weight, _ = affine(
        attention_at(subject.running, look.site).output, look.heads * value.shape[-1]
    )
    return value @ weight.detach().float().T.unflatten(0, (look.heads, -1))


def _together(
    weights: Float[Tensor, "heads query key"], inner: Float[Tensor, "key heads other"]
) -> Float[Tensor, "query key"]:
    """√(Σ_hg w_h w_g u_h·u_g): the length of the sum, without the sum itself."""
    return torch.einsum("hqk,khg,gqk->qk", weights, inner, weights).clamp(min=0).sqrt()
