"""What surrounds a block while it computes: where its tokens stand, what it may look at, who
watches."""

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
    """Where the queries stand, and what that does to the scores: causality, RoPE's angles, a bias.
    `offset` as in `Mask`; `documents` numbers the documents that share a row, none of which sees
    another; `given` is a mask of the caller's, True = may look."""

    query_at: Int[Tensor, "#batch query"]
    offset: int | None
    causal: bool
    rotation: Rotation | None = None
    bias: Bias | None = None
    documents: Int[Tensor, "batch query"] | None = None
    given: Bool[Tensor, "#batch #heads #query #key"] | None = None


@dataclass(frozen=True)
class Memory:
    """What the encoder made of the source: its states, where they stand (−1 is padding), and the
    offset if none is padded.

    The states are None when an earlier call has left their keys and values in the cache.
    """

    states: Float[Tensor, "batch key context"] | None
    at: Int[Tensor, "#batch key"]
    offset: int | None


@dataclass(frozen=True)
class Setting:
    """Everything a block is told besides x."""

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
    """What a position scheme makes of these positions."""
    turn = rotation(positions, head_dim, query_at) if isinstance(positions, Rotary) else None
    bias = ALiBiBias(tuple(alibi_slopes(heads))) if isinstance(positions, ALiBi) else None
    bias = table if isinstance(positions, RelativeBias) else bias
    return Place(query_at, offset, causal, turn, bias, documents)
