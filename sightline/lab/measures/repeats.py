"""Rows of random tokens that repeat, small models of attention alone that learn them, and what can
be seen meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from sightline.architectures import gpt
from sightline.core.model import Transformer
from sightline.lab.learning import Drill, asked, learn, made, random_of
from sightline.lens.heads.patterns import inductions
from sightline.lens.heads.profile import HeadMap, HeadRole, heads_of
from sightline.lens.trace.trace import trace_of
from sightline.record import Edit, Place, Recorder
from sightline.text.tokenizer import Tokenizer
from sightline.training.config import AdamW, Schedule
from sightline.training.data.batch import Batch

VOCABULARY = 64  # tokens of a row, and of what it repeats
LENGTH = 64
SHORTEST = 8
LONGEST = 31
WIDTH = 64
HEADS = 2
BATCH = 32
RATE = 3e-3
STEADY = Schedule(
    shape="constant", warmup=20
)  # no fall of the rate that could be taken for a change of the model
EVERY = 10  # steps between two looks at a model
EARLY, LATE = (
    slice(0, SHORTEST - 1),
    slice(-8, None),
)  # targets of a row that nothing tells, and that its repetition tells
FRAMES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the way that the score goes
PICTURED = 16  # tokens that the film's row repeats
HALF = 0.5


# -------------------------------------------------------------------------------- what is learned


def rows(count: int, random: Generator, *, period: int | None = None) -> Tensor:
    """Different random tokens, repeated to the end of the row; how many, differs from row to row,
    so no fixed distance helps."""
    order = torch.rand(count, VOCABULARY, generator=random).argsort(1)
    periods = torch.randint(SHORTEST, LONGEST + 1, (count, 1), generator=random)
    return order.gather(1, torch.arange(LENGTH)[None] % (periods if period is None else period))


@dataclass(frozen=True, slots=True)
class Learner:
    """A model of token numbers alone, as the lens wants to see one."""

    running: Transformer
    tokenizer: Tokenizer | None = None
    name: str = "learner"


def attention_alone(layers: int, seed: int) -> Transformer:
    """x ← x + attention(norm(x)), once or twice; the feed-forward is held at zero."""
    config = gpt(
        width=WIDTH,
        layers=layers,
        heads=HEADS,
        vocab_size=VOCABULARY,
        max_positions=LENGTH,
        hidden=1,
        tied=False,
    )
    model = made(config, seed)
    assert model.decoder is not None
    for layer in range(layers):
        for parameter in model.decoder[layer].feed_forward.parameters():
            parameter.requires_grad_(False).zero_()
    return model


def grown(layers: int, steps: int, *, seed: int, every: int = EVERY) -> dict[str, Any]:
    """One model while it learns: the loss where nothing tells the next token and where the
    repetition does, and the heads' scores."""

    def batch(step: int) -> Batch:
        tokens = rows(BATCH, random_of(seed, step))
        return asked(tokens[:, :-1], tokens[:, 1:])

    model = attention_alone(layers, seed)
    held_out = rows(64, random_of(seed, steps, 1))
    film = rows(1, random_of(seed, steps, 2), period=PICTURED)[:, : 2 * PICTURED]
    taken = [seen(model, held_out, film, 0)]
    for _, event in learn(
        model,
        Drill(batch),
        steps=steps,
        optimizer=AdamW(lr=RATE, weight_decay=0.01),
        shape=STEADY,
        seed=seed,
    ):
        if event.step % every == 0:
            taken.append(seen(model, held_out, film, event.step))
    guess = sum(math.log(period) for period in range(SHORTEST, LONGEST + 1)) / (
        LONGEST + 1 - SHORTEST
    )  # nats, of any token of the row
    return told_by(taken) | {
        "without": without_links(model, held_out),
        "tokens": film[0].tolist(),
        "guess": guess,
    }


# ------------------------------------------------------------------------------ what is looked at


def seen(model: Transformer, held_out: Tensor, film: Tensor, step: int) -> dict[str, Any]:
    """Losses, scores and maps at one step."""
    early, late = losses(model, held_out)
    heads = heads_in(model)
    scores = {
        role: [score_of(heads, head, role) for head in heads.heads]
        for role in ("induction", "previous")
    }
    return {"step": step, "early": early, "late": late, "maps": maps_of(model, film), **scores}


def losses(
    model: Transformer, tokens: Tensor, edits: Mapping[Place, Edit] | None = None
) -> tuple[float, float]:
    """Nats of the first targets and of the last."""
    with torch.inference_mode():
        logits = model(tokens[:, :-1], record=Recorder(edits=edits))
        found = cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(0)
    return float(found[EARLY].mean()), float(found[LATE].mean())


def heads_in(model: Transformer) -> HeadMap:
    """The lens on two probes of random tokens, repeated at two distances; the worse of the two
    counts."""
    return heads_of(Learner(model))


def score_of(heads: HeadMap, head: HeadRole, role: str) -> float:
    """A head that rests on its sink, and so cannot be judged, does nothing."""
    score = heads.score(head, role)
    return 0.0 if math.isnan(score) else score


def maps_of(model: Transformer, film: Tensor) -> list[Tensor]:
    """Every head's attention on the film's row, in the order of the lens."""
    trace = trace_of(Learner(model), film[0].tolist(), what=("query", "key"))
    return [head for layer in range(len(trace.looks)) for head in trace.weights(layer=layer)]


def without_links(model: Transformer, tokens: Tensor) -> dict[str, Any]:
    """The late loss with the induction heads kept from the very tokens that make them such; and, to
    compare, from those one before."""
    heads = heads_in(model)
    chosen = dict[int, list[int]]()
    for head in heads.heads:
        if score_of(heads, head, "induction") > HALF:
            chosen.setdefault(head.layer, []).append(head.head)
    links = torch.stack([inductions(row) for row in tokens[:, :-1]])
    found: dict[str, Any] = {"heads": sum(map(len, chosen.values()))}
    for name, cut_off in (("late", links), ("beside", links.roll(-1, dims=2))):
        edits = {
            ("decoder", layer, "weights"): partial(cut, heads=of, links=cut_off)
            for layer, of in chosen.items()
        }
        found[name] = losses(model, tokens, cast(dict[Place, Edit], edits))[1]
    return found


def cut(weights: Tensor, heads: Sequence[int], links: Tensor) -> Tensor:
    """[batch, heads, query, key] with zeros at the links of some heads, and what is left of each
    row made to sum to 1 again."""
    changed = weights.clone()
    left = weights[:, list(heads)] * ~links[:, None]
    changed[:, list(heads)] = left / left.sum(-1, keepdim=True).clamp(min=1e-9)
    return changed


def told_by(taken: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curves, and a film of the head that ends as the best: a frame for each part of the way
    that its score goes."""
    best = max(range(len(taken[-1]["induction"])), key=taken[-1]["induction"].__getitem__)
    scores = [one["induction"][best] for one in taken]
    passed = [
        next(n for n, score in enumerate(scores) if score >= share * max(scores))
        for share in FRAMES
    ]
    frames = [taken[n] for n in dict.fromkeys((0, *passed, len(taken) - 1))]
    curves = {name: [round(one[name], 5) for one in taken] for name in ("early", "late")}
    curves |= {
        role: [round(max(one[role]), 5) for one in taken] for role in ("induction", "previous")
    }
    film = [
        {
            "step": one["step"],
            "map": [[round(x, 3) for x in row] for row in one["maps"][best].tolist()],
        }
        for one in frames
    ]
    return {
        "step": [one["step"] for one in taken],
        **curves,
        "head": [best // HEADS, best % HEADS],
        "film": film,
    }
