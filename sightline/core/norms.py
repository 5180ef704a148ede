"""Normalisation.

LayerNorm   γ (x − mean) / √(variance + ε) + β      biased variance, ε inside the root
RMSNorm     γ x / √(mean(x²) + ε)                   or (1 + γ) …, as Gemma stores it
unit        x / |x|                                 the hypersphere of cosine attention and nGPT
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline.config import HeadNorm, LayerNorm, Norm, RMSNorm
from sightline.kernels import library as kernels

Stream = Float[Tensor, "*batch width"]


class LayerNormLayer(nn.Module):
    """γ (x − mean) / √(variance + ε) + β"""

    def __init__(self, width: int, config: LayerNorm) -> None:
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if config.bias else None

    def forward(self, x: Stream) -> Stream:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNormLayer(nn.Module):
    """γ x / √(mean(x²) + ε), computed in float32 at least"""

    def __init__(self, width: int, config: RMSNorm) -> None:
        super().__init__()
        self.eps = config.eps
        self.plus_one = config.plus_one
        self.weight = nn.Parameter(torch.zeros(width) if config.plus_one else torch.ones(width))

    def forward(self, x: Stream) -> Stream:
        gain = at_least_float32(self.weight)
        gain = 1.0 + gain if self.plus_one else gain
        if kernels.learns(x) and kernels.suits(x, gain):
            return kernels.rms_norm(x, gain, self.eps)
        return F.rms_norm(at_least_float32(x), self.weight.shape, gain, self.eps).to(x.dtype)


def make_norm(config: Norm, width: int) -> nn.Module:
    """The layer of a configuration."""
    if isinstance(config, LayerNorm):
        return LayerNormLayer(width, config)
    if isinstance(config, RMSNorm):
        return RMSNormLayer(width, config)
    return nn.Identity()


class PerHeadNorm(nn.Module):
    """The same norm on every head of a vector that holds all of them."""

    def __init__(self, config: Norm, head_dim: int) -> None:
        super().__init__()
        self.norm = make_norm(config, head_dim)
        self.head_dim = head_dim

    def forward(self, x: Stream) -> Stream:
        return self.norm(x.unflatten(-1, (-1, self.head_dim))).flatten(-2)


def make_head_norm(config: HeadNorm | None, heads: int, head_dim: int) -> nn.Module:
    """QK-norm: per head, over all heads together, or none."""
    if config is None:
        return nn.Identity()
    return (
        PerHeadNorm(config.norm, head_dim)
        if config.per_head
        else make_norm(config.norm, heads * head_dim)
    )


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Half precisions are too coarse to sum or exponentiate in; float32 and float64 stay as they
    are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def unit(x: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*shape"]:
    """x / |x|; a zero vector stays zero."""
    return F.normalize(at_least_float32(x), dim=dim, eps=1e-12).to(x.dtype)
