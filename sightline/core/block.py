"""One block: attention, cross-attention if there is an encoder, feed-forward; each a residual step."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import BlockConfig
from sightline.core.attention import Kernel
from sightline.core.cache import Store
from sightline.core.feed_forward import FeedForward
from sightline.core.hypersphere import SphereBlock
from sightline.core.multi_head import Attention, Place
from sightline.core.residual import Residual
from sightline.record import NOTHING, Record

Stream = Float[Tensor, "batch time width"]


@dataclass(frozen=True)
class Memory:
    """What the encoder made of the source: its states, where they stand (−1 is padding), and the offset if none is padded."""

    states: Float[Tensor, "batch key context"]
    at: Int[Tensor, "#batch key"]
    offset: int | None


class Block(nn.Module):
    """x ← x + attention(x);  x ← x + cross_attention(x, memory);  x ← x + feed_forward(x);  norms as the placement says."""

    def __init__(self, width: int, config: BlockConfig, *, context_width: int | None = None) -> None:
        super().__init__()
        cross = config.cross_attention
        self.attention = Attention(width, config.attention)
        self.attention_residual = self._residual(width, config)
        self.cross_attention = Attention(width, cross, context_width=context_width, cross=True) if cross else None
        self.cross_residual = self._residual(width, config) if cross else None
        self.feed_forward = FeedForward(width, config.feed_forward)
        self.feed_forward_residual = self._residual(width, config)

    @staticmethod
    def _residual(width: int, config: BlockConfig) -> Residual:
        return Residual(width, config.norm, config.placement, config.dropout)

    def forward(
        self,
        x: Stream,
        *,
        place: Place,
        memory: Memory | None = None,
        store: Store | None = None,
        cross_store: Store | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Stream:
        def attention(x: Stream) -> Stream:
            return self.attention.compute(x, place=place, store=store, kernel=kernel, record=record)

        def feed_forward(x: Stream) -> Stream:
            return self.feed_forward(x, record)

        x = record("residual", x)
        x = self.attention_residual(x, attention, "attention", record)
        x = self.look_at_memory(x, place, memory, cross_store, kernel, record)
        return self.feed_forward_residual(x, feed_forward, "feed_forward", record)

    def look_at_memory(self, x: Stream, place: Place, memory: Memory | None, store: Store | None, kernel: Kernel, record: Record) -> Stream:
        """The decoder's cross-attention to the encoder; other blocks have none."""
        layer, residual = self.cross_attention, self.cross_residual
        if layer is None or residual is None or memory is None:
            return x
        everywhere = Place(place.query_at, None, causal=False)

        def cross_attention(x: Stream) -> Stream:
            return layer.compute(
                x,
                memory.states,
                place=everywhere,
                context_at=memory.at,
                context_offset=memory.offset,
                store=store,
                kernel=kernel,
                record=record,
            )

        return residual(x, cross_attention, "cross_attention", record)


class ParallelBlock(Block):
    """x + attention(norm(x)) + feed_forward(norm'(x)): both read the same x (GPT-NeoX, GPT-J)."""

    def forward(
        self,
        x: Stream,
        *,
        place: Place,
        memory: Memory | None = None,
        store: Store | None = None,
        cross_store: Store | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Stream:
        def attention(x: Stream) -> Stream:
            return self.attention.compute(x, place=place, store=store, kernel=kernel, record=record)

        def feed_forward(x: Stream) -> Stream:
            return self.feed_forward(x, record)

        x = record("residual", x)
        attended = self.attention_residual.step(x, attention, "attention", record)
        return x + attended + self.feed_forward_residual.step(x, feed_forward, "feed_forward", record)


def make_block(width: int, config: BlockConfig, *, context_width: int | None = None) -> Block | SphereBlock:
    """The block that a configuration names."""
    if config.placement == "sphere":
        return SphereBlock(width, config)
    kind = ParallelBlock if config.parallel else Block
    return kind(width, config, context_width=context_width)
