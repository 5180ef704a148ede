"""A plain single-file GPT and its training loop, the baseline of our benchmarks: learned positions,
LayerNorm, GELU, fused q, k, v, torch's SDPA, fused AdamW with weight decay on matrices, warmup and
cosine decay, gradient clipping at 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class PlainConfig:
    vocab_size: int
    context: int = 256
    width: int = 384
    layers: int = 6
    heads: int = 6
    dropout: float = 0.0


class PlainBlock(nn.Module):
    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, time, width = x.shape
        q, k, v = (
            y.view(rows, time, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(
            self.out(y.transpose(1, 2).reshape(rows, time, width)), self.dropout, self.training
        )
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class PlainGPT(nn.Module):
    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                divisor = (
                    math.sqrt(2 * config.layers)
                    if name.endswith(("out.weight", "down.weight"))
                    else 1.0
                )
                nn.init.normal_(parameter, std=0.02 / divisor)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(
            F.linear(self.norm(x), self.tokens.weight).flatten(0, 1), targets.flatten()
        )


def optimizer(model: nn.Module, lr: float) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=True)


def rate(progress: float, warmup: float = 0.05) -> float:
    """The learning rate as a fraction of its peak: warmup over 5% of the steps, then a cosine
    decay to 10%."""
    return min(1.0, (progress + 1e-3) / warmup) * (
        0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))
    )


def update(
    model: nn.Module, adam: torch.optim.AdamW, tokens: Tensor, targets: Tensor, lr: float
) -> float:
    """One optimizer step; returns the loss before it."""
    for group in adam.param_groups:
        group["lr"] = lr
    loss = model(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    adam.zero_grad(set_to_none=True)
    return float(loss)
