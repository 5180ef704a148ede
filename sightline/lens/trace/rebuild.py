"""q, k and v need not be kept either: what attention read is enough to make them again, bit for
bit, when somebody looks.

    query, key, value = x W_Q, x W_K, x W_V      x: the stream as it entered the layer, a third of
                                                 their size

The layers that were looked at last stay at hand. The weights must be those of the pass: if they
have changed since, it says so.
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
from sightline.lens.trace.layer import Look, Site, attention_at, frozen, sites_of
from sightline.record import Recorder

State = tuple[tuple[int, int], ...]
AT_HAND = 2  # layers whose q, k and v are in memory


@dataclass(frozen=True, slots=True)
class Read:
    """What one attention layer read, and who could see whom."""

    x: Float[Tensor, "1 query width"]
    context: Float[Tensor, "1 key context"] | None
    mask: Mask
    bias: Bias | None


class Made(Mapping[Site, Look]):
    """The layers of a pass, each made when it is asked for, of what `parts` keeps."""

    def __init__(self, parts: Mapping[Site, Any]) -> None:
        self.parts = parts
        self.made: OrderedDict[Site, Look] = OrderedDict()

    def make(self, site: Site) -> Look:
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """What is kept, apart from the layers at hand."""
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
            while len(self.made) > AT_HAND:
                self.made.popitem(last=False)
        self.made.move_to_end(site)
        return self.made[site]


class Rebuilt(Made):
    """Made of what each layer read."""

    def __init__(self, transformer: Transformer, reads: dict[Site, Read]) -> None:
        super().__init__(reads)
        self.transformer = transformer
        self.reads = reads
        self.states = {site: state_of(attention_at(transformer, site)) for site in reads}

    def make(self, site: Site) -> Look:
        check_state(attention_at(self.transformer, site), self.states[site])
        return look_again(self.transformer, site, self.reads[site])

    @property
    def bytes(self) -> int:
        kept = {
            x.data_ptr(): x.numel() * x.element_size()
            for read in self.reads.values()
            for x in (read.x, read.context)
            if x is not None
        }
        return sum(kept.values())


def state_of(part: nn.Module) -> State:
    """Which weights these are: where they lie, and how often they were written to."""
    return tuple((x.data_ptr(), 0 if x.is_inference() else x._version) for x in part.parameters())


def check_state(part: nn.Module, state: State) -> None:
    """What is made again must be made of the same weights."""
    if state_of(part) != state:
        fix = "trace again, or trace.save(file) before the model changes"
        raise InputError(
            "the model's weights have changed since this trace",
            expected="the weights of the pass",
            fix=fix,
        )


@torch.no_grad()
def look_again(transformer: Transformer, site: Site, read: Read) -> Look:
    """q, k and v, by the very products of the pass."""
    attention = attention_at(transformer, site)
    mask = read.mask
    form = attention.config
    place = Place(mask.query_at, None, causal=False)
    if not site[2]:
        place = place_for(
            form.positions,
            form.head_dim,
            form.heads,
            mask.query_at,
            mask.offset,
            causal=mask.causal,
        )
    query, key, value = attention.project(read.x, read.context)
    return Look(
        site,
        attention.as_queries(query, place),
        attention.as_keys(key, place),
        split_heads(value, form.kv_heads),
        frozen(attention.scoring(mask, read.bias)),
    )


def rebuilt_from(recorder: Recorder, transformer: Transformer) -> Rebuilt:
    """The layers of which a recorder kept input, mask and bias."""
    found: dict[Site, Read] = {}
    for site in sites_of(transformer):
        stack, layer, cross = site
        prefix = "cross_" if cross else ""
        if (stack, layer, prefix + "input") in recorder.kept:
            x, mask, bias = (
                recorder[stack, layer, prefix + name] for name in ("input", "mask", "bias")
            )
            found[site] = Read(
                x, recorder["encoder", None, "output"] if cross else None, mask, bias
            )
    return Rebuilt(transformer, found)
