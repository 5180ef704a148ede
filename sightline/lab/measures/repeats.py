"""Rows of repeating random tokens, small attention-only models trained on them, and their losses
and head scores over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from sightline.architectures import gpt
from sightline.core.model import Transformer
from sightline.lab.learning import (
    GeneratedTask,
    build_seeded,
    labelled_batch,
    seeded_generator,
    training_steps,
)
from sightline.lens.heads.patterns import induction_pattern
from sightline.lens.heads.profile import HeadMap, HeadRole, heads_of
from sightline.lens.trace.trace import trace_of
from sightline.record import Edit, Place, Recorder
from sightline.text.tokenizer import Tokenizer
from sightline.training.config import AdamW, Schedule
from sightline.training.data.batch import Batch
from sightline.training.loop import StepEvent, TrainState

VOCABULARY = 64  # tokens of a row, and of what it repeats
LENGTH = 64
SHORTEST = 8
LONGEST = 31
WIDTH = 64
HEADS = 4
BATCH = 32
STEADY = Schedule(
    shape="constant", warmup=20
)  # a decaying rate could be mistaken for a phase change
EARLY, LATE = (
    slice(0, SHORTEST - 1),
    slice(-8, None),
)  # targets before the first repetition, and late in the row
FRAMES = (0.1, 0.3, 0.5, 0.7, 0.9)  # fractions of the maximum score
PICTURED = 16  # period of the row in the film
HALF = 0.5


# ---------------------------------------------------------------------------------- task and model


def repeating_rows(count: int, random: Generator, *, period: int | None = None) -> Tensor:
    """Distinct random tokens, repeated to the end of the row. The period varies per row, so that no
    fixed offset helps."""
    order = torch.rand(count, VOCABULARY, generator=random).argsort(1)
    periods = torch.randint(SHORTEST, LONGEST + 1, (count, 1), generator=random)
    return order.gather(1, torch.arange(LENGTH)[None] % (periods if period is None else period))


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A model without a tokenizer, in the form that the lens expects."""

    transformer: Transformer
    tokenizer: Tokenizer | None = None
    name: str = "learner"


def attention_alone(layers: int, seed: int) -> Transformer:
    """x ← x + attention(norm(x)), per layer; the feed-forward is frozen at zero."""
    config = gpt(
        width=WIDTH,
        layers=layers,
        heads=HEADS,
        vocab_size=VOCABULARY,
        max_positions=LENGTH,
        hidden=1,
        tied=False,
    )
    model = build_seeded(config, seed)
    assert model.decoder is not None
    for layer in range(layers):
        for parameter in model.decoder[layer].feed_forward.parameters():
            parameter.requires_grad_(False).zero_()
    return model


def repeating_task(seed: int) -> GeneratedTask:
    def batch(step: int) -> Batch:
        tokens = repeating_rows(BATCH, seeded_generator(seed, step))
        return labelled_batch(tokens[:, :-1], tokens[:, 1:])

    return GeneratedTask(batch)


def training_of(
    model: Transformer, steps: int, *, rate: float, seed: int
) -> Iterator[tuple[TrainState, StepEvent]]:
    return training_steps(
        model,
        repeating_task(seed),
        steps=steps,
        optimizer=AdamW(lr=rate, weight_decay=0.01),
        shape=STEADY,
        seed=seed,
    )


def mean_training_loss(layers: int, steps: int, *, rate: float, seed: int) -> float:
    """Over all steps: how early a model learns, and how far."""
    events = training_of(attention_alone(layers, seed), steps, rate=rate, seed=seed)
    return sum(event.loss for _, event in events) / steps


def held_out_rows(steps: int, seed: int) -> Tensor:
    return repeating_rows(64, seeded_generator(seed, steps, 1))


def train_and_watch(
    layers: int, steps: int, *, rate: float, seed: int, every: int
) -> tuple[Transformer, dict[str, Any]]:
    """Train one model and record the loss before and after the repetition starts, and the heads'
    scores."""
    model = attention_alone(layers, seed)
    held_out = held_out_rows(steps, seed)
    film = repeating_rows(1, seeded_generator(seed, steps, 2), period=PICTURED)[:, : 2 * PICTURED]
    looks = [measure_at_step(model, held_out, film, 0)]
    for _, event in training_of(model, steps, rate=rate, seed=seed):
        if event.step % every == 0:
            looks.append(measure_at_step(model, held_out, film, event.step))
    return model, curves_and_film(looks) | {
        "without": without_links(model, held_out),
        "tokens": film[0].tolist(),
        "guess": nats_of_a_guess(),
    }


def nats_of_a_guess() -> float:
    """Nats of a uniform guess among the tokens of the row: their order unknown."""
    periods = range(SHORTEST, LONGEST + 1)
    return sum(map(math.log, periods)) / len(periods)


# ----------------------------------------------------------------------------------- measurements


def measure_at_step(
    model: Transformer, held_out: Tensor, film: Tensor, step: int
) -> dict[str, Any]:
    """Losses, scores and attention maps at one step."""
    early, late = early_and_late_loss(model, held_out)
    heads = probe_heads(model)
    scores = {
        role: [score_of(heads, head, role) for head in heads.heads]
        for role in ("induction", "previous")
    }
    return {"step": step, "early": early, "late": late, "maps": maps_of(model, film), **scores}


def early_and_late_loss(
    model: Transformer, tokens: Tensor, edits: Mapping[Place, Edit] | None = None
) -> tuple[float, float]:
    """Mean loss of the early and of the late targets, in nats."""
    with torch.inference_mode():
        logits = model(tokens[:, :-1], record=Recorder(edits=edits))
        losses = cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(0)
    return float(losses[EARLY].mean()), float(losses[LATE].mean())


def probe_heads(model: Transformer) -> HeadMap:
    """Head scores on two probes of random tokens repeated at two distances; the lower score
    counts."""
    return heads_of(ProbedModel(model))


def score_of(heads: HeadMap, head: HeadRole, role: str) -> float:
    """A head's score; 0 for a head that attends only to its sink and has no score."""
    score = heads.score(head, role)
    return 0.0 if math.isnan(score) else score


def maps_of(model: Transformer, film: Tensor) -> list[Tensor]:
    """The attention map of every head on the film's row."""
    trace = trace_of(ProbedModel(model), film[0].tolist(), what=("query", "key"))
    return [head for layer in range(len(trace.looks)) for head in trace.weights(layer=layer)]


def without_links(model: Transformer, tokens: Tensor) -> dict[str, Any]:
    """The late loss with the induction targets hidden from the induction heads; and, as a control,
    with the tokens one position earlier hidden."""
    heads = probe_heads(model)
    chosen = dict[int, list[int]]()
    for head in heads.heads:
        if score_of(heads, head, "induction") > HALF:
            chosen.setdefault(head.layer, []).append(head.head)
    links = torch.stack([induction_pattern(row) for row in tokens[:, :-1]])
    losses: dict[str, Any] = {"heads": sum(map(len, chosen.values()))}
    for name, cut_off in (("late", links), ("beside", links.roll(-1, dims=2))):
        edits = {
            ("decoder", layer, "weights"): partial(cut_links, heads=of, links=cut_off)
            for layer, of in chosen.items()
        }
        losses[name] = early_and_late_loss(model, tokens, cast(dict[Place, Edit], edits))[1]
    return losses


def cut_links(weights: Tensor, heads: Sequence[int], links: Tensor) -> Tensor:
    """Zero the weights [batch, heads, query, key] at the links of some heads and renormalise the
    rows."""
    changed = weights.clone()
    left = weights[:, list(heads)] * ~links[:, None]
    changed[:, list(heads)] = left / left.sum(-1, keepdim=True).clamp(min=1e-9)
    return changed


def curves_and_film(looks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curves, and attention maps of the finally best head at fixed fractions of its maximum
    score."""
    best = max(range(len(looks[-1]["induction"])), key=looks[-1]["induction"].__getitem__)
    scores = [look["induction"][best] for look in looks]
    crossings = [
        next(n for n, score in enumerate(scores) if score >= share * max(scores))
        for share in FRAMES
    ]
    frames = [looks[n] for n in dict.fromkeys((0, *crossings, len(looks) - 1))]
    curves = {name: [round(look[name], 5) for look in looks] for name in ("early", "late")}
    curves |= {
        role: [round(max(look[role]), 5) for look in looks] for role in ("induction", "previous")
    }
    film = [
        {
            "step": look["step"],
            "map": [[round(x, 3) for x in row] for row in look["maps"][best].tolist()],
        }
        for look in frames
    ]
    return {
        "step": [look["step"] for look in looks],
        **curves,
        "head": [best // HEADS, best % HEADS],
        "film": film,
    }
