"""One attention layer of a pass of the fused kernel: q and k, and everything between q·k and the
softmax.

    scores  = q kᵀ · scale + bias            any row, head or tile, computed on demand
    weights = softmax(scores)

Memory is O(time): the maps are never stored.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex, TypeGuard, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.core.attention import (
    TILE,
    Scoring,
    attention_scores,
    attention_weights,
    mix,
    repeat_kv_heads,
)
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention
from sightline.core.positions import ALiBiBias, Bias, RelativeTable, TableBias, TensorBias
from sightline.errors import InputError, short_repr
from sightline.record import Recorder, Site

Map = Float[Tensor, "*heads query key"]
Rows = SupportsIndex | slice | Sequence[SupportsIndex] | None


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """q, k and v (as the kernel received them) of one attention layer, and its scoring. The batch
    is one text (`of` selects one of many)."""

    site: Site
    query: Float[Tensor, "1 heads query head_dim"]
    key: Float[Tensor, "1 kv_heads key head_dim"]
    value: Float[Tensor, "1 kv_heads key value_dim"] | None
    scoring: Scoring
    given: Float[Tensor, "1 heads query key"] | None = (
        None  # weights set by an edit, which q and k do not reproduce
    )

    def __repr__(self) -> str:
        stack, layer, cross = self.site
        kind = " cross-attention" if cross else ""
        sizes = f"{self.heads} heads, {self.queries} queries × {self.key.shape[2]} keys"
        return f"<Look {stack} layer {layer}{kind}: {sizes}>"

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def keys(self) -> Float[Tensor, "1 heads key head_dim"]:
        """k, repeated where several heads share one."""
        return repeat_kv_heads(self.key, self.heads)

    def weights(self, head: int | None = None, rows: Rows = None) -> Map:
        """softmax(q kᵀ · scale + bias): `[heads, query, key]`, or `[query, key]` of one head; or
        some rows of these."""
        if self.given is not None:
            weights = self.only(head).given[0][:, list(checked_rows(rows, self.queries))]  # pyright: ignore[reportOptionalSubscript]
            return squeeze_selection(weights, head, rows)
        return self._rebuilt(attention_weights, head, rows)

    def scores(self, head: int | None = None, rows: Rows = None) -> Map:
        """q kᵀ · scale + bias; −∞ where masked."""
        return self._rebuilt(_masked_scores, head, rows)

    @torch.no_grad()
    def mixed(self, head: int | None = None) -> Float[Tensor, "*heads query value_dim"]:
        """Σ_j w_ij v_j: each head's output, before the output projection."""
        look = self.only(head)
        bands = [
            mix(look.weights(rows=band)[None], look.needed_value())[0]
            for band in look.bands(range(look.queries))
        ]
        mixed = torch.cat(bands, dim=1)
        return mixed if head is None else mixed[0]

    def only(self, head: int | None) -> Look:
        """The layer with one head only; unchanged if `head` is None."""
        if head is None:
            return self
        head = checked_index("head", head, self.heads)
        shared = head * self.key.shape[1] // self.heads
        value = None if self.value is None else self.value[:, shared : shared + 1]
        bias = None if self.scoring.bias is None else bias_of_head(self.scoring.bias, head)
        sinks = None if self.scoring.sinks is None else self.scoring.sinks[head : head + 1]
        scoring = replace(self.scoring, bias=bias, sinks=sinks)
        query = self.query[:, head : head + 1]
        key = self.key[:, shared : shared + 1]
        given = None if self.given is None else self.given[:, head : head + 1]
        return replace(self, query=query, key=key, value=value, scoring=scoring, given=given)

    def of(self, text: int) -> Look:
        """The layer with one text of a batch, padding included."""
        text = checked_index("text", text, self.query.shape[0])
        pick: Callable[[Tensor], Tensor] = lambda x: x if x.shape[0] == 1 else x[text : text + 1]  # noqa: E731
        mask = self.scoring.mask
        bias = self.scoring.bias
        value = self.value
        inside = {
            name: x if x is None else pick(x)
            for name, x in (
                ("query_document", mask.query_document),
                ("key_document", mask.key_document),
            )
        }
        mask = replace(mask, query_at=pick(mask.query_at), key_at=pick(mask.key_at), **inside)
        bias = TensorBias(pick(bias.values)) if isinstance(bias, TensorBias) else bias
        scoring = replace(self.scoring, mask=mask, bias=bias)
        value, given = (x if x is None else pick(x) for x in (value, self.given))
        return replace(
            self,
            query=pick(self.query),
            key=pick(self.key),
            value=value,
            scoring=scoring,
            given=given,
        )

    def needed_value(self) -> Float[Tensor, "1 kv_heads key value_dim"]:
        """v, if it was recorded."""
        if self.value is None:
            raise InputError(
                "a trace without values",
                expected="what=(…, 'value')",
                fix="trace again and keep the values",
            )
        return self.value

    def bands(self, rows: Sequence[int]) -> list[slice]:
        """Runs of consecutive rows, each within one tile of memory."""
        max_rows = max(1, TILE // max(1, self.heads * self.key.shape[2]))
        bands = list[slice]()
        for row in rows:
            if bands and row == bands[-1].stop and row - bands[-1].start < max_rows:
                bands[-1] = slice(bands[-1].start, row + 1)
            else:
                bands.append(slice(row, row + 1))
        return bands

    @torch.no_grad()
    def _rebuilt(
        self, formula: Callable[[Tensor, Tensor, Scoring], Tensor], head: int | None, rows: Rows
    ) -> Map:
        """The formula for these rows, by bands, in at least float32."""
        look = self.only(head)
        selected = checked_rows(rows, self.queries)
        key, everything = (
            look.key.contiguous(),
            slice(0, self.key.shape[2]),
        )  # contiguous, so that a saved trace gives the same bits
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        result = torch.empty(
            look.heads, len(selected), self.key.shape[2], device=self.query.device, dtype=dtype
        )
        done = 0
        for band in look.bands(selected):
            count = band.stop - band.start
            result[:, done : done + count] = formula(
                look.query[:, :, band].contiguous(), key, look.scoring.tile(band, everything)
            )[0]
            done += count
        return squeeze_selection(result, head, rows)


def squeeze_selection(
    values: Float[Tensor, "heads query key"], head: int | None, rows: Rows
) -> Map:
    """The map without the axis of a single head, or of a single row."""
    values = values if head is None else values[0]
    return (
        values[..., 0, :] if isinstance(rows, SupportsIndex) and not is_row_list(rows) else values
    )


def _masked_scores(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    return attention_scores(query, key, scoring).masked_fill(~scoring.mask.allowed(), -torch.inf)


# ----------------------------------------------------------------------------------------- biases


@dataclass(frozen=True)
class HeadBias:
    """One head of a bias of another kind."""

    bias: Bias
    head: int

    def __call__(
        self, query_at: Int[Tensor, "#batch query"], key_at: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch 1 query key"]:
        whole = self.bias(query_at, key_at)
        return whole if whole.shape[1] == 1 else whole[:, self.head : self.head + 1]

    def tile(self, rows: slice, columns: slice) -> Bias:
        return replace(self, bias=self.bias.tile(rows, columns))


def bias_of_head(bias: Bias, head: int) -> Bias:
    """One head of a bias, without computing the other heads where possible."""
    if isinstance(bias, ALiBiBias):
        return ALiBiBias(bias.slopes[head : head + 1])
    if isinstance(bias, TableBias):
        return replace(bias, weight=bias.weight[:, head : head + 1])
    return HeadBias(bias, head)


def copy_scoring(scoring: Scoring) -> Scoring:
    """The scoring with copies of its parameters, so that later training does not change it."""
    bias = scoring.bias
    sinks = scoring.sinks
    if isinstance(bias, RelativeTable):
        bias = TableBias(bias.weight.detach().clone(), bias.max_distance, bias.causal)
    return replace(scoring, bias=bias, sinks=None if sinks is None else sinks.detach().clone())


# ---------------------------------------------------------------------------------------- indices


def checked_index(what: str, number: SupportsIndex, count: int) -> int:
    """An index below `count`, from the end when negative; as a number from 0."""
    try:
        index = count if isinstance(number, bool) else operator.index(number)
    except TypeError:
        index = count
    if not -count <= index < count:
        raise InputError(
            f"{what} {short_repr(number)}",
            expected=f"0 to {count - 1}",
            fix=f"{what}={count - 1} is the last",
        )
    return index % count


def checked_rows(rows: Rows, count: int) -> Sequence[int]:
    """The selected rows, checked."""
    if rows is None:
        return range(count)
    if isinstance(rows, slice):
        try:
            return range(count)[rows]
        except (TypeError, ValueError):
            raise InputError(
                f"rows {short_repr(rows)}", expected="a slice of integers", fix="rows=slice(0, 5)"
            ) from None
    if isinstance(rows, str) or not isinstance(rows, SupportsIndex | Iterable):
        raise InputError(
            f"rows {short_repr(rows)}",
            expected="a number, a slice or a list of numbers",
            fix="rows=-1 is the last",
        )
    return [
        checked_index("row", row, count)
        for row in (rows if is_row_list(rows) else [cast(SupportsIndex, rows)])
    ]


def is_row_list(
    rows: SupportsIndex | Iterable[SupportsIndex],
) -> TypeGuard[Iterable[SupportsIndex]]:
    """Whether these are several rows; tensors and arrays by their number of axes."""
    return bool(getattr(rows, "ndim", isinstance(rows, Iterable)))


# --------------------------------------------------------------------------------------- recorder


def look_at(recorder: Recorder, transformer: Transformer, site: Site) -> Look:
    """One attention layer from a recorder that has its query, key, mask and bias."""
    stack, layer, cross = site
    prefix = "cross_" if cross else ""
    query, key, mask, bias = (
        recorder[stack, layer, prefix + name] for name in ("query", "key", "mask", "bias")
    )
    value, given = (
        recorder.kept.get((stack, layer, prefix + name)) for name in ("value", "weights")
    )
    return Look(
        site,
        query,
        key,
        value,
        copy_scoring(attention_at(transformer, site).scoring(mask, bias)),
        given,
    )


def attention_at(transformer: Transformer, site: Site) -> Attention:
    """The attention layer of a site."""
    stack, layer, cross = site
    block = getattr(transformer, stack)[layer]
    return block.cross_attention if cross else block.attention


def sites_of(transformer: Transformer) -> list[Site]:
    """Every attention layer of a model, encoder first."""
    sites: list[Site] = []
    for stack in (transformer.encoder, transformer.decoder):
        for layer in range(0 if stack is None else stack.config.layers):
            assert stack is not None
            sites.append((stack.name, layer, False))
            if stack.config.block(layer).cross_attention is not None:
                sites.append((stack.name, layer, True))
    return sites
