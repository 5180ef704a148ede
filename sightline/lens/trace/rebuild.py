"""Recompute q, k and v on demand, bit for bit, from the input of attention.

    query, key, value = x W_Q, x W_K, x W_V      x: the input of the layer, a third of
                                                 the size of q, k and v

The most recently used layers are cached. If the weights have changed since the pass, an error is
raised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sightline.core.context import Place, place_for
from sightline.core.masks import Mask
from sightline.core.model import Transformer
from sightline.core.multi_head import split_heads
from sightline.core.positions import Bias
from sightline.errors import InputError
from sightline.lens.trace.layer import Look, Site, attention_at, copy_scoring, sites_of
from sightline.record import Recorder

State = tuple[tuple[int, int], ...]
CACHED_LAYERS = 2  # layers whose q, k and v are cached


@dataclass(frozen=True, slots=True)
class AttentionInput:
    """The input of one attention layer, and its mask and bias."""

    x: Float[Tensor, "1 query width"]
    context: Float[Tensor, "1 key context"] | None
    mask: Mask
    bias: Bias | None


class LazyLayers(Mapping[Site, Look]):
    """The layers of a pass, each computed on demand from `parts`."""

    def __init__(self, parts: Mapping[Site, Any]) -> None:
        self.parts = parts
        self.made: OrderedDict[Site, Look] = OrderedDict()

    def make(self, site: Site) -> Look:
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """The bytes stored, without the cached layers."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Site]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __contains__(self, site: object) -> bool:
        return site in self.parts

    def __getitem__(self, site: Site) -> Look:
        if site not in self.parts:
            raise KeyError(site)
        if site not in self.made:
            self.made[site] = self.make(site)
            while len(self.made) > CACHED_LAYERS:
                self.made.popitem(last=False)
        self.made.move_to_end(site)
        return self.made[site]


class RecomputedLayers(LazyLayers):
    """Layers recomputed from their inputs."""

    def __init__(self, transformer: Transformer, reads: dict[Site, AttentionInput]) -> None:
        super().__init__(reads)
        self.transformer = transformer
        self.reads = reads
        self.states = {site: weights_state(attention_at(transformer, site)) for site in reads}

    def make(self, site: Site) -> Look:
        check_weights(attention_at(self.transformer, site), self.states[site])
        return recompute_layer(self.transformer, site, self.reads[site])

    @property
    def bytes(self) -> int:
        sizes = {
            x.data_ptr(): x.numel() * x.element_size()
            for read in self.reads.values()
            for x in (read.x, read.context)
            if x is not None
        }
        return sum(sizes.values())


def weights_state(part: nn.Module) -> State:
    """A fingerprint of the weights: their addresses and version counters."""
    return tuple((x.data_ptr(), 0 if x.is_inference() else x._version) for x in part.parameters())


def check_weights(part: nn.Module, state: State) -> None:
    """Raise if the weights have changed since `state`."""
    if weights_state(part) != state:
        fix = "trace again, or trace.save(file) before the model changes"
        raise InputError(
            "the model's weights have changed since this trace",
            expected="the weights of the pass",
            fix=fix,
        )


@torch.no_grad()
def recompute_layer(transformer: Transformer, site: Site, read: AttentionInput) -> Look:
    """q, k and v, by the same matrix products as in the pass."""
    attention = attention_at(transformer, site)
    mask = read.mask
    config = attention.config
    place = Place(mask.query_at, None, causal=False)
    if not site[2]:
        place = place_for(
            config.positions,
            config.head_dim,
            config.heads,
            mask.query_at,
            mask.offset,
            causal=mask.causal,
        )
    query, key, value = attention.project(read.x, read.context)
    return Look(
        site,
        attention.as_queries(query, place),
        attention.as_keys(key, place),
        split_heads(value, config.kv_heads),
        copy_scoring(attention.scoring(mask, read.bias)),
    )


def recomputed_layers(recorder: Recorder, transformer: Transformer) -> RecomputedLayers:
    """The layers whose input, mask and bias a recorder has."""
    inputs: dict[Site, AttentionInput] = {}
    for site in sites_of(transformer):
        stack, layer, cross = site
        prefix = "cross_" if cross else ""
        if (stack, layer, prefix + "input") in recorder.kept:
            x, mask, bias = (
                recorder[stack, layer, prefix + name] for name in ("input", "mask", "bias")
            )
            inputs[site] = AttentionInput(
                x, recorder["encoder", None, "output"] if cross else None, mask, bias
            )
    return RecomputedLayers(transformer, inputs)
