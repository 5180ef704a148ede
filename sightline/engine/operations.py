"""The operations of a program as typed values, one class per kind. They mirror C++'s
csrc/engine/operations.h, field by field; a tensor is a number in the program's list of small
tensors, so that operations can be compared and stored. `to_native` makes the object that the engine
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from sightline.kernels import library as kernels

NormKind = Literal["none", "layer", "rms", "unit"]
Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "relu_squared", "tanh"]
STREAM, JOINED, MIXED, HIDDEN, SIDE = range(5)
"""The buffers: the residual stream, q k v, the heads' outputs, the feed-forward's hidden layer, and
a result that is added later."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A small tensor of the program, by its number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    kind: NormKind
    epsilon: float = 0.0
    gain: TensorRef | None = None
    bias: TensorRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """norm(scale · E[token] + positions[position] + types)"""

    output: int = STREAM
    matrix: int
    scale: float = 1.0
    positions: TensorRef | None = None
    types: TensorRef | None = None
    norm: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize:
    """The norm of `width` numbers of each row, from number `offset` on."""

    input: int
    output: int
    norm: Norm
    width: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """column_scale ⊙ act(W norm(scale · input) + bias), then the soft cap. With `gated_width` the
    matrix has alternating tiles of gate and up: act(gate_scale ⊙ gate) ⊙ (up_scale ⊙ up). With
    `accumulate` the result is added to the output; with `logits` it leaves the program."""

    input: int
    matrix: int
    output: int = STREAM
    norm: Norm | None = None
    scale: float = 1.0
    bias: TensorRef | None = None
    activation: Activation = "none"
    gated_width: int = 0
    gate_scale: TensorRef | None = None
    column_scale: TensorRef | None = None
    softcap: float = 0.0
    accumulate: bool = False
    logits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTransform:
    """What is done with q and k before their product: a norm for each head, RoPE, the unit sphere
    with a scale."""

    query_norm: Norm | None = None
    key_norm: Norm | None = None
    frequencies: TensorRef | None = None
    amplitude: float = 1.0
    unit: bool = False
    query_scale: TensorRef | None = None
    key_scale: TensorRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """softmax(cap(q kᵀ · scale) + bias) v over the KV cache. `cross` reads q alone and attends to
    the encoder's cache; `distance_bias` is [heads, 2 · max_distance + 1], by key − query."""

    input: int
    output: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    transform: HeadTransform = field(default_factory=HeadTransform)
    scale: float = 1.0
    softcap: float = 0.0
    window: int = 0
    causal: bool = True
    cross: bool = False
    distance_bias: TensorRef | None = None
    max_distance: int = 0
    sinks: TensorRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeyValue:
    """k and v of a source go to the cache, for a decoder's cross-attention."""

    input: int
    layer: int
    kv_heads: int
    head_dim: int
    transform: HeadTransform = field(default_factory=HeadTransform)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """output = unit(output + step ⊙ (unit(input) − output)), nGPT's residual step."""

    input: int
    output: int
    step: TensorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """output += input"""

    input: int
    output: int


Operation = Embed | Normalize | Linear | Attend | StoreKeyValue | Blend | Add


def to_native(operation: Operation, tensors: Sequence[Tensor]) -> Any:
    """The engine's own object for an operation."""
    native = kernels.ready()
    enums = {"kind": native.NormKind, "activation": native.Activation}

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, TensorRef):
            return tensors[value.number]
        if name in enums:
            return enums[name][value]
        return make(value) if isinstance(value, (Norm, HeadTransform)) else value

    def make(part: Operation | Norm | HeadTransform) -> Any:
        values = {
            entry.name: convert(getattr(part, entry.name), entry.name) for entry in fields(part)
        }
        return getattr(native, type(part).__name__)(**values)

    return make(operation)
