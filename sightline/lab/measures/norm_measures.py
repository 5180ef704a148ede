"""Measurements of norm-placement: the norm's formula, gradients at initialisation, and the
outcome of short training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.lab.learning import GeneratedTask
    from sightline.training.data.packed import PackedText

Form = Literal["pre", "post", "sandwich", "sphere"]
WIDTH = 64
LEARNING_WIDTH = 32
CONTEXT = 32
ROWS = 8
STEPS = 100
WARMUP = 50
TAIL = 10
MARGIN = 0.05  # nats
SPREADS = (1e-4, 1e-3, 10**-2.5, 1e-2, 1e-1, 1.0)


# ------------------------------------------------------------------------------------------- norm


def compare_norm_formulas() -> dict[str, list[float]]:
    """Relative differences of three formulas from the layer, by the scale of its input."""
    import torch

    from sightline.config import LayerNorm
    from sightline.core.norms import LayerNormLayer

    layer = LayerNormLayer(WIDTH, LayerNorm()).double()
    eps = LayerNorm().eps
    forms: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "root": lambda x: (x - x.mean()) / (x.var(correction=0) + eps).sqrt(),
        "sum": lambda x: (x - x.mean()) / (x.std(correction=0) + eps),
        "unbiased": lambda x: (x - x.mean()) / (x.var(correction=1) + eps).sqrt(),
    }
    noise = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    differences: dict[str, list[float]] = {}
    for name, form in forms.items():
        differences[name] = [
            float(((form(s * noise) - layer(s * noise)).norm() / layer(s * noise).norm()).detach())
            for s in SPREADS
        ]
    return differences


# -------------------------------------------------------------------------------------- gradients


def placement_config(form: Form, depth: int, width: int, vocabulary: int) -> ModelConfig:
    """Models of about equal size: nGPT's gated layer has a third matrix and two thirds of the
    hidden width."""
    from sightline.architectures import gpt, ngpt

    if form == "sphere":
        return ngpt(
            width=width, layers=depth, heads=2, vocab_size=vocabulary, max_positions=CONTEXT
        )
    return gpt(
        width=width, layers=depth, heads=2, vocab_size=vocabulary, max_positions=CONTEXT,
        positions="rotary", feed_forward="relu", placement=form, bias=False, tied=False,
    )  # fmt: skip


def glorot_model(form: Form, depth: int, width: int, vocabulary: int, seed: int) -> Transformer:
    """Glorot initialisation as in 2017 at every depth; depth-scaled initialisation would hide the
    effect. nGPT keeps its own."""
    import torch
    from torch import nn

    from sightline.lab.learning import build_seeded

    model = build_seeded(placement_config(form, depth, width, vocabulary), seed)
    if form != "sphere":
        with torch.no_grad():
            for part in model.modules():
                if isinstance(part, nn.Linear):
                    nn.init.xavier_normal_(part.weight)
            for name, weight in model.named_parameters():
                if weight.shape == (vocabulary, width):
                    nn.init.normal_(weight, std=1.0 if "embedding" in name else width**-0.5)
    return model


@lru_cache(maxsize=16)
def plays_for_seed(seed: int) -> tuple[PackedText, int]:
    from sightline.lab.learning import shakespeare

    return shakespeare(CONTEXT, ROWS, seed)


def measure_gradient(form: Form, depth: int, seed: int) -> dict[str, Any]:
    """|∂loss/∂W| of each layer's last feed-forward matrix and query matrix at initialisation, and
    the mean cosine of the last hidden states."""
    task, vocabulary = plays_for_seed(seed)
    return layer_gradients(glorot_model(form, depth, WIDTH, vocabulary, seed), task)


def layer_gradients(model: Transformer, task: GeneratedTask | PackedText) -> dict[str, Any]:
    from sightline.core.norms import unit
    from sightline.training.loss import Objective

    batch = task.batch(0)
    stack = model.last_stack
    (Objective(model)(batch)[0] / batch.count).backward()
    states = unit(model.hidden(batch.tokens).detach())
    similarity = (states @ states.transpose(1, 2)).mean()
    weights = [
        (stack[n].feed_forward.down.weight.grad, stack[n].attention.query.weight.grad)
        for n in range(stack.config.layers)
    ]
    norms = [
        (float(down.norm()), float(query.norm()))
        for down, query in weights
        if down is not None and query is not None
    ]
    return {
        "down": [down for down, _ in norms],
        "query": [query for _, query in norms],
        "alike": float(similarity),
    }


# ----------------------------------------------------------------------------------- training runs


def train_placement(form: Form, depth: int, warmup: int, rate: float, seed: int) -> dict[str, Any]:
    task, vocabulary = plays_for_seed(seed)
    return train_against_unigram(
        glorot_model(form, depth, LEARNING_WIDTH, vocabulary, seed),
        task,
        unigram_nats(seed),
        warmup=warmup,
        rate=rate,
        seed=seed,
    )


@lru_cache(maxsize=16)
def unigram_nats(seed: int) -> tuple[float, ...]:
    """−log of each character's frequency in the text."""
    import numpy as np

    task, vocabulary = plays_for_seed(seed)
    counts = np.bincount(task.train.ids, minlength=vocabulary) + 1
    return tuple(float(value) for value in -np.log(counts / counts.sum()))


def train_against_unigram(
    model: Transformer,
    task: GeneratedTask | PackedText,
    unigram: Sequence[float],
    *,
    warmup: int,
    rate: float,
    seed: int,
) -> dict[str, Any]:
    """Train with Adam at a constant rate, without decay or clipping; compare with the unigram
    loss on the same batches."""
    import torch

    from sightline.lab.learning import training_steps
    from sightline.training.config import AdamW, Schedule
    from sightline.training.loop import NotFiniteError

    losses = list[float]()
    frequencies = torch.tensor(unigram)
    adam = AdamW(lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    try:
        for _, event in training_steps(
            model,
            task,
            steps=STEPS,
            optimizer=adam,
            shape=Schedule(shape="constant", warmup=warmup),
            clip=0.0,
            seed=seed,
        ):
            losses.append(event.loss)
    except NotFiniteError:
        return {"finite": False, "steps": len(losses)}
    gains = [
        float(frequencies[task.batch(n).targets].mean()) - losses[n]
        for n in range(STEPS - 2 * TAIL, STEPS)
    ]
    return {
        "finite": True,
        "start": losses[0],
        "end": sum(losses[-TAIL:]) / TAIL,
        "before": sum(gains[:TAIL]) / TAIL,
        "gained": sum(gains[TAIL:]) / TAIL,
    }


def has_failed(row: Mapping[str, Any]) -> bool:
    """Not finite; or above its start; or neither 0.05 nats below the unigram loss nor improving by
    0.05 nats over the last ten steps."""
    if not row["finite"] or row["end"] > row["start"]:
        return True
    return row["gained"] < MARGIN and row["gained"] - row["before"] < MARGIN
