"""W x + b, for every vector of a stream."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from sightline.kernels import library as kernels


class Linear(nn.Linear):
    """W x + b. In training the product and those of its gradient are our own where they are large
    (see `kernels.linear`)."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return kernels.linear(x, self.weight, self.bias)
