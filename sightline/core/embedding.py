"""Tokens to vectors: norm(scale · token + position + type)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import EmbeddingConfig, Learned, Sinusoidal
from sightline.core.norms import make_norm
from sightline.core.positions import sinusoidal


class Embedding(nn.Module):
    """norm(scale · token[t] + position[p] + type[s]); the parts that a model lacks are left out."""

    def __init__(self, width: int, max_positions: int, config: EmbeddingConfig) -> None:
        super().__init__()
        self.config = config
        self.width = width
        learned = config.positions if isinstance(config.positions, Learned) else None
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(max_positions + learned.offset, width) if learned else None
        self.types = nn.Embedding(config.types, width) if config.types else None
        self.norm = make_norm(config.norm, width)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        positions: Int[Tensor, "#batch time"],
        types: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time width"]:
        x = self.tokens(tokens)
        if self.config.scale != 1.0:
            x = x * self.config.scale
        if self.positions is not None and isinstance(self.config.positions, Learned):
            x = x + self.positions(positions.clamp(min=0) + self.config.positions.offset)
        if isinstance(self.config.positions, Sinusoidal):
            x = x + sinusoidal(positions, self.width, self.config.positions).to(x.dtype)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(tokens) if types is None else types)
        return self.dropout(self.norm(x))
