"""A score taken apart: how much of attention is direction, how much is length.

    score_ij = |q_i| · |k_j| · cos θ_ij · scale      then soft-cap and bias, where a model has them

Which key a row prefers is decided by |k_j| and cos θ_ij; |q_i| multiplies a whole row, so it
sharpens or blurs, and never chooses.

How the shares are defined, raw and centred, is in `shares`.

Which to read: the centred ones, since the raw ones say as much about the vector that all keys
share. Where a model looks at its first token to look at nothing, that token's key is short and
stands apart from the others, and raw length and direction cancel. Cosine attention has |k_j| = 1:
there the raw version is the one to read, and its length share is 0. So it is in nGPT as long as
s_qk, which starts as all ones, has equal sizes; training moves them apart and gives length as much
of a say as they differ: in a small model that learned to copy, at most 2% of the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.lens.geometry.shares import (
    PerPair,
    PerRow,
    Shares,
    Split,
    band_of,
    centred,
    joined,
    mean,
    mean_shares,
    raw,
)
from sightline.lens.trace.layer import Look, Site, checked
from sightline.lens.trace.trace import Trace

BAND = 1 << 18  # pairs that are measured at once: some 40 MiB
ONE_LENGTH = 1e-5  # lengths that differ by less than this part are one length


@dataclass(frozen=True, slots=True)
class Geometry:
    """One head's q and k as lengths and angles, and what each contributes. Tokens as in the trace:
    a query is a row."""

    site: Site
    head: int
    scale: float
    softcap: float | None
    query_length: PerRow
    bias: PerPair | None
    allowed: Bool[Tensor, "query key"]
    raw: Split
    centred: Split
    of_several: bool = (
        False  # the model has an encoder and a decoder, so that a layer's number is not enough
    )

    @property
    def key_length(self) -> Float[Tensor, " key"]:
        return self.raw.key_length[0]

    @property
    def cosine(self) -> PerPair:
        """cos θ of each pair, hidden ones too; 0 where q or k is zero."""
        return self.raw.cosine

    @property
    def on_sphere(self) -> bool:
        """Whether all keys have one length, as in cosine attention."""
        return float(self.key_length.max() - self.key_length.min()) <= ONE_LENGTH * float(
            self.key_length.max()
        )

    @property
    def shares(self) -> Shares:
        """The ones to read: centred, or raw where all keys have one length."""
        return (self.raw if self.on_sphere else self.centred).shares

    def products(self, *, centred: bool = False) -> PerPair:
        """|q| · |k| · cos θ · scale (+ offset, if centred): q·k · scale, multiplied back."""
        split = self.centred if centred else self.raw
        return (
            self.query_length[:, None] * split.key_length * split.cosine * self.scale
            + split.offset[:, None]
        )

    def scores(self, *, centred: bool = False) -> PerPair:
        """The scores that go into the softmax, from the parts; −∞ where a token may not look."""
        scores = self.products(centred=centred)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias
        return scores.masked_fill(~self.allowed, -torch.inf)

    @property
    def direction(self) -> float:
        return self.shares.direction

    @property
    def length(self) -> float:
        return self.shares.length

    def line(self) -> str:
        """One sentence: "In layer 5, head 1, 83% of what tells keys apart is direction, 17%
        length."."""
        return (
            f"In {named(self.site, of_several=self.of_several)}, head {self.head},"
            f" {sentence(self.shares)}."
        )


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The means over one layer's heads."""

    site: Site
    query_length: float
    key_length: float
    cosine: float  # over the pairs that may be seen
    centred_key_length: float  # these two over the same pairs
    centred_cosine: float
    raw: Shares
    centred: Shares
    shares: Shares  # the ones to read: centred, or raw where all keys have one length


def geometry_of(
    trace: Trace, layer: int, head: int, *, stack: str | None = None, cross: bool = False
) -> Geometry:
    """One head of a trace, measured."""
    look = trace.look(layer, stack=stack, cross=cross)
    return measured(
        look, checked("head", head, look.heads), of_several=len(trace.config.stacks) > 1
    )


def summary(trace: Trace) -> list[LayerGeometry]:
    """Every attention layer that was traced, one head in memory at a time."""
    return [layer_geometry(look) for look in trace.looks.values()]


def layer_geometry(look: Look) -> LayerGeometry:
    """The means over the heads of one layer; a head with nothing to tell apart is left out of the
    shares."""
    numbers, shares = zip(
        *(_in_short(measured(look, head)) for head in range(look.heads)), strict=True
    )
    query, key, cosine, centred_key, centred_cosine = (
        mean(column) for column in zip(*numbers, strict=True)
    )
    raw, centred, read = (mean_shares(column) for column in zip(*shares, strict=True))
    return LayerGeometry(
        look.site, query, key, cosine, centred_key, centred_cosine, raw, centred, read
    )


def _in_short(head: Geometry) -> tuple[list[float], tuple[Shares, Shares, Shares]]:
    """A head without its maps."""
    seen = head.allowed
    pairs = (head.raw.cosine, head.centred.key_length, head.centred.cosine)
    means = [
        float(x.mean())
        for x in (head.query_length, head.key_length[seen.any(0)], *(x[seen] for x in pairs))
    ]
    return means, (head.raw.shares, head.centred.shares, head.shares)


@torch.no_grad()
def measured(look: Look, head: int, *, of_several: bool = False) -> Geometry:
    """One head, a band of rows at a time in float64, kept in float32."""
    one = look.only(head)
    parts = list[Part]()
    most = max(1, BAND // max(1, one.key.shape[2]))
    for start in range(0, one.queries, most):
        band = band_of(one, slice(start, min(start + most, one.queries)))
        bias = None if band.bias is None else band.bias.float()
        parts.append(
            Part(band.query_length[:, 0].float(), bias, band.allowed, raw(band), centred(band))
        )
    lengths, biases, allowed, raws, centreds = zip(*parts, strict=True)
    bias = None if one.scoring.bias is None else torch.cat(biases)
    scale = look.scoring.scale
    softcap = look.scoring.softcap
    length = torch.cat(lengths)
    splits = joined(raws, one_length=True), joined(centreds)
    return Geometry(
        look.site, head, scale, softcap, length, bias, torch.cat(allowed), *splits, of_several
    )


class Part(NamedTuple):
    """Some rows of a geometry."""

    query_length: PerRow
    bias: PerPair | None
    allowed: Bool[Tensor, "query key"]
    raw: Split
    centred: Split


# --------------------------------------------------------------------------------------- in words


def named(site: Site, *, of_several: bool) -> str:
    """A site as a reader would call it."""
    stack, layer, cross = site
    return (
        f"the {stack}'s layer {layer}{', cross-attention' if cross else ''}"
        if of_several
        else f"layer {layer}"
    )


def sentence(shares: Shares) -> str:
    """What tells keys apart."""
    if math.isnan(shares.direction):
        return "no token sees two keys that differ, so there is nothing to tell apart"
    direction = round(100 * shares.direction)
    if 0 <= direction <= 100:
        return f"{direction}% of what tells keys apart is direction, {100 - direction}% length"
    works, against = ("direction", "length") if direction > 100 else ("length", "direction")
    more = max(direction, 100 - direction)
    return (
        f"what tells keys apart is {works} ({more}%), and {against} works against it"
        f" (−{more - 100}%)"
    )
