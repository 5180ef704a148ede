"""Measurements of norm-placement: the norm's formula, gradients at initialisation, and the highest
learning rate that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
RATES = (6e-2, 2e-2, 7e-3, 2.4e-3, 8e-4, 3e-4)  # a factor of 3 apart, tried from above
TAIL = 50  # steps whose mean gain decides whether a run has trained
MARGIN = 0.05  # nats below the unigram loss, which a model that ignores its input cannot beat; the
# mean over the tail varies by about 0.01
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
    from sightline.lab.learning import build_seeded

    model = build_seeded(placement_config(form, depth, width, vocabulary), seed)
    if form != "sphere":
        init_glorot(model, vocabulary, width)
    return model


def init_glorot(model: Transformer, vocabulary: int, width: int) -> None:
    import torch
    from torch import nn

    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_normal_(part.weight)
        for name, weight in model.named_parameters():
            if weight.shape == (vocabulary, width):
                nn.init.normal_(weight, std=1.0 if "embedding" in name else width**-0.5)


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


# ------------------------------------------------------------------- the highest rate that trains


def scan_placement(form: Form, depth: int, warmup: int, steps: int, seed: int) -> dict[str, Any]:
    """The highest learning rate at which a model of this form and depth trains."""
    task, vocabulary = plays_for_seed(seed)
    return highest_rate_that_trains(
        lambda rate: gains_over_unigram(
            glorot_model(form, depth, LEARNING_WIDTH, vocabulary, seed),
            task,
            unigram_nats(seed),
            steps=steps,
            warmup=warmup,
            rate=rate,
        )
    )


def highest_rate_that_trains(
    train: Callable[[float], Sequence[float]], rates: Sequence[float] = RATES
) -> dict[str, Any]:
    """Try the rates from above until a run has trained. `train` returns the gain over the unigram
    loss at each step, nothing if the loss was not finite; `tried` has the gain of the tail."""
    tried: list[tuple[float, float | None]] = []
    for rate in sorted(rates, reverse=True):
        gains = train(rate)
        tried.append((rate, sum(gains[-TAIL:]) / len(gains[-TAIL:]) if gains else None))
        if has_trained(gains):
            return {"highest": rate, "tried": tried}
    return {"highest": 0.0, "tried": tried}


def has_trained(gains: Sequence[float]) -> bool:
    """Whether the last steps predict better than the unigram frequencies, by 0.05 nats."""
    tail = gains[-TAIL:]
    return bool(tail) and sum(tail) / len(tail) >= MARGIN


@lru_cache(maxsize=16)
def unigram_nats(seed: int) -> tuple[float, ...]:
    """−log of each character's frequency in the text."""
    import numpy as np

    task, vocabulary = plays_for_seed(seed)
    counts = np.bincount(task.train.ids, minlength=vocabulary) + 1
    return tuple(float(value) for value in -np.log(counts / counts.sum()))


def gains_over_unigram(
    model: Transformer,
    task: GeneratedTask | PackedText,
    unigram: Sequence[float],
    *,
    steps: int,
    warmup: int,
    rate: float,
) -> list[float]:
    """Train with Adam at a constant rate, without decay or clipping: the unigram loss minus the
    model's on each batch, or nothing if a loss was not finite."""
    import torch

    from sightline.lab.learning import training_steps
    from sightline.training.config import AdamW, Schedule
    from sightline.training.loop import NotFiniteError

    gains = list[float]()
    frequencies = torch.tensor(unigram)
    adam = AdamW(lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    constant = Schedule(shape="constant", warmup=warmup)
    try:
        for step, (_, event) in enumerate(
            training_steps(model, task, steps=steps, optimizer=adam, shape=constant, clip=0.0)
        ):
            gains.append(float(frequencies[task.batch(step).targets].mean()) - event.loss)
    except NotFiniteError:
        return []
    return gains
