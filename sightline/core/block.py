"""One block: attention, cross-attention if there is an encoder, feed-forward; each a residual
step."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from sightline.config import BlockConfig, Norm
from sightline.core.context import BlockContext, Place
from sightline.core.feed_forward import FeedForward
from sightline.core.hypersphere import SphereBlock
from sightline.core.multi_head import Attention
from sightline.core.residual import Residual

Stream = Float[Tensor, "batch time width"]


class Block(nn.Module):
    """x ← x + attention(x);  x ← x + cross_attention(x, memory);  x ← x + feed_forward(x);  norms
    as set by `placement`."""

    def __init__(
        self, width: int, config: BlockConfig, *, context_width: int | None = None
    ) -> None:
        super().__init__()
        cross = config.cross_attention
        self.attention = Attention(width, config.attention)
        self.attention_residual = self._residual(width, config, config.attention_norm)
        self.cross_attention = (
            Attention(width, cross, context_width=context_width, cross=True) if cross else None
        )
        self.cross_residual = self._residual(width, config) if cross else None
        self.feed_forward = FeedForward(width, config.feed_forward)
        self.feed_forward_residual = self._residual(width, config)

    @staticmethod
    def _residual(width: int, config: BlockConfig, norm: Norm | None = None) -> Residual:
        return Residual(
            width, config.norm if norm is None else norm, config.placement, config.dropout
        )

    def forward(self, x: Stream, context: BlockContext) -> Stream:
        record = context.record
        x = record("residual", x)
        x = self.attention_residual(x, lambda x: self.attend(x, context), "attention", record)
        if self.cross_residual is not None:
            x = self.cross_residual(
                x, lambda x: self.attend_to_memory(x, context), "cross_attention", record
            )
        return self.feed_forward_residual(
            x, lambda x: self.feed_forward(x, record), "feed_forward", record
        )

    def attend(self, x: Stream, context: BlockContext) -> Stream:
        """Self-attention."""
        return self.attention.compute(
            x,
            place=context.place,
            store=context.store,
            kernel=context.kernel,
            record=context.record,
        )

    def attend_to_memory(self, x: Stream, context: BlockContext) -> Stream:
        """Cross-attention: every token attends to the whole source."""
        layer = self.cross_attention
        memory = context.memory
        assert layer is not None
        assert memory is not None
        return layer.compute(
            x,
            memory.states,
            place=Place(context.place.query_at, None, causal=False),
            context_at=memory.at,
            context_offset=memory.offset,
            store=context.cross_store,
            kernel=context.kernel,
            record=context.record,
        )


class ParallelBlock(Block):
    """x + attention(norm(x)) + feed_forward(norm'(x)): both read the same x (GPT-NeoX)."""

    def forward(self, x: Stream, context: BlockContext) -> Stream:
        record = context.record
        x = record("residual", x)
        attended = self.attention_residual.step(
            x, lambda x: self.attend(x, context), "attention", record
        )
        return (
            x
            + attended
            + self.feed_forward_residual.step(
                x, lambda x: self.feed_forward(x, record), "feed_forward", record
            )
        )


def make_block(
    width: int, config: BlockConfig, *, context_width: int | None = None
) -> Block | SphereBlock:
    """The block of a configuration."""
    if config.placement == "sphere":
        return SphereBlock(width, config)
    kind = ParallelBlock if config.parallel else Block
    return kind(width, config, context_width=context_width)
