"""Edits of what the keys of a row differ in: their lengths or their directions.

    score_ij = |q_i| · length_ij · cos θ_ij · scale + offset_i          see geometry.shares

    logits_with(model, text, change_keys(model, "length"))                   every length → the mean
    logits_with(model, text, change_keys(model, "direction"))                every cosine → the mean
    logits_with(model, text, change_keys(model, "length", how="shuffled"))   permuted in each row
    logits_with(model, text, change_keys(model, "length", keep_first=True))  the first key as it is

The loss after such an edit says how much the model needs what was taken from its keys; a share of
the score variance does not. Lengths are measured from `origin`: zero, or each row's mean key.
Means and permutations are over the keys that a row may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.core.attention import Scoring, masked_softmax, repeat_kv_heads
from sightline.errors import InputError, short_repr
from sightline.lens.geometry.shares import (
    Origin,
    average_over,
    lengths_and_cosines,
    without_first,
)
from sightline.lens.interventions.edits import Edits, checked_layer
from sightline.lens.trace.layer import attention_at, sites_of
from sightline.lens.trace.subject import Subject, eval_transformer

Part = Literal["length", "direction"]
How = Literal["equal", "shuffled"]
PerPair = Float[Tensor, "heads query key"]
Visible = Bool[Tensor, "heads query key"]
ORIGINS: tuple[Origin, ...] = ("zero", "mean")
PARTS: tuple[Part, ...] = ("length", "direction")
HOWS: tuple[How, ...] = ("equal", "shuffled")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One change of the keys of every row; `keep_first` leaves the first key as it is."""

    part: Part
    how: How = "equal"
    origin: Origin = "zero"
    keep_first: bool = False
    seed: int = 0

    def of(
        self, values: PerPair, average: Float[Tensor, "heads query key"], visible: Visible
    ) -> PerPair:
        """The lengths or cosines after the change."""
        if self.how == "equal":
            return (average * values).sum(-1, keepdim=True).expand_as(visible)
        return shuffled_in_rows(values.expand_as(visible), visible, self.seed)


def change_keys(
    subject: Subject,
    part: Part,
    *,
    how: How = "equal",
    origin: Origin = "zero",
    keep_first: bool = False,
    layers: Iterable[int] | None = None,
    seed: int = 0,
) -> Edits:
    """Edits that make the lengths or the cosines of the keys of every row equal, or shuffle them,
    in all self-attention layers or some, for every head. The edited layers run the equation
    kernel."""
    for value, choices in ((part, PARTS), (how, HOWS), (origin, ORIGINS)):
        if value not in choices:
            raise InputError(
                f"{short_repr(value)}",
                expected=" or ".join(choices),
                fix='change_keys(model, "length", how="equal", origin="zero")',
            )
    change = KeyChange(part, how, origin, keep_first, seed)
    return edit_weights(subject, lambda q, k, s: changed_weights(q, k, s, change), layers=layers)


def edit_weights(
    subject: Subject,
    weights: Callable[[Tensor, Tensor, Scoring], Tensor],
    *,
    layers: Iterable[int] | None = None,
) -> Edits:
    """Edits that replace the weights of self-attention by `weights(query, key, scoring)`."""
    transformer = eval_transformer(subject)
    wanted = None if layers is None else {checked_layer(layer) for layer in layers}
    edits = Edits()
    for site in sites_of(transformer):
        name, layer, is_cross = site
        if not is_cross and (wanted is None or layer in wanted):
            scoring = attention_at(transformer, site).scoring
            edits = edits | _Rewrite(scoring, weights).edits(name, layer)
    return edits


@dataclass(slots=True)
class _Rewrite:
    """The edits of one layer: q, k, mask and bias are noted on the way to the weights."""

    scoring: Callable[[Any, Any], Scoring]
    weights: Callable[[Tensor, Tensor, Scoring], Tensor]
    noted: dict[str, Any] = field(default_factory=dict[str, Any])

    def edits(self, stack: str, layer: int) -> Edits:
        names = ("query", "key", "mask", "bias")
        notes = {(stack, layer, name): self._note(name) for name in names}
        return Edits({**notes, (stack, layer, "weights"): self._rewrite})

    def _note(self, name: str) -> Callable[[Any], Any]:
        def keep(value: Any) -> Any:
            self.noted[name] = value
            return value

        return keep

    def _rewrite(self, weights: Tensor) -> Tensor:
        noted = self.noted
        scoring = self.scoring(noted["mask"], noted["bias"])
        return self.weights(noted["query"], noted["key"], scoring).to(weights.dtype)


def changed_weights(
    query: Float[Tensor, "batch heads query head_dim"],
    key: Float[Tensor, "batch kv_heads key head_dim"],
    scoring: Scoring,
    change: KeyChange,
) -> Float[Tensor, "batch heads query key"]:
    """softmax of the scores in which the lengths or cosines of the visible keys were changed;
    soft-cap, bias and sinks are the layer's."""
    query = query.double()
    key = repeat_kv_heads(key, query.shape[1]).double()
    allowed = scoring.mask.allowed()
    bias = None
    if scoring.bias is not None:
        bias = scoring.bias(scoring.mask.query_at, scoring.mask.key_at).double()
        allowed = allowed & ~bias.isneginf()
    changed = without_first(allowed) if change.keep_first else allowed
    changed = changed.expand(*query.shape[:-1], key.shape[-2])
    scores = query @ key.transpose(-2, -1)
    scores = torch.where(changed, changed_products(query, key, changed, change), scores)
    scores = scores * scoring.scale
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    return masked_softmax(scores if bias is None else scores + bias, allowed, scoring.sinks)


def changed_products(query: Tensor, key: Tensor, visible: Visible, change: KeyChange) -> Tensor:
    """q·k with the lengths or cosines of the visible keys changed."""
    average = average_over(visible)
    length, cosine, offset = lengths_and_cosines(query, key, average, change.origin)
    if change.part == "length":
        length = change.of(length, average, visible)
    else:
        cosine = change.of(cosine, average, visible)
    return query.norm(dim=-1, keepdim=True) * length * cosine + offset


def shuffled_in_rows(values: PerPair, visible: Visible, seed: int) -> PerPair:
    """The visible values of each row in random order; the others stay where they are."""
    random = torch.Generator(values.device).manual_seed(seed)
    noise = torch.rand(values.shape, generator=random, device=values.device)
    takes = noise.masked_fill(~visible, 2.0).argsort(dim=-1, stable=True)
    gives = (~visible).to(torch.uint8).argsort(dim=-1, stable=True)
    return values.scatter(-1, gives, values.gather(-1, takes))
