"""The feed-forward layer, applied to each token independently.

plain    W₂ act(W₁ x)
gated    W₂ (act(W_g x) ⊙ W₁ x)    SwiGLU with silu, GEGLU with gelu: three matrices, the last back
                                   to the width
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.config import Activation, FeedForwardConfig
from sightline.core.linear import Linear
from sightline.kernels import library as kernels
from sightline.record import NOTHING, Record

Stream = Float[Tensor, "batch time width"]


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "relu_squared": relu_squared,
    "tanh": torch.tanh,
}


SMOOTH = (
    "gelu",
    "gelu_tanh",
    "silu",
)  # not ReLU: its gradient needs only the output, which torch exploits


class FeedForward(nn.Module):
    """W₂ act(W₁ x), or gated W₂ (act(W_g x) ⊙ W₁ x)"""

    def __init__(self, width: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.up = Linear(width, config.hidden, bias=config.bias)
        self.gate = Linear(width, config.hidden, bias=config.bias) if config.gated else None
        self.down = Linear(config.hidden, width, bias=config.bias)
        self.activation_name: Activation = config.activation
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(self, x: Stream, record: Record = NOTHING) -> Stream:
        up = self.up(x)
        gate = None if self.gate is None else self.gate(x)
        return self.down(self.dropout(record("hidden", self.activate(up, gate))))

    def activate(self, up: Stream, gate: Stream | None) -> Stream:
        """act(up), or act(gate) ⊙ up; one pass over memory where a gradient will be needed."""
        if self.activation_name in SMOOTH and kernels.learns(up) and kernels.suits(up):
            return (
                kernels.activate(self.activation_name, up)
                if gate is None
                else kernels.activate(self.activation_name, gate, up)
            )
        return self.activation(up) if gate is None else self.activation(gate) * up
