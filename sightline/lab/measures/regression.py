"""Regression in context: tasks, the methods that solve them by formula, and two learners: linear
attention and a Transformer.

    y_i = w·x_i + noise,   w, x, noise ~ N(0, 1)           another w for each task

ridge          (XᵀX + λ)⁻¹ Xᵀy,  λ = noise²                the mean of w given the examples: on
                                                           average nothing does better
descent        W ← W − η ∇L(W),  L = 1/2n Σ |W x_i − y_i|²
attention      e_j ← e_j + P Σ_i (V e_i) (K e_i · Q e_j)   without softmax
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from sightline.architectures import gpt
from sightline.config import Dot
from sightline.core.attention import Scoring, attention_scores, mix
from sightline.core.block import make_block
from sightline.core.context import BlockContext, Place
from sightline.core.masks import Mask
from sightline.core.multi_head import MultiHeadAttention, merge_heads, split_heads
from sightline.lab.learning import random_of

NOISE = 1.0
LAYERS = 3
HEAD_DIM = 16
QUERIES = 8  # to each task
TASKS = 2000  # to be measured on
DIMENSION = 5  # of the exact comparison
OUTPUTS = 2
EXAMPLES = 20
RATES = tuple(
    0.02 * 1.1**n for n in range(48)
)  # step sizes of which the best is taken: 0.02 to 1.76


# -------------------------------------------------------------------------------------- the tasks


@dataclass(frozen=True, slots=True)
class Tasks:
    """y = w·x + noise, each row with its own w ~ N(0, 1): examples x, y, and queries with w·x
    itself as the answer."""

    x: Tensor
    y: Tensor
    asked: Tensor
    answers: Tensor


def tasks(count: int, dimension: int, examples: int, random: Generator) -> Tasks:
    w = torch.randn(count, dimension, 1, generator=random)
    x, asked = (torch.randn(count, n, dimension, generator=random) for n in (examples, QUERIES))
    noise = NOISE * torch.randn(count, examples, generator=random)
    return Tasks(x, (x @ w)[..., 0] + noise, asked, (asked @ w)[..., 0])


def ridge(of: Tasks) -> Tensor:
    """(XᵀX + λ)⁻¹ Xᵀy with λ = noise²: the mean of w given the examples, which no method can beat
    on average."""
    inner = of.x.mT @ of.x + NOISE**2 * torch.eye(of.x.shape[2])
    return (of.asked @ torch.linalg.solve(inner, of.x.mT @ of.y[..., None]))[..., 0]


def least_squares(of: Tasks) -> Tensor:
    """X⁺ y: the shortest w that fits best."""
    return (of.asked @ (torch.linalg.pinv(of.x) @ of.y[..., None]))[..., 0]


def descents(of: Tasks, rates: Sequence[float], steps: int) -> Tensor:
    """[rates, tasks, queries]: `steps` of gradient descent from W = 0, for each step size."""
    inner = of.x.mT @ of.x / of.x.shape[1]
    outer = of.x.mT @ of.y[..., None] / of.x.shape[1]
    size, w = (
        torch.tensor(rates),
        torch.zeros(*outer.shape[:2], len(rates)),
    )  # [tasks, dimension, rates]
    for _ in range(steps):
        w = w - size * (inner @ w - outer)
    return (of.asked @ w).permute(2, 0, 1)


def best_descent(of: Tasks, steps: int) -> Tensor:
    """With the step size that is best on these very tasks: as well as gradient descent can do with
    one for all."""
    found = descents(of, RATES, steps)
    errors = [error(one, of) for one in found]
    return found[
        min(range(len(RATES)), key=lambda n: errors[n] if math.isfinite(errors[n]) else math.inf)
    ]


def error(predicted: Tensor, of: Tasks) -> float:
    """Mean (ŷ − w·x)²: beyond the noise, which nobody can know."""
    return float((predicted - of.answers).square().mean())


# ---------------------------------------------------------------------- attention without softmax


def linear_attention(width: int) -> MultiHeadAttention:
    """Attention of one head whose scores are not scaled; `linear_step` leaves the softmax out."""
    return MultiHeadAttention(width, 1, kind=Dot(scale=1.0), bias=False)


def linear_step(layer: MultiHeadAttention, tokens: Tensor, examples: int) -> Tensor:
    """e_j + P Σ_i (V e_i) (K e_i · Q e_j), over the examples i alone: queries are not looked at."""
    place = places(examples, tokens.shape[1])
    query = layer.as_queries(layer.query(tokens), place)
    key = layer.as_keys(layer.key(tokens), place)
    mask = Mask(place.query_at, place.query_at)
    scores = attention_scores(query, key, Scoring(mask, layer.scale)) * mask.allowed()
    return tokens + layer.output(merge_heads(mix(scores, split_heads(layer.value(tokens), 1))))


def places(examples: int, tokens: int) -> Place:
    """Examples stand at 0, 1, …; queries at −1, where nobody looks."""
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


def descended(weights: Tensor, x: Tensor, y: Tensor, rate: float) -> Tensor:
    """W − η ∇L(W), the gradient by automatic differentiation."""
    at = weights.clone().requires_grad_()
    loss = (x @ at.T - y).square().sum() / (2 * len(x))
    return weights - rate * torch.autograd.grad(loss, at)[0]


@torch.no_grad()
def exactness(seed: int, precision: str, *, depth: int) -> dict[str, float]:
    """How far attention's predictions are from gradient descent's, as a part of the largest: the
    dual form, and 1, 2, … layers."""
    dtype = getattr(torch, precision)
    random = random_of(seed, 0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    x = normal(EXAMPLES, DIMENSION)
    y = normal(EXAMPLES, OUTPUTS)
    asked = normal(QUERIES, DIMENSION)
    start = normal(OUTPUTS, DIMENSION)
    rate = 0.3
    layer = set_by_hand(linear_attention(DIMENSION + OUTPUTS).to(dtype), start, rate / EXAMPLES)
    tokens = torch.cat((torch.cat((x, y), 1), torch.cat((asked, -asked @ start.T), 1)))[None]
    dual = asked @ start.T + rate / EXAMPLES * (asked @ x.T) @ (y - x @ start.T)
    found = {"dual": math.nan}
    weights = start
    for layers in range(1, depth + 1):
        tokens = linear_step(layer, tokens, EXAMPLES)
        with torch.enable_grad():
            weights = descended(weights, x, y, rate)
        found[f"layers-{layers}"] = apart(-tokens[0, EXAMPLES:, DIMENSION:], asked @ weights.T)
        if layers == 1:
            found["dual"] = apart(dual, asked @ weights.T)
    return found


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


# -------------------------------------------------------------------------------- what is trained


def joined(of: Tasks) -> Tensor:
    """Tokens (x, y) of the examples, then (x, 0) of the queries."""
    examples = torch.cat((of.x, of.y[..., None]), -1)
    asked = nn.functional.pad(of.asked, (0, 1))
    return torch.cat((examples, asked), 1)


class Regressor(nn.Module):
    """read → sightline's blocks → write. Examples have no order, so there are no positions; and no
    norm behind the last block, which would hide how large the answer is."""

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
        tokens = joined(of)
        examples = of.x.shape[1]
        known = (
            (torch.arange(tokens.shape[1]) < examples)
            .to(tokens)[:, None]
            .expand(len(tokens), -1, 1)
        )  # 1 where y is told
        x = self.read(torch.cat((tokens, known), -1))
        setting = BlockContext(places(examples, tokens.shape[1]))
        for block in self.blocks:
            x = block(x, setting)
        return self.write(x[:, examples:])[..., 0]


class LinearRegressor(nn.Module):
    """One layer of linear attention with weights of its own; −y of the query is the prediction."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.layer = linear_attention(dimension + 1)
        for part in (self.layer.query, self.layer.key, self.layer.value, self.layer.output):
            nn.init.normal_(part.weight, std=1 / math.sqrt(dimension + 1))

    def forward(self, of: Tasks) -> Tensor:
        examples = of.x.shape[1]
        return -linear_step(self.layer, joined(of), examples)[:, examples:, -1]


def learned(
    make: Callable[[int], nn.Module],
    dimension: int,
    *,
    lengths: tuple[int, int],
    steps: int,
    batch: int = 64,
    rate: float,
    seed: int,
) -> nn.Module:
    """Train on tasks with so many examples, at least and at most: AdamW, warm-up, cosine to a
    hundredth.

    The loss is (ŷ − w·x)²; with the noise in y, its minimum would be higher, but at the same place.
    """
    torch.manual_seed(seed)
    model = make(dimension)
    random = random_of(seed, 1)
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
        of = tasks(batch, dimension, examples, random)
        optimizer.zero_grad(set_to_none=True)
        (model(of) - of.answers).square().mean().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return model.eval()


@torch.inference_mode()
def measured(
    model: nn.Module, dimension: int, examples: int, *, descents: Sequence[int], seed: int
) -> dict[str, float]:
    """Errors of the model and of the known methods on the same new tasks, and how far its
    predictions are from theirs."""
    of = tasks(TASKS, dimension, examples, random_of(seed, 2, examples))
    ours = model(of)
    theirs = {"ridge": ridge(of), "least squares": least_squares(of)}
    theirs |= {f"descent-{steps}": best_descent(of, steps) for steps in descents}
    errors = {"trained": error(ours, of)} | {
        name: error(found, of) for name, found in theirs.items()
    }
    return errors | {
        f"from {name}": float((ours - found).square().mean()) for name, found in theirs.items()
    }
