"""Path patching (Wang et al. 2022): what a head does along one path, all other heads held still.

    sender h → logits                     the direct effect; the feed-forwards in between react
    sender h → queries of receivers       how h decides where the receivers look

A path ends at one position, the last. As no other head reacts, positions do not mix: only the
stream at that position is computed again, for all senders at once.

    frozen = FrozenRun.of(model, ids)
    deltas = sender_deltas(frozen, other, -1)            [senders, layers, width]
    frozen.logits(deltas, [5, 7])                        [senders, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.block import Block
from sightline.core.context import place_for
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention
from sightline.core.runner import in_eval_mode
from sightline.errors import InputError
from sightline.record import NOTHING, Recorder

HeadPlace = tuple[int, int]  # layer and head
Deltas = Float[Tensor, "senders layers width"]
Streams = Float[Tensor, "senders width"]
RECORDED = ("residual", "attention", "heads", "query", "key", "value")


@dataclass(frozen=True, slots=True)
class FrozenRun:
    """One recorded text of a decoder with norms before its steps."""

    model: Transformer
    ids: tuple[int, ...]
    recorder: Recorder

    @classmethod
    @torch.no_grad()
    def of(cls, model: Transformer, ids: Sequence[int]) -> FrozenRun:
        stack = model.last_stack
        blocks = [stack[layer] for layer in range(stack.config.layers)]
        if not all(
            type(block) is Block and stack.config.block(layer).placement == "pre"
            for layer, block in enumerate(blocks)
        ):
            raise InputError(
                "a model whose blocks are not x + f(norm(x))",
                expected="pre-norm blocks, attention first",
                fix="sweep(…) patches any model",
            )
        recorder = Recorder(RECORDED)
        in_eval_mode(model)(torch.tensor([list(ids)]), record=recorder)
        return cls(model, tuple(ids), recorder)

    @property
    def layers(self) -> int:
        return self.model.last_stack.config.layers

    def block(self, layer: int) -> Block:
        block = self.model.last_stack[layer]
        assert isinstance(block, Block)
        return block

    def attention(self, layer: int) -> Attention:
        return self.block(layer).attention

    def recorded(self, layer: int, name: str) -> Tensor:
        """A quantity of a layer, without its batch axis."""
        return self.recorder[self.model.last_stack.name, layer, name][0]

    def head_writes(self, position: int) -> Float[Tensor, "layers heads width"]:
        """What each head adds to the stream at a position."""
        return torch.stack(
            [
                self.written(layer, self.recorded(layer, "heads")[:, position])
                for layer in range(self.layers)
            ]
        )

    def written(
        self, layer: int, mixed: Float[Tensor, "*rows heads value_dim"]
    ) -> Float[Tensor, "*rows heads width"]:
        """Each head's mix of values through its part of the output projection."""
        weight = self.attention(layer).output.weight.unflatten(1, (mixed.shape[-2], -1))
        return torch.einsum("...hd,whd->...hw", mixed, weight)

    @torch.no_grad()
    def streams(self, deltas: Deltas, position: int) -> list[Streams]:
        """The stream that enters each layer, and the last one, with `deltas[:, n]` added to what
        the attention of layer n adds."""
        stream = self.recorded(0, "residual")[position].expand(len(deltas), -1)
        streams = [stream]
        for layer in range(self.layers):
            block = self.block(layer)
            stream = stream + self.recorded(layer, "attention")[position] + deltas[:, layer]
            stream = block.feed_forward_residual(
                stream[:, None],
                lambda x, block=block: block.feed_forward(x, NOTHING),
                "feed_forward",
                NOTHING,
            )[:, 0]
            streams.append(stream)
        return streams

    @torch.no_grad()
    def logits(self, deltas: Deltas, tokens: Sequence[int]) -> Float[Tensor, "senders tokens"]:
        """The logits of some tokens after the last position."""
        hidden = self.model.last_stack.norm(self.streams(deltas, -1)[-1])
        return self.model.head(hidden[None])[0][:, list(tokens)]

    def normed(self, layer: int, stream: Streams) -> Streams:
        return self.block(layer).attention_residual.before(stream)

    @torch.no_grad()
    def through_queries(self, streams: Sequence[Streams], receivers: Sequence[HeadPlace]) -> Deltas:
        """What the receivers add at the last position, less what they added, if their queries are
        made of these streams; keys and values stay."""
        deltas = self.no_deltas(len(streams[0]))
        for layer in sorted({layer for layer, _ in receivers}):
            heads = [head for other, head in receivers if other == layer]
            attention = self.attention(layer)
            query = self.queries(layer, streams[layer])[:, heads]
            shared = [head * attention.config.kv_heads // attention.config.heads for head in heads]
            key = self.recorded(layer, "key")[shared]
            value = self.recorded(layer, "value")[shared]
            scores = torch.einsum("shd,htd->sht", query, key) * attention.scale
            mixed = torch.einsum("sht,htd->shd", scores.softmax(-1), value)
            change = mixed - self.recorded(layer, "heads")[heads, -1]
            weight = attention.output.weight.unflatten(1, (attention.config.heads, -1))[:, heads]
            deltas[:, layer] += torch.einsum("shd,whd->sw", change, weight)
        return deltas

    def queries(self, layer: int, stream: Streams) -> Float[Tensor, "senders heads head_dim"]:
        """The queries of a layer at the last position, rotated."""
        attention = self.attention(layer)
        config = attention.config
        place = place_for(
            config.positions,
            config.head_dim,
            config.heads,
            torch.tensor([[len(self.ids) - 1]]),
            None,
            causal=True,
        )
        joined = attention.query(self.normed(layer, stream)[:, None])
        return attention.as_queries(joined, place)[:, :, 0]

    @torch.no_grad()
    def through_values(
        self, streams: Sequence[Streams], receivers: Sequence[HeadPlace], position: int
    ) -> Deltas:
        """What the receivers add at the last position, less what they added, if their values at an
        earlier position are made of these streams; queries and keys stay."""
        deltas = self.no_deltas(len(streams[0]))
        for layer, head in receivers:
            attention = self.attention(layer)
            config = attention.config
            shared = head * config.kv_heads // config.heads
            value = attention.value(self.normed(layer, streams[layer]))
            value = value.unflatten(-1, (config.kv_heads, -1))[:, shared]
            change = value - self.recorded(layer, "value")[shared, position]
            weight = attention.output.weight.unflatten(1, (config.heads, -1))[:, head]
            share = self.weights(layer, head)[position]
            deltas[:, layer] += share * torch.einsum("sd,wd->sw", change, weight)
        return deltas

    def weights(self, layer: int, head: int, row: int = -1) -> Float[Tensor, " key"]:
        """The attention of one position to itself and those before it."""
        row = row % len(self.ids)
        attention = self.attention(layer)
        shared = head * attention.config.kv_heads // attention.config.heads
        key = self.recorded(layer, "key")[shared, : row + 1]
        return (key @ self.recorded(layer, "query")[head, row] * attention.scale).softmax(-1)

    def no_deltas(self, senders: int) -> Deltas:
        return torch.zeros(senders, self.layers, self.model.last_stack.config.width)


@torch.no_grad()
def sender_deltas(clean: FrozenRun, other: FrozenRun, position: int) -> Deltas:
    """One sender per head, layer by layer: what it adds in the other text, less what it adds."""
    change = other.head_writes(position) - clean.head_writes(position)
    layers, heads, width = change.shape
    deltas = torch.zeros(layers, heads, layers, width)
    for layer in range(layers):
        deltas[layer, :, layer] = change[layer]
    return deltas.flatten(0, 1)
