"""What norm-placement measures: the norm's formula, the gradient of each layer before the first
step, and how short trainings end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.lab.learning import Drill
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


# --------------------------------------------------------------------------------------- the norm


def formula() -> dict[str, list[float]]:
    """How far three formulas are from the layer, relatively, by the spread of its input."""
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
    found: dict[str, list[float]] = {}
    for name, form in forms.items():
        found[name] = [
            float(((form(s * noise) - layer(s * noise)).norm() / layer(s * noise).norm()).detach())
            for s in SPREADS
        ]
    return found


# -------------------------------------------------------------------------------------- gradients


def config_of(form: Form, depth: int, width: int, vocabulary: int) -> ModelConfig:
    """About the same size for all: nGPT's gate brings a third matrix and takes a third of the
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


def fresh(form: Form, depth: int, width: int, vocabulary: int, seed: int) -> Transformer:
    """Glorot's weights, as in 2017, no matter how deep; smaller steps for deeper models would hide
    the effect. nGPT has its own."""
    import torch
    from torch import nn

    from sightline.lab.learning import made

    model = made(config_of(form, depth, width, vocabulary), seed)
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
def text(seed: int) -> tuple[PackedText, int]:
    from sightline.lab.learning import plays

    return plays(CONTEXT, ROWS, seed)


def gradient(form: Form, depth: int, seed: int) -> dict[str, Any]:
    """|∂loss/∂W| of each layer's last feed-forward matrix and queries, before the first step; and
    how alike the last states are."""
    task, vocabulary = text(seed)
    return gradient_of(fresh(form, depth, WIDTH, vocabulary, seed), task)


def gradient_of(model: Transformer, task: Drill | PackedText) -> dict[str, Any]:
    from sightline.core.norms import unit
    from sightline.training.loss import Objective

    batch = task.batch(0)
    stack = model.last_stack
    (Objective(model)(batch)[0] / batch.count).backward()
    states = unit(model.hidden(batch.tokens).detach())
    alike = (states @ states.transpose(1, 2)).mean()
    weights = [
        (stack[n].feed_forward.down.weight.grad, stack[n].attention.query.weight.grad)
        for n in range(stack.config.layers)
    ]
    found = [
        (float(down.norm()), float(query.norm()))
        for down, query in weights
        if down is not None and query is not None
    ]
    return {
        "down": [down for down, _ in found],
        "query": [query for _, query in found],
        "alike": float(alike),
    }


# -------------------------------------------------------------------------------------- trainings


def training(form: Form, depth: int, warmup: int, rate: float, seed: int) -> dict[str, Any]:
    task, vocabulary = text(seed)
    return trained(
        fresh(form, depth, LEARNING_WIDTH, vocabulary, seed),
        task,
        letters(seed),
        warmup=warmup,
        rate=rate,
        seed=seed,
    )


@lru_cache(maxsize=16)
def letters(seed: int) -> tuple[float, ...]:
    """−log of each character's frequency in the text."""
    import numpy as np

    task, vocabulary = text(seed)
    counts = np.bincount(task.train.ids, minlength=vocabulary) + 1
    return tuple(float(value) for value in -np.log(counts / counts.sum()))


def trained(
    model: Transformer,
    task: Drill | PackedText,
    unigram: Sequence[float],
    *,
    warmup: int,
    rate: float,
    seed: int,
) -> dict[str, Any]:
    """Adam without decay or clipping, a constant rate: how far below the frequencies' loss, on the
    same batches."""
    import torch

    from sightline.lab.learning import learn
    from sightline.training.config import AdamW, Schedule
    from sightline.training.loop import NotFiniteError

    losses = list[float]()
    frequencies = torch.tensor(unigram)
    adam = AdamW(lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    try:
        for _, event in learn(
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
    gained = [
        float(frequencies[task.batch(n).targets].mean()) - losses[n]
        for n in range(STEPS - 2 * TAIL, STEPS)
    ]
    return {
        "finite": True,
        "start": losses[0],
        "end": sum(losses[-TAIL:]) / TAIL,
        "before": sum(gained[:TAIL]) / TAIL,
        "gained": sum(gained[TAIL:]) / TAIL,
    }


def failed(row: Mapping[str, Any]) -> bool:
    """Not finite; or above its start; or neither 0.05 nats below the loss of the letters'
    frequencies nor, over the last ten steps, 0.05 nats better than over the ten before."""
    if not row["finite"] or row["end"] > row["start"]:
        return True
    return row["gained"] < MARGIN and row["gained"] - row["before"] < MARGIN
