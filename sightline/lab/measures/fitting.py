"""Scaling laws: two forms fitted to measured losses, with bootstrap intervals, and the best size
for a budget.

    Chinchilla  L(N, D) = E + A / N^α + B / D^β                  Hoffmann et al. 2022, approach 3
    Kaplan      L(N, D) = [(N_c / N)^(α_N / α_D) + D_c / D]^α_D  Kaplan et al. 2020, equation 1.5

N are the parameters, D the tokens. Both are fitted by the Huber loss (δ = 10⁻³) of log L, summed
over the runs, with L-BFGS from the best points of a grid. Summed and not averaged: a mean is so
small that L-BFGS stops early (Besiroglu et al. 2024).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.lab.statistics import CONFIDENCE, Interval

Array = NDArray[np.float64]
DELTA = 1e-3
BEST_STARTS = 12  # grid points that L-BFGS starts from


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The held-out loss of a model with `parameters` trained on `tokens`."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True, slots=True)
class Chinchilla:
    """E + A / N^α + B / D^β. As θ = (log E, log A, log B, α, β), log L is a log-sum-exp."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    starts: ClassVar[tuple[tuple[float, ...], ...]] = (
        (-1.0, -0.5, 0.0, 0.5, 1.0),
        (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0),
        (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0),
        (0.1, 0.3, 0.5, 0.8, 1.2),
        (0.1, 0.3, 0.5, 0.8, 1.2),
    )

    @classmethod
    def of(cls, theta: Array) -> Chinchilla:
        e, a, b, alpha, beta = (float(value) for value in theta)
        return cls(float(np.exp(e)), float(np.exp(a)), float(np.exp(b)), alpha, beta)

    @property
    def theta(self) -> Array:
        return np.array([np.log(self.E), np.log(self.A), np.log(self.B), self.alpha, self.beta])

    @staticmethod
    def log_loss(theta: Array, n: Array, d: Array) -> tuple[Array, Array]:
        """log L at log N and log D for every row of θ, and its derivatives with respect to θ on the
        last axis."""
        e, a, b, alpha, beta = (theta[..., k, None] for k in range(5))
        terms = np.stack(np.broadcast_arrays(e, a - alpha * n, b - beta * d), axis=-1)
        top = terms.max(-1, keepdims=True)
        parts = np.exp(terms - top)
        shares = parts / parts.sum(-1, keepdims=True)
        gradients = [
            shares[..., 0],
            shares[..., 1],
            shares[..., 2],
            -n * shares[..., 1],
            -d * shares[..., 2],
        ]
        return top[..., 0] + np.log(parts.sum(-1)), np.stack(gradients, axis=-1)

    def __call__(self, parameters: float, tokens: float) -> float:
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    @property
    def exponent(self) -> float:
        """a in N_best ∝ C^a, where C = 6 N D."""
        return self.beta / (self.alpha + self.beta)

    def best(self, flops: float) -> tuple[float, float]:
        """N = G (C/6)^a and D = C / 6N, with G = (αA / βB)^(1/(α+β)): the least loss for C = 6 N
        D."""
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        parameters = scale * (flops / 6) ** self.exponent
        return parameters, flops / 6 / parameters


@dataclass(frozen=True, slots=True)
class Kaplan:
    """[(N_c / N)^(α_N / α_D) + D_c / D]^α_D. θ = (log N_c, log D_c, α_N, α_D). There is
    no irreducible loss: L → 0."""

    N_c: float
    D_c: float
    alpha_n: float
    alpha_d: float

    starts: ClassVar[tuple[tuple[float, ...], ...]] = (
        tuple(float(n) for n in range(5, 45, 3)),
        tuple(float(n) for n in range(5, 45, 3)),
        (0.03, 0.06, 0.1, 0.2, 0.4),
        (0.03, 0.06, 0.1, 0.2, 0.4),
    )

    @classmethod
    def of(cls, theta: Array) -> Kaplan:
        n_c, d_c, alpha_n, alpha_d = (float(value) for value in theta)
        return cls(float(np.exp(n_c)), float(np.exp(d_c)), alpha_n, alpha_d)

    @property
    def theta(self) -> Array:
        return np.array([np.log(self.N_c), np.log(self.D_c), self.alpha_n, self.alpha_d])

    @staticmethod
    def log_loss(theta: Array, n: Array, d: Array) -> tuple[Array, Array]:
        """log L = α_D · log-sum-exp((α_N / α_D)(log N_c − log N), log D_c − log D), and its
        derivatives."""
        n_c, d_c, alpha_n, alpha_d = (theta[..., k, None] for k in range(4))
        ratio = alpha_n / alpha_d
        small = ratio * (n_c - n)
        short = d_c - d
        total = np.logaddexp(small, short)
        share = np.exp(small - total)
        by_ratio = share * (n_c - n)
        gradients = [alpha_n * share, alpha_d * (1 - share), by_ratio, total - by_ratio * ratio]
        return alpha_d * total, np.stack(gradients, axis=-1)

    def __call__(self, parameters: float, tokens: float) -> float:
        return (
            (self.N_c / parameters) ** (self.alpha_n / self.alpha_d) + self.D_c / tokens
        ) ** self.alpha_d


Law = Chinchilla | Kaplan
T = TypeVar("T", Chinchilla, Kaplan)


def objective(theta: Array, law: type[Law], runs: Array) -> tuple[Array, Array]:
    """Σ Huber(log L̂ − log L), and its gradient. `runs` has the rows log N, log D, log L."""
    predicted, gradients = law.log_loss(theta, runs[0], runs[1])
    residual = predicted - runs[2]
    near = np.abs(residual) <= DELTA
    huber = np.where(near, residual**2 / 2, DELTA * (np.abs(residual) - DELTA / 2))
    return huber.sum(-1), (np.clip(residual, -DELTA, DELTA)[..., None] * gradients).sum(-2)


def log_rows(runs: Sequence[LossPoint]) -> Array:
    """The rows log N, log D, log L."""
    if not all(min(run.parameters, run.tokens, run.loss) > 0 for run in runs):
        raise InputError(
            "a run whose parameters, tokens or loss are not positive",
            expected="numbers above 0",
            fix="leave the run out",
        )
    return np.log(
        np.array([[run.parameters, run.tokens, run.loss] for run in runs], dtype=np.float64).T
    )


def fit_law(law: type[T], runs: Sequence[LossPoint]) -> T:
    """The best fit of the law over its grid of starting points."""
    needed = len(law.starts) + 1
    if len(runs) < needed:
        raise InputError(
            f"{len(runs)} runs",
            expected=f"at least {needed}, for {needed - 1} numbers",
            fix="add sizes or lengths",
        )
    logs = log_rows(runs)
    grid = np.array(list(itertools.product(*law.starts)))
    order = np.argsort(objective(grid, law, logs)[0], kind="stable")
    return minimize_from(law, logs, grid[order[:BEST_STARTS]])


def minimize_from(law: type[T], runs: Array, starts: Array, *, steps: int = 5000) -> T:
    """Run L-BFGS from each start and return the best fit."""
    from scipy.optimize import minimize

    def function(theta: Array) -> tuple[float, Array]:
        value, gradient = objective(theta, law, runs)
        return float(value) / DELTA, gradient / DELTA

    bounds = [(None, None)] * (3 if law is Chinchilla else 2) + [(1e-3, 5.0)] * 2
    settings = {"maxiter": steps, "maxfun": 4 * steps, "ftol": 1e-12, "gtol": 1e-9}
    ends = [
        minimize(function, start, jac=True, method="L-BFGS-B", bounds=bounds, options=settings)
        for start in starts
    ]
    return law.of(min(ends, key=lambda end: float(end.fun)).x)


def bootstrap(
    law: type[T], runs: Sequence[LossPoint], *, samples: int = 200, seed: int = 0
) -> list[T]:
    """Fits to runs drawn with replacement, each started from the fit to all runs, and also from E =
    half the lowest loss: where E has vanished, its gradient has vanished too."""
    best = fit_law(law, runs)
    logs = log_rows(runs)
    random = np.random.default_rng(seed)
    starts = np.stack([best.theta] * (2 if law is Chinchilla else 1))
    if law is Chinchilla:
        starts[1, 0] = logs[2].min() - np.log(2)
    resamples = (random.integers(len(runs), size=len(runs)) for _ in range(samples))
    return [minimize_from(law, logs[:, rows], starts, steps=300) for rows in resamples]


def bootstrap_interval(best: float, others: Sequence[float]) -> Interval:
    """The fitted value with the bootstrap's 95% percentile interval."""
    low, high = np.percentile(np.array(others), [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return Interval(best, float(low), float(high), len(others))


def slopes(runs: Sequence[LossPoint], *, samples: int = 1000, seed: int = 0) -> list[Interval]:
    """−∂ log L / ∂ log N and −∂ log L / ∂ log D of a plane through the runs, with bootstrap
    intervals. Unlike the exponents of a law, they may have either sign."""
    logs = log_rows(runs)
    inputs = np.stack([logs[0], logs[1], np.ones(len(runs))], axis=1)

    def plane(rows: NDArray[np.int64]) -> Array:
        return -np.linalg.lstsq(inputs[rows], logs[2, rows], rcond=None)[0][:2]

    best = plane(np.arange(len(runs)))
    random = np.random.default_rng(seed)
    others = [plane(random.integers(len(runs), size=len(runs))) for _ in range(samples)]
    return [
        bootstrap_interval(float(best[n]), [float(other[n]) for other in others]) for n in (0, 1)
    ]


def r_squared(law: Callable[[float, float], float], runs: Sequence[LossPoint]) -> float:
    """R² of log L: the share of its variance that the law explains."""
    predicted = np.log([law(run.parameters, run.tokens) for run in runs])
    measured = np.log([run.loss for run in runs])
    return float(
        1 - ((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum()
    )


def parabola_vertex(sizes: Sequence[float], losses: Sequence[float]) -> float | None:
    """Approach 2: the size at the vertex of a parabola fitted to loss against log N; None if it
    does not open upwards."""
    centre = float(np.log(sizes).mean())
    quadratic, linear, _ = (float(value) for value in np.polyfit(np.log(sizes) - centre, losses, 2))
    return float(np.exp(centre - linear / (2 * quadratic))) if quadratic > 0 else None


@dataclass(frozen=True, slots=True)
class Budget:
    """The held-out budget: losses by width and seed, and the predictions of both laws."""

    flops: float
    losses: Mapping[int, list[float]]
    predicted: Mapping[int, float]
    by_kaplan: Mapping[int, float]

    @property
    def chosen(self) -> int:
        return min(self.predicted, key=lambda width: self.predicted[width])

    def error(self, predicted: Mapping[int, float]) -> float:
        """The mean of |predicted / measured − 1| over the widths."""
        return statistics.fmean(
            abs(predicted[width] / statistics.fmean(measured) - 1)
            for width, measured in self.losses.items()
        )
