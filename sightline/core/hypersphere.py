"""nGPT: every vector on the unit hypersphere (Loshchilov et al. 2024).

    a = unit(attention(h))       h ← unit(h + α_A (a − h))
    m = unit(feed_forward(h))    h ← unit(h + α_M (m − h))

    q ← unit(q) · s_qk           k ← unit(k) · s_qk       softmax scale √head_dim, not its inverse
    u ← u · s_u                  v ← v · s_v · √width     down(u ⊙ silu(v))
    logits ← logits · s_z

No LayerNorm, no weight decay, no warm-up. After every optimiser step `normalize_weights` puts all
matrices back onto the sphere.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sightline.config import Activation, AttentionConfig, BlockConfig, FeedForwardConfig
from sightline.core.context import BlockContext
from sightline.core.feed_forward import ACTIVATIONS
from sightline.core.linear import Linear
from sightline.core.multi_head import Attention, DotMeasure
from sightline.core.norms import unit
from sightline.record import NOTHING, Record

Stream = Float[Tensor, "batch time width"]
STEP = 0.05  # the first α: about one over the number of layers


class Scale(nn.Module):
    """A learned scale that starts at `start` but is stored as `stored`, so that the optimiser moves
    it at the right rate."""

    def __init__(self, shape: tuple[int, ...], start: float, stored: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, stored))
        self.factor = start / stored

    def forward(self) -> Tensor:
        return self.weight * self.factor


class SphereMeasure(DotMeasure):
    """q ← unit(q) · s_qk, k ← unit(k) · s_qk; grouped heads share their key's scale."""

    def __init__(self, config: AttentionConfig, width: int) -> None:
        super().__init__()
        self.group = config.heads // config.kv_heads
        self.scale = Scale((config.kv_heads, 1, config.head_dim), start=1.0, stored=width**-0.5)

    def query(self, query: Tensor) -> Tensor:
        return unit(query) * self.scale().repeat_interleave(self.group, dim=0).to(query.dtype)

    def key(self, key: Tensor) -> Tensor:
        return unit(key) * self.scale().to(key.dtype)


class SphereAttention(Attention):
    """Attention between unit vectors."""

    def __init__(self, width: int, config: AttentionConfig) -> None:
        super().__init__(width, config)
        self.measure = SphereMeasure(config, width)

    @property
    def scale(self) -> float:
        return math.sqrt(self.config.head_dim)


class SphereFeedForward(nn.Module):
    """down(u s_u ⊙ silu(v s_v √width))"""

    def __init__(self, width: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.width = width
        self.up = Linear(width, config.hidden, bias=False)
        self.gate = Linear(width, config.hidden, bias=False)
        self.down = Linear(config.hidden, width, bias=False)
        self.up_scale = Scale((config.hidden,), start=1.0, stored=1.0)
        self.gate_scale = Scale((config.hidden,), start=1.0, stored=1.0)
        self.activation_name: Activation = config.activation
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Stream, record: Record = NOTHING) -> Stream:
        u = self.up(x) * self.up_scale().to(x.dtype)
        v = self.gate(x) * self.gate_scale().to(x.dtype) * math.sqrt(self.width)
        return self.down(record("hidden", u * self.activation(v)))


class SphereBlock(nn.Module):
    """Two steps along the sphere: towards attention's output, then towards the feed-forward's."""

    def __init__(self, width: int, config: BlockConfig) -> None:
        super().__init__()
        self.attention = SphereAttention(width, config.attention)
        self.feed_forward = SphereFeedForward(width, config.feed_forward)
        self.attention_step = Scale((width,), start=STEP, stored=width**-0.5)
        self.feed_forward_step = Scale((width,), start=STEP, stored=width**-0.5)

    def forward(self, x: Stream, context: BlockContext) -> Stream:
        record = context.record
        x = record("residual", x)
        a = unit(
            self.attention.compute(
                x, place=context.place, store=context.store, kernel=context.kernel, record=record
            )
        )
        x = unit(x + record("attention", self.attention_step().to(x.dtype) * (a - x)))
        m = unit(self.feed_forward(x, record))
        return unit(x + record("feed_forward", self.feed_forward_step().to(x.dtype) * (m - x)))


@torch.no_grad()
def normalize_weights(module: nn.Module) -> None:
    """Put every matrix back onto the sphere along its width: rows that read the stream, columns
    that write to it."""
    for part in module.modules():
        if isinstance(part, SphereBlock):
            attention = part.attention
            feed_forward = part.feed_forward
            for reader in (
                attention.query,
                attention.key,
                attention.value,
                feed_forward.up,
                feed_forward.gate,
            ):
                reader.weight.copy_(unit(reader.weight, dim=1))
            for writer in (attention.output, feed_forward.down):
                writer.weight.copy_(unit(writer.weight, dim=0))
        elif isinstance(part, nn.Embedding):
            part.weight.copy_(unit(part.weight, dim=1))
