"""A linear layer beside its copy, and the switch that turns the kernels off."""

import torch
from torch import Tensor


def off(ours: Tensor, truth: Tensor) -> float:
    return float(
        (ours.double() - truth.double()).detach().abs().max()
        / truth.double().detach().abs().max().clamp(min=1e-30)
    )


def pair(*shape: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same numbers in float32 and float64, both to be differentiated."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x.clone().requires_grad_(), x.double().requires_grad_()
