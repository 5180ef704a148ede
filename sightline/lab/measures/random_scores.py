"""Scores of random queries and keys with independent N(0, 1) entries: their variance, and what
softmax and its gradient make of them, with and without division by √d_k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

KEYS = 64
ROUNDING = 1e-16  # of float64: a smaller gradient counts as this one, and ratios stay finite


def random_scores(width: int, seed: int, *, samples: int, pairs: int) -> dict[str, Any]:
    """`samples` queries, each with 64 keys of its own; the variance is of `pairs` separate ones."""
    import torch

    random = torch.Generator().manual_seed(10_000 * seed + width)
    query = torch.randn(samples, width, generator=random, dtype=torch.float64)
    key = torch.randn(samples, KEYS, width, generator=random, dtype=torch.float64)
    upstream = torch.randn(samples, KEYS, generator=random, dtype=torch.float64)
    return {
        "variance": score_variance(width, pairs, random),
        "raw": softmax_statistics(query, key, upstream, scale=1.0),
        "scaled": softmax_statistics(query, key, upstream, scale=1 / math.sqrt(width)),
    }


def score_variance(width: int, pairs: int, random: Generator) -> float:
    """The variance of q·k over independent pairs, computed in chunks."""
    import torch

    pieces = [min(2000, pairs - start) for start in range(0, pairs, 2000)]
    products = [
        torch.randn(2, piece, width, generator=random).prod(0).sum(-1, dtype=torch.float64)
        for piece in pieces
    ]
    return float(torch.cat(products).var())


def softmax_statistics(
    query: Tensor, key: Tensor, upstream: Tensor, *, scale: float
) -> dict[str, float]:
    """Over the queries, the mean of the largest weight; mean and median of |∂a/∂s|, and of the
    gradient that reaches the query from a random gradient of the weights. The last has one more
    factor of the scale: s = scale · q·k."""
    import torch

    scores = scale * torch.einsum("nd,nkd->nk", query, key)
    weights = scores.softmax(-1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
    at_scores = torch.einsum("nij,nj->ni", jacobian, upstream)
    at_query = scale * torch.einsum("nk,nkd->nd", at_scores, key)
    norms = {
        "gradient": jacobian.flatten(1).norm(dim=1).clamp(min=ROUNDING),
        "at query": at_query.norm(dim=1).clamp(min=ROUNDING),
    }
    means = {f"{name}, mean": float(norm.mean()) for name, norm in norms.items()}
    medians = {f"{name}, median": float(norm.median()) for name, norm in norms.items()}
    return {"largest": float(weights.amax(-1).mean()), **means, **medians}
