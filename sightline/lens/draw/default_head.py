"""Which head to show first: the one that does most of what neither a sink nor a fixed distance
explains.

left_ij  =  w_ij − max(mean of w over column j, mean of w over the diagonal i − j)
score    =  mean over queries i of max_j left_ij,   |i − j| ≥ near,  j ≠ 0

`near` is 2, and up to 8 in longer texts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sightline.errors import InputError
from sightline.lens.draw.view import Array
from sightline.lens.trace.layer import Look, checked
from sightline.lens.trace.trace import Trace

MOST = 256  # rows that are looked at; a longer text is sampled evenly


def most_structured(
    trace: Trace, *, stack: str | None = None, layer: int | None = None, head: int | None = None
) -> tuple[int, int]:
    """Layer and head; among one layer's heads, or among the layers of one head, where that is
    given."""
    name = trace.stack_named(stack)
    if layer is not None:
        layer = trace.look(layer, stack=stack).site[1]
    looks = {
        site[1]: look
        for site, look in trace.looks.items()
        if site[0] == name and not site[2] and layer in (None, site[1])
    }
    if not looks:
        raise InputError(
            "a trace without attention",
            expected="what=('query', 'key', …)",
            fix="trace the text again",
        )
    best = max(
        (found for number, look in looks.items() for found in _scored(number, look, head)),
        key=lambda found: found[0],
    )
    return best[1], best[2]


def alignment_layer(trace: Trace) -> int:
    """The layer whose cross-attention is shown first: the last but one, which aligns best."""
    there = sorted(site[1] for site in trace.looks if site[2])
    return there[max(0, len(there) - 2)] if there else 0


def _scored(layer: int, look: Look, head: int | None) -> list[tuple[float, int, int]]:
    """Each head of a layer with its score; of equals the last is not preferred."""
    chosen = np.unique(np.linspace(0, look.queries - 1, min(MOST, look.queries)).astype(int))
    offset = look.key.shape[2] - look.queries
    heads = range(look.heads) if head is None else [checked("head", head, look.heads)]
    maps = look.weights(rows=chosen.tolist()).float().cpu().numpy()
    mask = look.scoring.mask
    rows = torch.from_numpy(chosen)
    there = None if mask.query_document is None else mask.query_document[:, rows]
    allowed = (
        replace(mask, query_at=mask.query_at[:, rows], query_document=there, offset=None)
        .allowed()[0, 0]
        .cpu()
        .numpy()
    )
    return [(structure(maps[number], chosen + offset, allowed), layer, number) for number in heads]


def structure(weights: Array, query_at: np.ndarray, allowed: np.ndarray) -> float:
    """How much of a map is left when its sinks and its diagonals are taken out, 0 to 1."""
    distance = query_at[:, None] - np.arange(weights.shape[1])[None]
    column = weights.sum(0) / np.maximum(allowed.sum(0), 1)
    shifted = distance - distance.min()
    totals = np.bincount(shifted.ravel(), weights.ravel())
    counts = np.bincount(shifted.ravel(), allowed.ravel())
    diagonal = (totals / np.maximum(counts, 1))[shifted]
    near = min(8, max(2, weights.shape[1] // 16))
    left = np.where(np.abs(distance) >= near, weights - np.maximum(column[None], diagonal), 0.0)
    left[:, 0] = 0.0  # whatever stands first is the usual sink
    return float(np.maximum(left, 0.0).max(1).mean()) if weights.size else 0.0
