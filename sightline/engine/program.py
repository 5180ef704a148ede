"""A program of the engine's operations, and the matrices and tensors that they refer to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sightline.core.norms import LayerNormLayer, RMSNormLayer
from sightline.engine.operations import (
    Norm,
    Normalize,
    Operation,
    TensorRef,
)


@dataclass(slots=True)
class Matrix:
    """A matrix of the program before it is packed. `make` gives it as [rows, inputs] float32;
    `sensitive`: errors in it cost most."""

    name: str
    rows: int
    inputs: int
    make: Callable[[], Tensor]
    sensitive: bool = False


@dataclass(slots=True)
class Program:
    """Operations, the matrices and small tensors that they refer to, and the buffers' widths.
    `cross_from`: the layer of the encoder's cache that belongs to the first block's
    cross-attention; `max_positions`: how long a sequence may be."""

    widths: list[int]
    kv_heads: list[int]
    dims: list[int]
    max_positions: int
    operations: list[Operation] = field(default_factory=list[Operation])
    matrices: list[Matrix] = field(default_factory=list[Matrix])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    cross_from: int = 0

    def add(self, *operations: Operation) -> None:
        self.operations += operations

    def matrix(
        self,
        name: str,
        shape: Sequence[int],
        make: Callable[[], Tensor],
        *,
        sensitive: bool = False,
    ) -> int:
        """Add a matrix; returns its number."""
        rows, inputs = shape
        self.matrices.append(Matrix(name, rows, inputs, make, sensitive))
        return len(self.matrices) - 1

    def tensor(self, x: Tensor | None) -> TensorRef | None:
        """Add a copy of a small tensor in float32; None stays None."""
        return None if x is None else self.required_tensor(x)

    def required_tensor(self, x: Tensor) -> TensorRef:
        self.tensors.append(x.detach().to(torch.float32, copy=True).contiguous())
        return TensorRef(len(self.tensors) - 1)

    def norm(self, layer: nn.Module) -> Norm | None:
        """The norm that a layer computes; None for an identity."""
        if isinstance(layer, LayerNormLayer):
            gain = self.tensor(layer.weight)
            bias = self.tensor(layer.bias)
            return Norm(kind="layer", epsilon=layer.eps, gain=gain, bias=bias)
        if isinstance(layer, RMSNormLayer):
            gain = self.tensor(layer.weight + 1 if layer.plus_one else layer.weight)
            return Norm(kind="rms", epsilon=layer.eps, gain=gain)
        return None

    def normalize(self, layer: nn.Module, *, buffer: int, width: int, offset: int = 0) -> None:
        """Add the norm of a part of each row, in place; nothing for an identity."""
        norm = self.norm(layer)
        if norm is not None:
            operation = Normalize(
                input=buffer, output=buffer, norm=norm, width=width, offset=offset
            )
            self.add(operation)
