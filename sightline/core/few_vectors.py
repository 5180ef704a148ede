"""W x + b for a few vectors at a time: the one product that decoding waits for."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

FEW = 64  # vectors; with more of them the product is bound by arithmetic, and rows serve as well


class FewVectors(nn.Module):
    """W x + b. W lies in oneDNN's blocks, which arrive sooner than torch's rows: up to twice as
    fast where reading W is all the work."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        super().__init__()
        self.bias = bias
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)

    def suits(self, x: Float[Tensor, "*batch in"]) -> bool:
        """Few, and in the one precision that the blocks are in."""
        return (
            x.numel() <= FEW * x.shape[-1]
            and x.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
        )

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")
