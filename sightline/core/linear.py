"""W x + b, for every vector of a stream; and with W in oneDNN's blocked layout, which is faster for
the few vectors of a decode step."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sightline.kernels import library as kernels

FEW = 64  # vectors; with more the product is compute-bound, and the layout does not matter


class Linear(nn.Linear):
    """W x + b. In training, large products and those of the gradient use our kernels (see
    `kernels.linear`)."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return kernels.linear(x, self.weight, self.bias)


class BlockedLinear(nn.Module):
    """W x + b. Reading W from oneDNN's blocks is up to twice as fast as from torch's rows, where
    memory bandwidth is the limit."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        super().__init__()
        self.bias = bias
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)

    def suits(self, x: Float[Tensor, "*batch in"]) -> bool:
        """Whether x has few vectors, in the dtype of the blocks."""
        return (
            x.numel() <= FEW * x.shape[-1]
            and x.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
        )

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")
