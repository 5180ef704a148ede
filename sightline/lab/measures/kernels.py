"""Attention as a kernel smoother, with a fixed feature map or with learned projections.

    ŷ(x) = Σ_i κ(q, k_i) y_i / Σ_i κ(q, k_i) = softmax(log κ(q, k_i)) y          q, k: features of x

    rbf         κ = exp(−s |q − k|² / 2)          fixed:   q = x,  k_i = x_i; only s is chosen
    polynomial  κ = (1 + s q·k)²                  learned: q = W_Q x + b_Q,  k_i = W_K x_i + b_K, s
    dot         κ = exp(s q·k)
    cosine      κ = exp(s cos θ)
    flat        κ = exp(cos θ)                    no temperature

The task: points in eight dimensions whose values depend on two of them, the same two (a random
plane) in every row; the function is new in every row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.lab.learning import seeded_generator

if TYPE_CHECKING:
    from collections.abc import Sequence

DIMS = 8
RELEVANT = 2
POINTS = 64  # keys of a row
QUERIES = 16
ROWS = 16  # of a batch
TEST_ROWS = 512
FEATURES = 16  # of a learned projection
WAVES = 4
DECAY = 0.1  # without it, no rate is too high where only the direction of W x counts
NOISE = 0.1
SCALES = [2.0 ** (n / 2) for n in range(-12, 17)]  # of a fixed kernel: 1/64 … 256
MAX_LOG_SCALE = 8.0


# ------------------------------------------------------------------------------------------- task


def relevant_plane(seed: int) -> Tensor:
    """Two orthonormal directions, [dims, 2]."""
    random = seeded_generator(seed, 1)
    return torch.linalg.qr(torch.randn(DIMS, DIMS, generator=random)).Q[:, :RELEVANT]


def regression_rows(
    plane: Tensor, rows: int, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points, their noisy values, queries, and the true values there; each row a new function of
    two dimensions with variance 1."""
    x = torch.randn(rows, POINTS + QUERIES, DIMS, generator=random)
    frequencies = torch.randn(rows, RELEVANT, WAVES, generator=random)
    phases = 2 * math.pi * torch.rand(rows, 1, WAVES, generator=random)
    y = (x @ plane @ frequencies + phases).cos().sum(-1) * math.sqrt(2 / WAVES)
    noise = NOISE * torch.randn(rows, POINTS, generator=random)
    return x[:, :POINTS], y[:, :POINTS] + noise, x[:, POINTS:], y[:, POINTS:]


# ---------------------------------------------------------------------------------------- kernels


def log_kernel(kind: str, query: Tensor, key: Tensor, scale: Tensor | float) -> Tensor:
    """log κ(q, k): the scores of attention with this kernel."""
    if kind == "rbf":
        return -scale * torch.cdist(query, key).square() / 2
    if kind == "polynomial":
        return 2 * (1 + scale * query @ key.transpose(-2, -1)).abs().clamp(min=1e-6).log()
    if kind == "dot":
        return scale * query @ key.transpose(-2, -1)
    unit = nn.functional.normalize
    cosine = unit(query, dim=-1) @ unit(key, dim=-1).transpose(-2, -1)
    return cosine if kind == "flat" else scale * cosine


def smoothed(scores: Tensor, values: Tensor) -> Tensor:
    """softmax(scores) y"""
    return (scores.softmax(-1) @ values[..., None])[..., 0]


def relative_error(found: Tensor, truth: Tensor) -> float:
    """(ŷ − y)² as a share of what the best constant would leave."""
    return float((found - truth).square().mean() / truth.var())


# ------------------------------------------------------------------------------- fixed and learned


def fixed_kernel(kind: str, steps: int, seed: int) -> dict[str, Any]:
    """The error of a kernel on x itself, with the scale that is best on as many rows as a learned
    one trains on (at most the test's); whether it is the smallest or largest tried."""
    plane = relevant_plane(seed)
    rows = min(TEST_ROWS, steps * ROWS)
    train = regression_rows(plane, rows, seeded_generator(seed, 2))
    test = regression_rows(plane, TEST_ROWS, seeded_generator(seed, 3))
    errors = [error_of_scale(kind, train, scale) for scale in SCALES]
    best = errors.index(min(errors))
    return {
        "error": error_of_scale(kind, test, SCALES[best]),
        "scale": SCALES[best],
        "at edge": best in (0, len(SCALES) - 1),
    }


def error_of_scale(kind: str, rows: Sequence[Tensor], scale: float) -> float:
    points, values, queries, truth = rows
    return relative_error(smoothed(log_kernel(kind, queries, points, scale), values), truth)


class LearnedKernel(nn.Module):
    """κ(W_Q x + b_Q, W_K x + b_K) with a learned scale."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.query = nn.Linear(DIMS, FEATURES)
        self.key = nn.Linear(DIMS, FEATURES)
        with torch.no_grad():  # a symmetric kernel to begin with, as the fixed ones are
            self.key.weight.copy_(self.query.weight)
            self.key.bias.copy_(self.query.bias)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, points: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        scale = self.log_scale.clamp(max=MAX_LOG_SCALE).exp()
        return smoothed(log_kernel(self.kind, self.query(queries), self.key(points), scale), values)


def learned_kernel(kind: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """Train the projections and the scale; the error on fresh rows, and the share of W_K that reads
    the relevant plane (by chance 2/8)."""
    plane = relevant_plane(seed)
    torch.manual_seed(seed)
    model = LearnedKernel(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=rate / 10)
    random = seeded_generator(seed, 2)
    for _ in range(steps):
        points, values, queries, truth = regression_rows(plane, ROWS, random)
        loss = (model(points, values, queries) - truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    points, values, queries, truth = regression_rows(plane, TEST_ROWS, seeded_generator(seed, 3))
    with torch.no_grad():
        found = model(points, values, queries)
    weight = model.key.weight.detach()
    return {
        "error": relative_error(found, truth),
        "in plane": share_in_plane(weight, plane),
        "scale": float(model.log_scale.detach().exp()),
    }


def share_in_plane(weight: Tensor, plane: Tensor) -> float:
    """The share of ‖W‖² that reads the relevant plane; 2/8 for a random W."""
    return float((weight @ plane).square().sum() / weight.square().sum())


# ----------------------------------------------------------------------------------- exact, float64


def largest_weight(keys: int, scale: float) -> float:
    """The largest weight that one of these keys can get if cos θ decides: its cosine is 1, the
    others' −1."""
    return 1 / (1 + (keys - 1) * math.exp(-2 * scale))


def highest_found_weight(keys: int, scale: float, seed: int, *, normalized: bool = True) -> float:
    """The same by gradient ascent from random vectors of 64 dimensions."""
    random = seeded_generator(seed, keys)
    query, key = (
        torch.randn(n, 64, generator=random, dtype=torch.float64).requires_grad_()
        for n in (1, keys)
    )
    optimizer = torch.optim.Adam([query, key], lr=0.1)

    def weight() -> Tensor:
        scores = log_kernel("cosine" if normalized else "dot", query, key, scale)
        return scores.log_softmax(-1)[0, 0]

    for _ in range(200):
        optimizer.zero_grad()
        (-weight()).backward()
        optimizer.step()
    return float(weight().detach().exp())


def kernel_difference(query: Tensor, key: Tensor) -> float:
    """The largest difference of the weights of cosine attention and of an RBF smoother."""
    cosine, rbf = (log_kernel(kind, query, key, 5.0).softmax(-1) for kind in ("cosine", "rbf"))
    return float((cosine - rbf).abs().max())


def measure_exact(seed: int) -> dict[str, Any]:
    """Cosine attention against an RBF smoother of unit vectors, and the largest weights."""
    random = seeded_generator(seed, 4)
    query, key = (
        nn.functional.normalize(torch.randn(n, 64, generator=random, dtype=torch.float64), dim=-1)
        for n in (8, 64)
    )
    return {
        "apart": kernel_difference(query, key),
        "bound": largest_weight(64, 1.0),
        "found": highest_found_weight(64, 1.0, seed),
        "with root d": highest_found_weight(64, math.sqrt(64), seed),
    }
