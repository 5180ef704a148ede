"""The attention sink of a real model: how much weight the first token gets, why, and the cost of
cutting it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sightline.lab.learning import seeded_generator
from sightline.lab.measures.real_text import real_model, text_ids
from sightline.lens.interventions.edits import Edits, logits_with
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.trace import trace_of

if TYPE_CHECKING:
    from sightline.lens.trace.layer import Look
    from sightline.lens.trace.subject import Subject

FROM = 16  # rows and targets from here on: all come after the tokens that are cut
OTHERS = 3  # tokens between the first and that, cut as controls


def measure_sinks(name: str, seed: int) -> dict[str, Any]:
    """One text of one model."""
    return measure_sink(real_model(name), text_ids(name, seed), seed)


def measure_sink(subject: Subject, ids: list[int], seed: int = 0) -> dict[str, Any]:
    """The weights on the first token, its key and value, and the losses without it."""
    trace = trace_of(subject, ids, what=("query", "key", "value"))
    looks = list(trace.looks.values())
    return {
        **weights_on_first(looks),
        **first_key_and_value(looks),
        **place_or_word(subject, ids, looks, seed),
        "losses": cut_losses(subject, ids, seed),
        "tokens": len(ids),
    }


def control_tokens(seed: int) -> list[int]:
    """Random positions between the first token and the rows that are measured."""
    order = torch.randperm(FROM - 2, generator=seeded_generator(seed, FROM))
    return (2 + order[:OTHERS]).tolist()


# ---------------------------------------------------------------------------------------- weights


def weights_on_first(looks: list[Look]) -> dict[str, Any]:
    """The mean weight of each head on the first token and, over all heads, on the other token that
    gets most."""
    maps = [look.weights()[:, FROM:] for look in looks]
    by_place = torch.stack([weights[..., :FROM].mean((0, 1)) for weights in maps]).mean(0)
    return {
        "heads": [weights[..., 0].mean(-1) for weights in maps],
        "first": float(by_place[0]),
        "next": float(by_place[1:].max()),
    }


def place_or_word(
    subject: Subject, ids: list[int], looks: list[Look], seed: int
) -> dict[str, float]:
    """The weight on one token where it is, and where the text starts with it, in the same rows."""
    at = control_tokens(seed)[0]
    cut = trace_of(subject, ids[at:], what=("query", "key")).looks.values()
    inside, first = (
        torch.stack([look.weights()[:, FROM - start :, at - start].mean() for look in those])
        for those, start in ((looks, 0), (list(cut), at))
    )
    return {"word inside": float(inside.mean()), "word first": float(first.mean())}


# ----------------------------------------------------------------------------- its key and value


def first_key_and_value(looks: list[Look]) -> dict[str, Any]:
    """Per layer: the lengths of the first key and value as a share of the others'; and the weight
    on the first token if its key had the others' mean length, or their mean cosine."""
    rows = [first_in_layer(look) for look in looks]
    return {name: [row[name] for row in rows] for name in rows[0]}


def first_in_layer(look: Look) -> dict[str, float]:
    value = look.value
    assert value is not None
    changed = {name: weight_on_first(look, name) for name in ("length", "direction")}
    return {
        "key length": length_ratio(look.key[0]),
        "value length": length_ratio(value[0]),
        "as is": float(look.weights()[:, FROM:, 0].mean()),
        "other length": changed["length"],
        "other direction": changed["direction"],
    }


def length_ratio(vectors: Tensor) -> float:
    """|x_0| / mean |x_j|, the mean over heads."""
    lengths = vectors.norm(dim=-1)
    return float((lengths[:, 0] / lengths[:, 1:].mean(-1)).mean())


def weight_on_first(look: Look, part: str) -> float:
    """The mean weight on the first key with the others' mean length, or their mean cosine."""
    scores = look.scores()[:, FROM:].double()
    query = look.query[0, :, FROM:].double()
    key = look.keys[0].double()
    length = key.norm(dim=-1)[:, None]
    cosine = query @ key.transpose(-2, -1) / (query.norm(dim=-1, keepdim=True) * length)
    visible = scores[..., 1:].isfinite()
    mean = lambda x: (x[..., 1:] * visible).sum(-1) / visible.sum(-1)  # noqa: E731
    first_length, first_cosine = (
        (mean(length.expand_as(scores)), cosine[..., 0])
        if part == "length"
        else (length[..., 0], mean(cosine))
    )
    changed = scores.clone()
    changed[..., 0] = query.norm(dim=-1) * first_length * first_cosine * look.scoring.scale
    return float(changed.softmax(-1)[..., 0].mean())


# ----------------------------------------------------------------------------------- cutting it off


def cut_losses(subject: Subject, ids: list[int], seed: int) -> dict[str, float]:
    """The loss of the same targets: as it is; with the first token cut off from their rows, so that
    its weight goes to the others; with its value silenced, so that its weight goes nowhere; and
    with the token removed from the text, so that another takes its place. As controls, the mean of
    the same cuts of other tokens."""

    def loss(edits: Edits, removed: int = 0) -> float:
        logits = logits_with(subject, ids[removed:], edits)[FROM - 1 - removed : -1]
        return float(cross_entropy(logits.float(), torch.tensor(ids[FROM:])))

    def mean(cut: Callable[[Subject, int], Edits]) -> float:
        return sum(loss(cut(subject, at)) for at in others) / len(others)

    others = control_tokens(seed)
    return {
        "as is": loss(Edits()),
        "cut": loss(cut_token(subject, 0)),
        "silenced": loss(silence_token(subject, 0)),
        "removed": loss(Edits(), 1),
        "other cut": mean(cut_token),
        "other silenced": mean(silence_token),
    }


def cut_token(subject: Subject, at: int) -> Edits:
    """The measured rows do not attend to this token: its weight goes to the others, in proportion.
    Rows before them do, so that no other token takes its place."""
    return edit_rows(subject, lambda rows: without(rows, at, renormalize=True))


def silence_token(subject: Subject, at: int) -> Edits:
    """The measured rows keep their weights on the other tokens and get nothing from this one."""
    return edit_rows(subject, lambda rows: without(rows, at, renormalize=False))


def without(rows: Tensor, at: int, *, renormalize: bool) -> Tensor:
    rows = rows.clone()
    rows[..., at] = 0
    return rows / rows.sum(-1, keepdim=True) if renormalize else rows


def edit_rows(subject: Subject, change: Callable[[Tensor], Tensor]) -> Edits:
    """A change of the weights of the measured rows in every layer."""

    def edit(weights: Tensor) -> Tensor:
        first = FROM - 1  # predicts token FROM
        return torch.cat((weights[..., :first, :], change(weights[..., first:, :])), dim=-2)

    places = sites_of(subject.transformer)
    return Edits({(stack, layer, "weights"): edit for stack, layer, _ in places})
