"""The loss of a real model, in nats per token, when its keys lose their differences of length or of
direction; the shares of the score variance beside it; and the origin at which all keys have the
same length."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.lab.measures.real_text import loss_with, real_model, text_ids
from sightline.lens.geometry.decompose import layer_geometry
from sightline.lens.geometry.shares import Origin, nan_mean
from sightline.lens.interventions.edits import Edits
from sightline.lens.interventions.keys import PARTS, How, change_keys
from sightline.lens.trace.trace import trace_of

if TYPE_CHECKING:
    from sightline.lens.trace.layer import Look
    from sightline.lens.trace.subject import Subject
    from sightline.lens.trace.trace import Trace

ORIGINS: tuple[Origin, ...] = ("zero", "mean")
SINKS = {"all": False, "others": True}  # whether the first key is left as it is
CHANGES: tuple[tuple[Origin, How], ...] = (
    ("zero", "equal"),
    ("mean", "equal"),
    ("zero", "shuffled"),
)
SPHERE_KEYS = 48  # at most head_dim + 1 points in general position lie on one sphere


def measure_key_costs(name: str, seed: int) -> dict[str, Any]:
    """One text of one model."""
    return key_costs(real_model(name), text_ids(name, seed), seed)


def key_costs(subject: Subject, ids: list[int], seed: int = 0) -> dict[str, Any]:
    """The loss as it is and after each change of the keys, and the shares of direction."""
    losses = {"as is": loss_with(subject, ids, Edits())}
    for (origin, how), part, (which, keep) in product(CHANGES, PARTS, SINKS.items()):
        edits = change_keys(subject, part, how=how, origin=origin, keep_first=keep, seed=seed)
        losses[change_name(origin, how, part, which)] = loss_with(subject, ids, edits)
    trace = trace_of(subject, ids, what=("query", "key"))
    return {"losses": losses, "tokens": len(ids), **measure_shares(trace)}


def change_name(origin: Origin, how: How, part: str, which: str) -> str:
    """`zero equal length others`"""
    return f"{origin} {how} {part} {which}"


def measure_shares(trace: Trace) -> dict[str, Any]:
    """The share of direction in each layer, from both origins, of all keys and without the first;
    the mean length of the first key and of the others; |q| |k| cos θ against the score."""
    shares: dict[str, list[float]] = {}
    for which, without in SINKS.items():
        layers = [layer_geometry(look, sink=not without) for look in trace.looks.values()]
        shares[f"zero {which}"] = [layer.raw.direction for layer in layers]
        shares[f"mean {which}"] = [layer.centred.direction for layer in layers]
    looks = list(trace.looks.values())
    return {
        "shares": shares,
        "first length": [float(look.key[0, :, 0].norm(dim=-1).mean()) for look in looks],
        "other length": [float(look.key[0, :, 1:].norm(dim=-1).mean()) for look in looks],
        "apart": max(score_difference(trace, look) for look in looks),
        "sphere": max(sphere_spread(key) for look in looks for key in look.key[0]),
        "sphere before": nan_mean(
            relative_spread(key[:SPHERE_KEYS].double().norm(dim=-1))
            for look in looks
            for key in look.key[0]
        ),
        "sphere weights": max(sphere_weight_change(look) for look in looks),
    }


def score_difference(trace: Trace, look: Look) -> float:
    """The largest |q| |k| cos θ · scale − score of the first head, as a share of the largest
    score."""
    head = trace.geometry(look.site[1], 0, stack=look.site[0])
    scores = look.scores(0)[head.allowed]
    return float((head.scores()[head.allowed] - scores).abs().max() / scores.abs().max())


# ----------------------------------------------------------------------------- an origin of choice


def sphere_centre(keys: Tensor) -> Tensor:
    """The point with the same distance to all keys, if there is one (least squares):
    2 (k_j − k_0)·(c − k_0) = |k_j − k_0|²."""
    apart = (keys - keys[0])[1:]
    solved = torch.linalg.lstsq(2 * apart, apart.square().sum(-1, keepdim=True), driver="gelsd")
    return keys[0] + solved.solution[:, 0]


def sphere_spread(keys: Tensor) -> float:
    """(longest − shortest) / mean of the keys' lengths from that point."""
    keys = keys[:SPHERE_KEYS].double()
    return relative_spread((keys - sphere_centre(keys)).norm(dim=-1))


def relative_spread(lengths: Tensor) -> float:
    return float((lengths.max() - lengths.min()) / lengths.mean())


def sphere_weight_change(look: Look) -> float:
    """The largest change of any weight when this origin is subtracted from the keys of each head,
    in float32: an origin too far away would lose them in rounding."""
    query = look.query[0, :, :SPHERE_KEYS].float()
    keys = look.keys[0, :, :SPHERE_KEYS].float()
    moved = torch.stack([key - sphere_centre(key.double()).float() for key in keys])
    before, after = (
        causal_weights(query @ key.transpose(-2, -1) * look.scoring.scale) for key in (keys, moved)
    )
    return float((before - after).abs().max())


def causal_weights(scores: Tensor) -> Tensor:
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)
