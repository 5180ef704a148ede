"""What layer 1's induction heads need from layer 0: its previous-token heads, through their keys.

A head of layer 0 is cut by replacing its output with its mean over rows and positions, so that it
no longer writes which token came before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from sightline.core.model import Transformer
from sightline.lab.measures.repeats import HEADS, early_and_late_loss, probe_heads, score_of
from sightline.lens.heads.patterns import induction_pattern
from sightline.record import Edit, Place, Recorder

SHARE = 0.5  # a head is a previous-token head if its score is above half of the best head's
HEADS_OF_FIRST: Place = ("decoder", 0, "heads")
Edits = Mapping[Place, Edit]


def measure_composition(model: Transformer, tokens: Tensor) -> dict[str, Any]:
    """Induction score and late loss of a model of two layers: intact, with layer 0's previous-token
    heads cut, with its other heads cut; and the score with only layer 1's keys, or only its
    queries, computed from the stream in which the previous-token heads are cut."""
    previous, others = heads_by_role(model)
    links = torch.stack([induction_pattern(row) for row in tokens[:, :-1]])
    best = best_induction_head(model)
    cuts = {"intact": (), "previous": previous, "others": others}
    found: dict[str, Any] = {"heads": len(previous), "other heads": len(others)}
    for name, heads in cuts.items():
        edits = {HEADS_OF_FIRST: partial(replace_by_mean, heads=heads)}
        found[f"{name} score"] = link_weight(model, tokens, links, best, edits)
        found[f"{name} late"] = early_and_late_loss(model, tokens, edits)[1]
    cut = {HEADS_OF_FIRST: partial(replace_by_mean, heads=previous)}
    for plural, name in (("keys", "key"), ("queries", "query")):
        instead = partial(replaced, by=recorded(model, tokens, name, cut))
        through = cast(Edits, {("decoder", 1, name): instead})
        found[f"{plural} score"] = link_weight(model, tokens, links, best, through)
    return found


def heads_by_role(model: Transformer) -> tuple[list[int], list[int]]:
    """The heads of layer 0 that attend to the previous token, and the others."""
    heads = probe_heads(model)
    scores = [score_of(heads, head, "previous") for head in heads.heads if head.layer == 0]
    previous = [n for n, score in enumerate(scores) if score > SHARE * max(scores)]
    return previous, [n for n in range(len(scores)) if n not in previous]


def best_induction_head(model: Transformer) -> int:
    """The head of layer 1 with the highest induction score."""
    heads = probe_heads(model)
    scores = [score_of(heads, head, "induction") for head in heads.heads if head.layer == 1]
    return max(range(HEADS), key=scores.__getitem__)


def link_weight(
    model: Transformer, tokens: Tensor, links: Tensor, head: int, edits: Edits
) -> float:
    """The mean weight of a head of layer 1 on the links [batch, query, key], over the queries that
    have one."""
    record = Recorder({"weights"}, layers={1}, edits=edits)
    with torch.inference_mode():
        model(tokens[:, :-1], record=record)
    weights = record["decoder", 1, "weights"][:, head]
    return float((weights * links).sum() / links.any(-1).sum())


def recorded(model: Transformer, tokens: Tensor, name: str, edits: Edits) -> Tensor:
    """The queries or keys of layer 1 under edits of layer 0."""
    record = Recorder({name}, layers={1}, edits=edits)
    with torch.inference_mode():
        model(tokens[:, :-1], record=record)
    return cast(Tensor, record["decoder", 1, name])


def replace_by_mean(heads_output: Tensor, heads: Sequence[int]) -> Tensor:
    """Replace the outputs [batch, heads, time, head_dim] of some heads by their means."""
    changed = heads_output.clone()
    chosen = list(heads)
    changed[:, chosen] = heads_output[:, chosen].mean((0, 2), keepdim=True)
    return changed


def replaced(value: Tensor, by: Tensor) -> Tensor:
    assert value.shape == by.shape
    return by
