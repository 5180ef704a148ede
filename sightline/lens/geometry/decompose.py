"""Decomposition of attention scores into direction and length.

    score_ij = |q_i| · |k_j| · cos θ_ij · scale      then soft-cap and bias, where a model has them

Which key a row prefers is decided by |k_j| and cos θ_ij; |q_i| multiplies the whole row, so it
changes the sharpness and never the ranking.

A length needs an origin, and softmax has none: it ignores a vector added to all keys. So the shares
are given from zero (`raw`) and from each row's mean key (`centred`), with or without the first
token, which is often a sink; `shares` defines them. `origin` chooses which of the two `shares`,
`direction` and `length` mean; by default the mean, or zero where all keys have the same length. A
share describes the scores. It does not tell how much a model needs direction or length: that is
measured by interventions (`interventions.keys`, `sightline lab run geometry`).

In cosine attention |k_j| = 1: from zero its length share is 0. The same holds for nGPT as long as
the entries of s_qk, which start as ones, are equal; training makes them differ, which gives length
a share: in a small model that learned to copy, at most 2% of the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.errors import InputError, short_repr
from sightline.lens.geometry.shares import (
    Origin,
    PerPair,
    PerRow,
    Shares,
    Split,
    band_of,
    centred_split,
    concat_splits,
    mean_shares,
    nan_mean,
    raw_split,
)
from sightline.lens.trace.layer import Look, Site, checked_index
from sightline.lens.trace.trace import Trace

PAIRS_PER_BAND = 1 << 18  # (query, key) pairs per band: about 40 MiB
EQUAL_LENGTH = 1e-5  # relative difference below which lengths count as equal
ORIGIN_NAMES: dict[Origin, str] = {"mean": "the mean key", "zero": "zero"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """One head's q and k as lengths and angles, and the shares of each. Rows are queries, columns
    keys."""

    site: Site
    head: int
    scale: float
    softcap: float | None
    query_length: PerRow
    bias: PerPair | None
    allowed: Bool[Tensor, "query key"]
    raw: Split
    centred: Split
    multiple_stacks: bool = (
        False  # the model has an encoder and a decoder, so that a layer's number is not enough
    )
    chosen_origin: Origin | None = None
    sink: bool = True  # whether the first key takes part

    def __repr__(self) -> str:
        queries, keys = self.allowed.shape
        place = site_name(self.site, multiple_stacks=self.multiple_stacks)
        shares = f"direction {self.direction:.0%}, length {self.length:.0%} from {self.origin}"
        return f"<Geometry of {place}, head {self.head}: {shares}, {queries} queries × {keys} keys>"

    def _repr_html_(self) -> str:
        """The shares as a table, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        rows = [
            (name, shares.direction, shares.length, shares.norms_equalised, shares.angles_flattened)
            for name, shares in (("zero", self.raw.shares), ("mean", self.centred.shares))
        ]
        header = ("origin", "direction", "length", "KL, norms equalised", "KL, angles flattened")
        return result_table(self.line(), header, rows)

    @property
    def key_length(self) -> Float[Tensor, " key"]:
        return self.raw.key_length[0]

    @property
    def cosine(self) -> PerPair:
        """cos θ of each pair, masked ones included; 0 where q or k is zero."""
        return self.raw.cosine

    @property
    def on_sphere(self) -> bool:
        """Whether all keys have the same length, as in cosine attention."""
        return float(self.key_length.max() - self.key_length.min()) <= EQUAL_LENGTH * float(
            self.key_length.max()
        )

    @property
    def origin(self) -> Origin:
        """The origin of `shares`: the chosen one; else the mean, or zero where all keys have the
        same length."""
        return self.chosen_origin or ("zero" if self.on_sphere else "mean")

    @property
    def split(self) -> Split:
        """The scores as length × direction from this origin."""
        return self.raw if self.origin == "zero" else self.centred

    @property
    def shares(self) -> Shares:
        """The shares from this origin."""
        return self.split.shares

    def products(self, *, centred: bool = False) -> PerPair:
        """|q| · |k| · cos θ · scale (+ offset, if centred): q·k · scale, recomposed."""
        split = self.centred if centred else self.raw
        return (
            self.query_length[:, None] * split.key_length * split.cosine * self.scale
            + split.offset[:, None]
        )

    def scores(self, *, centred: bool = False) -> PerPair:
        """The scores before the softmax, recomposed from the parts; −∞ where masked."""
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
        """The shares from both origins, the chosen one first: "In layer 5, head 1, lengths from the
        mean key: direction explains 83% of the score variance, length 17%; from zero: …"."""
        place = f"In {site_name(self.site, multiple_stacks=self.multiple_stacks)}, head {self.head}"
        first = "" if self.sink else ", without the first token"
        here, other = (
            (ORIGIN_NAMES[origin], shares_sentence(split.shares))
            for origin, split in self._both_splits()
        )
        if math.isnan(self.shares.direction):
            return f"{place}{first}, {here[1]}."
        return f"{place}{first}, lengths from {here[0]}: {here[1]}; from {other[0]}: {other[1]}."

    def _both_splits(self) -> list[tuple[Origin, Split]]:
        """Both origins, the chosen one first."""
        both: list[tuple[Origin, Split]] = [("mean", self.centred), ("zero", self.raw)]
        return both if self.origin == "mean" else both[::-1]


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The means over one layer's heads."""

    site: Site
    query_length: float
    key_length: float
    cosine: float  # over visible pairs
    centred_key_length: float  # these two over the same pairs
    centred_cosine: float
    raw: Shares
    centred: Shares
    shares: Shares  # from the chosen origin


def geometry_of(
    trace: Trace,
    layer: int,
    head: int,
    *,
    stack: str | None = None,
    cross: bool = False,
    origin: Origin | None = None,
    sink: bool = True,
) -> Geometry:
    """The geometry of one head of a trace. `origin` is that of `shares`, "mean" or "zero";
    `sink=False` leaves the first token out."""
    if origin not in (None, *ORIGIN_NAMES):
        raise InputError(
            f"origin={short_repr(origin)}",
            expected="mean or zero",
            fix='geometry(…, origin="zero")',
        )
    look = trace.look(layer, stack=stack, cross=cross)
    head = checked_index("head", head, look.heads)
    has_two = len(trace.config.stacks) > 1
    return measure_head(look, head, multiple_stacks=has_two, origin=origin, sink=sink)


def geometry_by_layer(
    trace: Trace, *, origin: Origin | None = None, sink: bool = True
) -> list[LayerGeometry]:
    """The geometry of every traced attention layer, one head in memory at a time."""
    return [layer_geometry(look, origin=origin, sink=sink) for look in trace.looks.values()]


def layer_geometry(look: Look, *, origin: Origin | None = None, sink: bool = True) -> LayerGeometry:
    """The means over the heads of one layer; heads whose keys do not differ are left out of the
    shares."""
    heads = (measure_head(look, head, origin=origin, sink=sink) for head in range(look.heads))
    numbers, shares = zip(*(_head_means(head) for head in heads), strict=True)
    query, key, cosine, centred_key, centred_cosine = (
        nan_mean(column) for column in zip(*numbers, strict=True)
    )
    raw, centred, preferred = (mean_shares(column) for column in zip(*shares, strict=True))
    return LayerGeometry(
        look.site, query, key, cosine, centred_key, centred_cosine, raw, centred, preferred
    )


def _head_means(head: Geometry) -> tuple[list[float], tuple[Shares, Shares, Shares]]:
    """A head's mean lengths and cosines, and its shares."""
    visible = head.allowed
    pairs = (head.raw.cosine, head.centred.key_length, head.centred.cosine)
    means = [
        float(x.mean())
        for x in (head.query_length, head.key_length[visible.any(0)], *(x[visible] for x in pairs))
    ]
    return means, (head.raw.shares, head.centred.shares, head.shares)


@torch.no_grad()
def measure_head(
    look: Look,
    head: int,
    *,
    multiple_stacks: bool = False,
    origin: Origin | None = None,
    sink: bool = True,
) -> Geometry:
    """The geometry of one head, computed in float64 by bands of rows, stored in float32."""
    one = look.only(head)
    parts = list[GeometryRows]()
    band_rows = max(1, PAIRS_PER_BAND // max(1, one.key.shape[2]))
    for start in range(0, one.queries, band_rows):
        band = band_of(one, slice(start, min(start + band_rows, one.queries)), sink=sink)
        bias = None if band.bias is None else band.bias.float()
        parts.append(
            GeometryRows(
                band.query_length[:, 0].float(),
                bias,
                band.allowed,
                raw_split(band),
                centred_split(band),
            )
        )
    lengths, biases, allowed, raws, centreds = zip(*parts, strict=True)
    bias = None if one.scoring.bias is None else torch.cat(biases)
    scale = look.scoring.scale
    softcap = look.scoring.softcap
    length = torch.cat(lengths)
    splits = concat_splits(raws, one_length=True), concat_splits(centreds)
    return Geometry(
        look.site, head, scale, softcap, length, bias, torch.cat(allowed), *splits,
        multiple_stacks, origin, sink,
    )  # fmt: skip


class GeometryRows(NamedTuple):
    """The geometry of some rows."""

    query_length: PerRow
    bias: PerPair | None
    allowed: Bool[Tensor, "query key"]
    raw: Split
    centred: Split


# --------------------------------------------------------------------------------------- in words


def site_name(site: Site, *, multiple_stacks: bool) -> str:
    """A site in words."""
    stack, layer, cross = site
    return (
        f"the {stack}'s layer {layer}{', cross-attention' if cross else ''}"
        if multiple_stacks
        else f"layer {layer}"
    )


def shares_sentence(shares: Shares) -> str:
    """The shares of direction and length in words."""
    if math.isnan(shares.direction):
        return "no query sees two keys that differ, so there is nothing to decompose"
    direction = round(100 * shares.direction)
    if 0 <= direction <= 100:
        return f"direction explains {direction}% of the score variance, length {100 - direction}%"
    dominant, opposing = ("direction", "length") if direction > 100 else ("length", "direction")
    percent = max(direction, 100 - direction)
    return (
        f"{dominant} explains {percent}% of the score variance, and {opposing} opposes it"
        f" (−{percent - 100}%)"
    )
