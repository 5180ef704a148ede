"""The toy model of Elhage et al. 2022: more features than dimensions, reconstructed through a
bottleneck, x' = ReLU(Wᵀ W x + b)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

FEATURES = 20
DIMENSIONS = 5
DECAY = 0.9  # importance of feature i: DECAY^i
ROWS = 512
TESTED = 100_000
REPRESENTED = 0.5  # |W_i|: halfway between a feature that is lost (0) and one that is kept (1)


def sparse_features(count: int, density: float, random: Generator) -> Tensor:
    """Each feature is uniform in [0, 1] with the chance `density`, else 0."""
    import torch

    values = torch.rand(count, FEATURES, generator=random)
    return values * (torch.rand(count, FEATURES, generator=random) < density)


def importances() -> Tensor:
    import torch

    return DECAY ** torch.arange(FEATURES, dtype=torch.float32)


def reconstruction(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x @ weight.T @ weight + bias).relu()


def weighted_error(x: Tensor, made: Tensor) -> Tensor:
    """Σ_i I_i (x_i − x'_i)², the mean over rows."""
    return (importances() * (x - made).square()).sum(1).mean()


def trained_steps(density: float, steps: int, rate: float, seed: int) -> Iterator[list[Tensor]]:
    """W [dimensions, features] and b after every step of Adam; the rate falls to 0 linearly."""
    import torch

    from sightline.lab.learning import seeded_generator

    random = seeded_generator(seed, 1)
    weight = 0.3 * torch.randn(DIMENSIONS, FEATURES, generator=random)
    parameters = [weight.requires_grad_(), torch.zeros(FEATURES, requires_grad=True)]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        x = sparse_features(ROWS, density, random)
        loss = weighted_error(x, reconstruction(x, *parameters))
        optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()
        yield [parameter.detach() for parameter in parameters]


def train_toy(density: float, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Train one model and measure it on fresh rows."""
    from sightline.lab.learning import seeded_generator

    *_, (weight, bias) = trained_steps(density, steps, rate, seed)
    x = sparse_features(TESTED, density, seeded_generator(seed, 2))
    return measure_toy(x, weight, bias)


def measure_toy(x: Tensor, weight: Tensor, bias: Tensor) -> dict[str, Any]:
    """The number of features that are represented, the loss over that without superposition, and
    the products of features WᵀW."""
    error = float(weighted_error(x, reconstruction(x, weight, bias)))
    alone = error_without_superposition(x)
    return {
        "score": error / alone,
        "represented": int((weight.norm(dim=0) > REPRESENTED).sum()),
        "products": (weight.T @ weight).tolist(),
    }


def error_without_superposition(x: Tensor) -> float:
    """Of a model that keeps the most important features exactly, one per dimension, and predicts
    the mean of every other."""
    return float((importances() * x.var(0))[DIMENSIONS:].sum())
