"""What a block needs besides x: token positions, the encoder's states, cache stores, the
recorder."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import ALiBi, AttentionPosition, RelativeBias, Rotary
from sightline.core.attention import Kernel
from sightline.core.cache.stores import Store
from sightline.core.positions import (
    ALiBiBias,
    Bias,
    RelativeTable,
    Rotation,
    alibi_slopes,
    rotation,
)
from sightline.record import NOTHING, Record


@dataclass(frozen=True)
class Place:
    """Positions of the queries, and what depends on them: causality, RoPE's angles, a bias.
    `offset` as in `Mask`; `documents` numbers the documents packed into a row, which do not attend
    to each other; `explicit` is a mask passed by the caller, True = may attend."""

    query_at: Int[Tensor, "#batch query"]
    offset: int | None
    causal: bool
    rotation: Rotation | None = None
    bias: Bias | None = None
    documents: Int[Tensor, "batch query"] | None = None
    explicit: Bool[Tensor, "#batch #heads #query #key"] | None = None


@dataclass(frozen=True)
class Memory:
    """The encoder's output for the source: hidden states, their positions (−1 is padding), and the
    offset if nothing is padded.

    The states are None when their keys and values are already in the cache.
    """

    states: Float[Tensor, "batch key context"] | None
    at: Int[Tensor, "#batch key"]
    offset: int | None


@dataclass(frozen=True)
class BlockContext:
    """Everything a block needs besides x."""

    place: Place
    memory: Memory | None = None
    store: Store | None = None
    cross_store: Store | None = None
    kernel: Kernel = "fused"
    record: Record = NOTHING


def place_for(
    positions: AttentionPosition,
    head_dim: int,
    heads: int,
    query_at: Int[Tensor, "#batch query"],
    offset: int | None,
    *,
    causal: bool,
    table: RelativeTable | None = None,
    documents: Int[Tensor, "batch query"] | None = None,
) -> Place:
    """RoPE's angles or the bias of a position scheme, for these positions."""
    angles = rotation(positions, head_dim, query_at) if isinstance(positions, Rotary) else None
    bias = ALiBiBias(tuple(alibi_slopes(heads))) if isinstance(positions, ALiBi) else None
    bias = table if isinstance(positions, RelativeBias) else bias
    return Place(query_at, offset, causal, angles, bias, documents)
