"""A stack: embedding, blocks, final norm. An encoder's attention is bidirectional, a decoder's
causal."""

from __future__ import annotations

from typing import cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import AttentionConfig, RelativeBias, StackConfig
from sightline.core.attention import Kernel
from sightline.core.block import Block, make_block
from sightline.core.cache.kv_cache import Cache
from sightline.core.context import BlockContext, Memory, Place, place_for
from sightline.core.embedding import Embedding
from sightline.core.hypersphere import SphereBlock
from sightline.core.norms import make_norm, unit
from sightline.core.positions import RelativeTable
from sightline.record import NOTHING, Record

Stream = Float[Tensor, "batch time width"]


class Stack(nn.Module):
    """Embedding → blocks 0, 1, 2, … → norm. Parameters are named like
    `decoder.3.attention.query.weight`."""

    def __init__(self, name: str, config: StackConfig, *, context_width: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.config = config
        self.embedding = Embedding(config.width, config.max_positions, config.embedding)
        for n in range(config.layers):
            self.add_module(
                str(n), make_block(config.width, config.block(n), context_width=context_width)
            )
        self.norm = make_norm(config.final_norm, config.width)
        self.relative = self._relative_table()

    def _relative_table(self) -> RelativeTable | None:
        """T5's bias: one table for all layers."""
        for block in self.config.blocks:
            form = block.attention.positions
            if isinstance(form, RelativeBias):
                return RelativeTable(
                    form.buckets,
                    form.max_distance,
                    block.attention.heads,
                    causal=self.config.causal,
                )
        return None

    def __getitem__(self, layer: int) -> Block | SphereBlock:
        return cast(Block | SphereBlock, self._modules[str(layer)])

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        positions: Int[Tensor, "#batch time"],
        offset: int | None,
        *,
        types: Int[Tensor, "batch time"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        kernel: Kernel = "fused",
        record: Record = NOTHING,
    ) -> Stream:
        x = self.embedding(tokens, positions, types)
        x = record.at(self.name)("embedding", unit(x) if self.config.on_sphere else x)
        places: dict[AttentionConfig, Place] = {}
        for n in range(self.config.layers):
            form = self.config.block(n).attention
            if form not in places:
                places[form] = place_for(
                    form.positions,
                    form.head_dim,
                    form.heads,
                    positions,
                    offset,
                    causal=self.config.causal,
                    table=self.relative,
                    documents=documents,
                )
            x = self[n](x, self._block_context(n, places[form], memory, cache, kernel, record))
        return record.at(self.name)("output", self.norm(x))

    def _block_context(
        self,
        n: int,
        place: Place,
        memory: Memory | None,
        cache: Cache | None,
        kernel: Kernel,
        record: Record,
    ) -> BlockContext:
        """Everything block n needs besides x."""
        store = None if cache is None else cache.stores[n]
        cross_store = None if cache is None or not cache.cross else cache.cross[n]
        return BlockContext(place, memory, store, cross_store, kernel, record.at(self.name, n))
