"""In-context regression: tasks, closed-form methods that solve them, and two learners: linear
attention and a Transformer.

    y_i = w·x_i + noise,   w, x, noise ~ N(0, 1)           a new w per task

ridge          (XᵀX + λ)⁻¹ Xᵀy,  λ = noise²                the posterior mean of w: optimal on
                                                           average
descent        W ← W − η ∇L(W),  L = 1/2n Σ |W x_i − y_i|²
GD++           a descent step, then x ← x − γ/n XᵀX x      von Oswald et al. 2023: a step that
                                                           also improves the conditioning
Newton         M ← 2M − M S M,  S = XᵀX + λ,  w = M Xᵀy    converges to ridge (Fu et al. 2024)
attention      e_j ← e_j + P Σ_i (V e_i) (K e_i · Q e_j)   without softmax
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Generator, Tensor, nn

from sightline.architectures import gpt
from sightline.config import Dot
from sightline.core.attention import Scoring, attention_scores, mix
from sightline.core.block import make_block
from sightline.core.context import BlockContext, Place
from sightline.core.masks import Mask
from sightline.core.multi_head import MultiHeadAttention, merge_heads, split_heads
from sightline.lab.learning import seeded_generator

NOISE = 1.0
LAYERS = 3
HEAD_DIM = 16
QUERIES = 8  # per task
TASKS = 2000  # held-out tasks
DIMENSION = 5  # of the exact comparison
OUTPUTS = 2
EXAMPLES = 20
RATES = tuple(0.02 * 1.1**n for n in range(48))  # candidate step sizes: 0.02 to 1.76
SHRINKS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)  # candidates of γ; 0 is plain descent
STARTS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 1.9)  # of Newton's iteration, which converges below 2
DESCENTS = (1, 2, 5, 10)
PLUS = (2, 3)  # the first step of GD++ is one of descent; the Transformer has three layers
NEWTON = (1, 3, 5)


# ------------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True, slots=True)
class Tasks:
    """y = w·x + noise, each task with its own w ~ N(0, 1): examples x, y, and queries with the
    noise-free answers w·x."""

    x: Tensor
    y: Tensor
    queries: Tensor
    answers: Tensor


def draw_tasks(count: int, dimension: int, examples: int, random: Generator) -> Tasks:
    w = torch.randn(count, dimension, 1, generator=random)
    x, queries = (torch.randn(count, n, dimension, generator=random) for n in (examples, QUERIES))
    noise = NOISE * torch.randn(count, examples, generator=random)
    return Tasks(x, (x @ w)[..., 0] + noise, queries, (queries @ w)[..., 0])


def ridge(of: Tasks) -> Tensor:
    """(XᵀX + λ)⁻¹ Xᵀy with λ = noise²: the posterior mean of w, optimal on average."""
    inner = of.x.mT @ of.x + NOISE**2 * torch.eye(of.x.shape[2])
    return (of.queries @ torch.linalg.solve(inner, of.x.mT @ of.y[..., None]))[..., 0]


def least_squares(of: Tasks) -> Tensor:
    """X⁺ y: the minimum-norm least-squares solution."""
    return (of.queries @ (torch.linalg.pinv(of.x) @ of.y[..., None]))[..., 0]


def descend(of: Tasks, rates: Sequence[float], steps: int) -> Tensor:
    """[rates, tasks, queries]: `steps` of gradient descent from W = 0, for each step size."""
    inner = of.x.mT @ of.x / of.x.shape[1]
    outer = of.x.mT @ of.y[..., None] / of.x.shape[1]
    size, w = (
        torch.tensor(rates),
        torch.zeros(*outer.shape[:2], len(rates)),
    )  # [tasks, dimension, rates]
    for _ in range(steps):
        w = w - size * (inner @ w - outer)
    return (of.queries @ w).permute(2, 0, 1)


def best_descent(of: Tasks, steps: int) -> Tensor:
    """Gradient descent with the step size that is best on these tasks."""
    return best_of(descend(of, RATES, steps), of)


def descend_plus(of: Tasks, rate: float, shrink: float, steps: int) -> Tensor:
    """GD++: each step descends on what is left of y, then replaces all x by (I − γ/n XᵀX) x."""
    x, left, queries = of.x, of.y[..., None], of.queries
    predicted = torch.zeros_like(of.answers)[..., None]
    for _ in range(steps):
        step = rate * x.mT @ left / x.shape[1]
        predicted = predicted + queries @ step
        left = left - x @ step
        change = torch.eye(x.shape[2]) - shrink * x.mT @ x / x.shape[1]
        x, queries = x @ change, queries @ change
    return predicted[..., 0]


def newton(of: Tasks, start: float, steps: int) -> Tensor:
    """Newton's iteration for (XᵀX + λ)⁻¹ from M = start · I / ‖XᵀX + λ‖."""
    identity = torch.eye(of.x.shape[2])
    inner = of.x.mT @ of.x + NOISE**2 * identity
    norm = torch.linalg.eigvalsh(inner)[:, -1, None, None]
    inverse = start * identity / norm
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ inner @ inverse
    return (of.queries @ (inverse @ (of.x.mT @ of.y[..., None])))[..., 0]


def best_of(predictions: Iterable[Tensor], of: Tasks) -> Tensor:
    """The prediction with the smallest error on these tasks; one that diverged is never it."""

    def finite_error(predicted: Tensor) -> float:
        error = mean_squared_error(predicted, of)
        return error if math.isfinite(error) else math.inf

    return min(predictions, key=finite_error)


def best_descent_plus(of: Tasks, steps: int) -> Tensor:
    """GD++ with the best step size and γ of a grid."""
    settings = product(RATES[::4], SHRINKS)
    return best_of((descend_plus(of, rate, shrink, steps) for rate, shrink in settings), of)


def best_newton(of: Tasks, steps: int) -> Tensor:
    """Newton's iteration from the best of a grid of starts."""
    return best_of((newton(of, start, steps) for start in STARTS), of)


def known_methods(of: Tasks) -> dict[str, Tensor]:
    """The predictions of ridge, least squares, and of each iterative method with its best
    setting."""
    return (
        {"ridge": ridge(of), "least squares": least_squares(of)}
        | {f"descent-{steps}": best_descent(of, steps) for steps in DESCENTS}
        | {f"plus-{steps}": best_descent_plus(of, steps) for steps in PLUS}
        | {f"newton-{steps}": best_newton(of, steps) for steps in NEWTON}
    )


def mean_squared_error(predicted: Tensor, of: Tasks) -> float:
    """Mean (ŷ − w·x)², excluding the noise."""
    return float((predicted - of.answers).square().mean())


# ---------------------------------------------------------------------- attention without softmax


def linear_attention(width: int) -> MultiHeadAttention:
    """Attention of one head whose scores are not scaled; `linear_step` leaves the softmax out."""
    return MultiHeadAttention(width, 1, kind=Dot(scale=1.0), bias=False)


def linear_step(layer: MultiHeadAttention, tokens: Tensor, examples: int) -> Tensor:
    """e_j + P Σ_i (V e_i) (K e_i · Q e_j), over the examples i only; queries are masked."""
    place = example_places(examples, tokens.shape[1])
    query = layer.as_queries(layer.query(tokens), place)
    key = layer.as_keys(layer.key(tokens), place)
    mask = Mask(place.query_at, place.query_at)
    scores = attention_scores(query, key, Scoring(mask, layer.scale)) * mask.allowed()
    return tokens + layer.output(merge_heads(mix(scores, split_heads(layer.value(tokens), 1))))


def example_places(examples: int, tokens: int) -> Place:
    """Examples are at positions 0, 1, …; queries at −1, which is masked."""
    at = torch.cat((torch.arange(examples), torch.full((tokens - examples,), -1)))[None]
    return Place(at, None, causal=False)


@torch.no_grad()
def set_by_hand(layer: MultiHeadAttention, start: Tensor, rate: float) -> MultiHeadAttention:
    """K = Q = (x, 0),  V = (0, W x − y),  P = η/n (`rate`), for W = `start` [outputs,
    dimension]."""
    outputs, dimension = start.shape
    for part in (layer.query, layer.key, layer.value, layer.output):
        part.weight.zero_()
    inputs = torch.arange(dimension)
    layer.query.weight[inputs, inputs] = 1
    layer.key.weight[inputs, inputs] = 1
    layer.value.weight[dimension:, :dimension] = start
    layer.value.weight[dimension:, dimension:] = -torch.eye(outputs, dtype=start.dtype)
    layer.output.weight.copy_(rate * torch.eye(layer.width, dtype=start.dtype))
    return layer


def gradient_step(weights: Tensor, x: Tensor, y: Tensor, rate: float) -> Tensor:
    """W − η ∇L(W), the gradient by automatic differentiation."""
    at = weights.clone().requires_grad_()
    loss = (x @ at.T - y).square().sum() / (2 * len(x))
    return weights - rate * torch.autograd.grad(loss, at)[0]


@torch.no_grad()
def exactness(seed: int, precision: str, *, depth: int) -> dict[str, float]:
    """Difference between the predictions of attention and gradient descent, relative to the
    largest: the dual form, and 1, 2, … layers."""
    dtype = getattr(torch, precision)
    random = seeded_generator(seed, 0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    x = normal(EXAMPLES, DIMENSION)
    y = normal(EXAMPLES, OUTPUTS)
    queries = normal(QUERIES, DIMENSION)
    start = normal(OUTPUTS, DIMENSION)
    rate = 0.3
    layer = set_by_hand(linear_attention(DIMENSION + OUTPUTS).to(dtype), start, rate / EXAMPLES)
    tokens = torch.cat((torch.cat((x, y), 1), torch.cat((queries, -queries @ start.T), 1)))[None]
    dual = queries @ start.T + rate / EXAMPLES * (queries @ x.T) @ (y - x @ start.T)
    differences = {"dual": math.nan}
    weights = start
    for layers in range(1, depth + 1):
        tokens = linear_step(layer, tokens, EXAMPLES)
        with torch.enable_grad():
            weights = gradient_step(weights, x, y, rate)
        differences[f"layers-{layers}"] = relative_error(
            -tokens[0, EXAMPLES:, DIMENSION:], queries @ weights.T
        )
        if layers == 1:
            differences["dual"] = relative_error(dual, queries @ weights.T)
    return differences


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


# --------------------------------------------------------------------------------- trained models


def task_tokens(of: Tasks) -> Tensor:
    """Tokens (x, y) of the examples, then (x, 0) of the queries."""
    examples = torch.cat((of.x, of.y[..., None]), -1)
    queries = nn.functional.pad(of.queries, (0, 1))
    return torch.cat((examples, queries), 1)


class Regressor(nn.Module):
    """read → sightline's blocks → write. Examples are unordered, so there are no positions; and no
    final norm, which would hide the scale of the answer."""

    def __init__(self, dimension: int, *, width: int, layers: int = LAYERS) -> None:
        super().__init__()
        config = gpt(
            width=width,
            layers=layers,
            heads=width // HEAD_DIM,
            vocab_size=1,
            hidden=2 * width,
            positions="none",
        ).decoder
        assert config is not None
        self.read = nn.Linear(dimension + 2, width)
        self.write = nn.Linear(width, 1)
        self.blocks = nn.ModuleList(make_block(width, config.block(n)) for n in range(layers))
        for path, part in self.blocks.named_modules():
            if isinstance(part, nn.Linear):
                shrink = (
                    math.sqrt(2 * layers)
                    if path.endswith(("attention.output", "feed_forward.down"))
                    else 1.0
                )
                nn.init.normal_(part.weight, std=1 / shrink / math.sqrt(3 * part.in_features))
                nn.init.zeros_(part.bias)

    def forward(self, of: Tasks) -> Tensor:
        tokens = task_tokens(of)
        examples = of.x.shape[1]
        has_target = (
            (torch.arange(tokens.shape[1]) < examples)
            .to(tokens)[:, None]
            .expand(len(tokens), -1, 1)
        )  # 1 where y is given
        x = self.read(torch.cat((tokens, has_target), -1))
        context = BlockContext(example_places(examples, tokens.shape[1]))
        for block in self.blocks:
            x = block(x, context)
        return self.write(x[:, examples:])[..., 0]


class LinearRegressor(nn.Module):
    """One layer of trainable linear attention; −y of the query is the prediction."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.layer = linear_attention(dimension + 1)
        for part in (self.layer.query, self.layer.key, self.layer.value, self.layer.output):
            nn.init.normal_(part.weight, std=1 / math.sqrt(dimension + 1))

    def forward(self, of: Tasks) -> Tensor:
        examples = of.x.shape[1]
        return -linear_step(self.layer, task_tokens(of), examples)[:, examples:, -1]


def train_regressor(
    make: Callable[[int], nn.Module],
    dimension: int,
    *,
    lengths: tuple[int, int],
    steps: int,
    batch: int = 64,
    rate: float,
    seed: int,
) -> nn.Module:
    """Train on tasks with between lengths[0] and lengths[1] examples: AdamW, warm-up, cosine
    decay to a hundredth.

    The loss is (ŷ − w·x)²; noise in y would raise its minimum but not move it.
    """
    torch.manual_seed(seed)
    model = make(dimension)
    random = seeded_generator(seed, 1)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = (
            rate
            * min(1.0, (step + 1) / 100)
            * (0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2)
        )
        examples = int(torch.randint(lengths[0], lengths[1] + 1, (1,), generator=random))
        of = draw_tasks(batch, dimension, examples, random)
        optimizer.zero_grad(set_to_none=True)
        (model(of) - of.answers).square().mean().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return model.eval()


@torch.inference_mode()
def measure_errors(
    model: nn.Module, dimension: int, examples: int, *, seed: int
) -> dict[str, float]:
    """Errors of the model and of the known methods on the same held-out tasks, and the mean squared
    difference of their predictions."""
    of = draw_tasks(TASKS, dimension, examples, seeded_generator(seed, 2, examples))
    ours = model(of)
    theirs = known_methods(of)
    errors = {"trained": mean_squared_error(ours, of)} | {
        name: mean_squared_error(prediction, of) for name, prediction in theirs.items()
    }
    return errors | {
        f"from {name}": float((ours - prediction).square().mean())
        for name, prediction in theirs.items()
    }


@torch.inference_mode()
def held_out_error(model: nn.Module, dimension: int, examples: int, seed: int) -> float:
    """The error on held-out tasks alone, for choosing a learning rate."""
    of = draw_tasks(TASKS, dimension, examples, seeded_generator(seed, 2, examples))
    return mean_squared_error(model(of), of)
