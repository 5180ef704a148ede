"""Removing attention heads of a model: how important each is, and the loss as more and more are
removed.

    importance_h = loss without h − loss                    on some texts
    gradient_h   = |∂ loss / ∂ξ_h| at ξ = 1                 ξ_h multiplies the head (Michel et al.)
    norm_h       = mean ‖W_O^h z_h‖                         what the head adds to the stream
    curve(order) = loss without the first k of an order     on other texts

A head is removed by zero, or by its mean over the first texts: a constant, which reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from sightline.core.model import Transformer
from sightline.core.runner import in_eval_mode
from sightline.lens.interventions.edits import Edits, ablate, replace
from sightline.record import Edit, Place, Recorder

HeadPlace = tuple[int, int]  # layer and head
By = Literal["zero", "mean"]
Order = Sequence[HeadPlace]
Texts = Int[Tensor, "texts time"]
DRAWS = 3  # random orders
WAYS: tuple[By, By] = ("zero", "mean")


@dataclass(frozen=True, slots=True)
class Measured:
    """What some texts tell about every head; `means` are the outputs before W_O."""

    loss: float
    importance: Mapping[By, Float[Tensor, "layers heads"]]
    gradient: Float[Tensor, "layers heads"]
    norm: Float[Tensor, "layers heads"]
    means: Float[Tensor, "layers heads head_dim"]


def head_places(model: Transformer) -> list[HeadPlace]:
    stack = model.last_stack
    return [
        (layer, head)
        for layer in range(stack.config.layers)
        for head in range(stack[layer].attention.config.heads)
    ]


def loss_of(model: Transformer, texts: Texts, edits: Mapping[Place, Edit] | None = None) -> Tensor:
    """Nats per token, with some edits."""
    recorder = Recorder(edits=edits)
    logits = in_eval_mode(model)(texts[:, :-1], record=recorder)
    recorder.finish()
    return cross_entropy(logits.flatten(0, 1).float(), texts[:, 1:].flatten())


@torch.no_grad()
def pruned_loss(
    model: Transformer, texts: Texts, removed: Order, by: By, means: Tensor | None
) -> float:
    """The loss without some heads."""
    edits = [
        replace(layer, head, means[layer, head])
        if by == "mean" and means is not None
        else ablate(layer, head)
        for layer, head in removed
    ]
    return float(loss_of(model, texts, reduce(Edits.__or__, edits, Edits())))


def measure_heads(model: Transformer, texts: Texts) -> Measured:
    """Importance, gradient and norm of every head."""
    places = head_places(model)
    means, norm = means_and_norms(model, texts)
    whole = pruned_loss(model, texts, [], "zero", None)
    importance: dict[By, Tensor] = {
        by: torch.tensor(
            [pruned_loss(model, texts, [place], by, means) - whole for place in places]
        ).view_as(norm)
        for by in WAYS
    }
    return Measured(whole, importance, mask_gradients(model, texts), norm, means)


@torch.no_grad()
def means_and_norms(model: Transformer, texts: Texts) -> tuple[Tensor, Tensor]:
    """The mean output of each head before W_O, and the mean length of what it adds after it."""
    recorder = Recorder({"heads"})
    in_eval_mode(model)(texts[:, :-1], record=recorder)
    stack = model.last_stack
    means, norms = list[Tensor](), list[Tensor]()
    for layer in range(stack.config.layers):
        mixed = recorder[stack.name, layer, "heads"]  # [texts, heads, time, head_dim]
        weight = stack[layer].attention.output.weight.unflatten(1, (mixed.shape[1], -1))
        added = torch.einsum("bhtd,whd->bhtw", mixed, weight)
        means.append(mixed.mean((0, 2)))
        norms.append(added.norm(dim=-1).mean((0, 2)))
    return torch.stack(means), torch.stack(norms)


def mask_gradients(model: Transformer, texts: Texts) -> Float[Tensor, "layers heads"]:
    """Mean over texts of |∂ loss / ∂ξ|, with ξ = 1 for each head."""
    stack = model.last_stack
    total = torch.zeros(stack.config.layers, stack[0].attention.config.heads)
    for text in texts:
        masks = [
            torch.ones(stack[layer].attention.config.heads, requires_grad=True)
            for layer in range(stack.config.layers)
        ]
        edits: dict[Place, Edit] = {
            (stack.name, layer, "heads"): scaled_by(mask) for layer, mask in enumerate(masks)
        }
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss_of(model, text[None], edits), masks)
        total += torch.stack([gradient.abs() for gradient in gradients])
    return total / len(texts)


def scaled_by(mask: Float[Tensor, " heads"]) -> Edit:
    """Multiply each head by its entry of the mask."""
    return lambda mixed: mixed * mask[:, None, None]


def ascending(values: Float[Tensor, "layers heads"]) -> Order:
    """The heads, smallest value first."""
    order = values.flatten().argsort(stable=True).tolist()
    return [divmod(place, values.shape[1]) for place in order]


def shuffled(places: Sequence[HeadPlace], seed: int) -> Order:
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    return [places[place] for place in order.tolist()]


def prune(
    model: Transformer, choosing: Texts, judging: Texts, *, counts: Sequence[int], seed: int
) -> dict[str, Any]:
    """Orders from the first texts, losses on the second; `random` is the mean of some orders.
    `costliest` is the loss on the second without the one head that was most important on the
    first."""
    heads = measure_heads(model, choosing)
    places = head_places(model)
    randoms = {f"random-{n}": shuffled(places, DRAWS * seed + n) for n in range(DRAWS)}

    def curves(by: By) -> dict[str, list[float]]:
        orders = {
            "importance": ascending(heads.importance[by]),
            "gradient": ascending(heads.gradient),
            "norm": ascending(heads.norm),
            **randoms,
        }
        losses = {
            name: [pruned_loss(model, judging, order[:n], by, heads.means) for n in counts]
            for name, order in orders.items()
        }
        draws = zip(*(losses.pop(name) for name in randoms), strict=True)
        return losses | {"random": [sum(draw) / DRAWS for draw in draws]}

    return {
        "counts": list(counts),
        "loss": pruned_loss(model, judging, [], "zero", None),
        "curves": {by: curves(by) for by in heads.importance},
        "costliest": pruned_loss(
            model, judging, ascending(heads.importance["zero"])[-1:], "zero", None
        ),
        "importance": heads.importance["zero"].tolist(),
    }
