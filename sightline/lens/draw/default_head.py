"""The default head of a view: the one with most attention that neither a sink nor a fixed offset
explains.

residual_ij  =  w_ij − max(mean of w over column j, mean of w over the diagonal i − j)
score        =  mean over queries i of max_j residual_ij,   |i − j| ≥ near,  j ≠ 0

`near` is 2, and up to 8 in longer texts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sightline.errors import InputError
from sightline.lens.draw.view import Array
from sightline.lens.trace.layer import Look, checked_index
from sightline.lens.trace.trace import Trace

MAX_ROWS = 256  # of a map; longer texts are sampled evenly


def most_structured(
    trace: Trace, *, stack: str | None = None, layer: int | None = None, head: int | None = None
) -> tuple[int, int]:
    """The best (layer, head); restricted to one layer, or to one head index, where given."""
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
        (
            candidate
            for number, look in looks.items()
            for candidate in _head_scores(number, look, head)
        ),
        key=lambda candidate: candidate[0],
    )
    return best[1], best[2]


def alignment_layer(trace: Trace) -> int:
    """The default layer for alignments: the second to last, which aligns best."""
    layers = sorted(site[1] for site in trace.looks if site[2])
    return layers[max(0, len(layers) - 2)] if layers else 0


def _head_scores(layer: int, look: Look, head: int | None) -> list[tuple[float, int, int]]:
    """(score, layer, head) of each head of a layer."""
    positions = np.unique(np.linspace(0, look.queries - 1, min(MAX_ROWS, look.queries)).astype(int))
    offset = look.key.shape[2] - look.queries
    heads = range(look.heads) if head is None else [checked_index("head", head, look.heads)]
    maps = look.weights(rows=positions.tolist()).float().cpu().numpy()
    mask = look.scoring.mask
    rows = torch.from_numpy(positions)
    document = None if mask.query_document is None else mask.query_document[:, rows]
    allowed = (
        replace(mask, query_at=mask.query_at[:, rows], query_document=document, offset=None)
        .allowed()[0, 0]
        .cpu()
        .numpy()
    )
    return [
        (structure(maps[number], positions + offset, allowed), layer, number) for number in heads
    ]


def structure(weights: Array, query_at: np.ndarray, allowed: np.ndarray) -> float:
    """The structure score of a map, 0 to 1: what is left after removing columns (sinks) and
    diagonals."""
    distance = query_at[:, None] - np.arange(weights.shape[1])[None]
    column = weights.sum(0) / np.maximum(allowed.sum(0), 1)
    shifted = distance - distance.min()
    totals = np.bincount(shifted.ravel(), weights.ravel())
    counts = np.bincount(shifted.ravel(), allowed.ravel())
    diagonal = (totals / np.maximum(counts, 1))[shifted]
    near = min(8, max(2, weights.shape[1] // 16))
    residual = np.where(np.abs(distance) >= near, weights - np.maximum(column[None], diagonal), 0.0)
    residual[:, 0] = 0.0  # the first token is the usual sink
    return float(np.maximum(residual, 0.0).max(1).mean()) if weights.size else 0.0
