"""Paths whose integral is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sightline.lens.attributions.integration import Embeddings, IntegrationPath, split_point


class Known:
    """f of one vector."""

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.f, self.inputs = f, {"x": x}

    def __call__(self, embeddings: Embeddings) -> Tensor:
        return self.f(embeddings["x"].flatten(1))

    def gradients(self, embeddings: Embeddings) -> tuple[Embeddings, Tensor]:
        x = embeddings["x"].requires_grad_()
        values = self(embeddings)
        return {"x": torch.autograd.grad(values.sum(), x)[0]}, values.detach()


def path_of(
    f: Callable[[Tensor], Tensor], x: Tensor, tolerance: float = 1e-4, most: int = 400
) -> IntegrationPath:
    path = IntegrationPath(Known(f, x), {"x": torch.zeros_like(x)})
    path.refine(tolerance, most)
    return path


def test_a_polynomial_is_exact_at_once() -> None:
    x = torch.tensor([[1.0, 2.0], [-1.0, 0.5]], dtype=torch.float64)
    path = path_of(lambda x: (x**5).sum(-1) + (x[:, 0] * x[:, 1]) ** 2, x)
    torch.testing.assert_close((path.integral()["x"] * x)[1], x[1] ** 5)
    assert path.gradients == 24
    assert path.difference == pytest.approx(
        float(Known(lambda x: (x**5).sum(-1) + (x[:, 0] * x[:, 1]) ** 2, x)({"x": x[None]}))
    )


def test_a_step_is_found_by_cutting() -> None:
    """tanh(500 (x − 0.7)): even steps of 24 would miss it or hit it by luck."""
    x = torch.ones(1, 1, dtype=torch.float64)
    path = path_of(lambda x: torch.tanh(500 * (x[:, 0] - 0.7)), x)
    assert float(path.integral()["x"]) == pytest.approx(2, abs=1e-3)
    assert path.begins == 0
    assert 24 < path.gradients <= 400


def test_what_is_too_wild_near_zero_is_left_out_and_said() -> None:
    """A cosine of the logarithm never rests."""
    x = torch.ones(1, 1, dtype=torch.float64)
    path = path_of(lambda x: torch.cos(3 * (x[:, 0] + 1e-30).log()), x, tolerance=1e-3)
    assert 0 < path.begins < 1e-4
    assert float(path.integral()["x"]) == pytest.approx(path.difference, abs=1e-3)


def test_gradients_are_not_spent_beyond_the_limit() -> None:
    path = path_of(
        lambda x: torch.sin(1000 * x[:, 0]), torch.ones(1, 1, dtype=torch.float64), most=60
    )
    assert path.gradients <= 60
    assert sum(part.gap for part in path.segments) > path.allowed(1e-4)


def test_cuts() -> None:
    assert [split_point(0, 1), split_point(0.25, 0.5), split_point(0.01, 1.0)] == [
        1 / 16,
        0.375,
        pytest.approx(0.1),
    ]
