"""W x + b, for every vector of a stream."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from sightline.kernels import library as kernels


class Linear(nn.Linear):
    """W x + b. In training, large products and those of the gradient use our kernels (see
    `kernels.linear`)."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return kernels.linear(x, self.weight, self.bias)
