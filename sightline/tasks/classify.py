"""Labels for texts, or for each token of a text.

softmax(logits)       the labels exclude each other: their probabilities sum to 1
sigmoid(logits)       a single label, or several that are not exclusive
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import Classifier
from sightline.core.runner import Runner
from sightline.errors import InputError
from sightline.tasks.batches import Batch, as_list, batches, encode_rows, make_batch, max_row_length
from sightline.tasks.purpose import refusal
from sightline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenLabel:
    """One token of a text: its id, its characters `start` to `end`, its most likely label."""

    token: int
    text: str
    start: int
    end: int
    label: str
    probability: float


@dataclass(frozen=True, slots=True)
class Classification:
    """The most likely label of a text and the probability of each; for a tagger, which labels
    tokens, only `tokens`."""

    label: str | None
    probability: float | None
    probabilities: dict[str, float] = field(default_factory=dict[str, float])
    tokens: list[TokenLabel] = field(default_factory=list[TokenLabel])


def classify(
    runner: Runner,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    labels: list[str],
    problem: str | None = None,
    start: int | None = None,
) -> list[Classification]:
    """A classification per text, in their order.

    `problem` is Hugging Face's `problem_type`: "multi_label_classification" where labels do not
    exclude each other, "regression" for numbers that are not probabilities. `start` is the first
    token of an encoder–decoder's decoder; by default the end token (BART).
    """
    head = require_classifier(runner, labels)
    checked = as_list(texts)
    rows = encode_rows(tokenizer, checked, most=max_row_length(runner.config.last, None))
    if not all(rows):
        raise InputError(
            f"text {rows.index([])} has no tokens",
            expected="some text",
            fix="leave empty texts out",
        )
    answers: dict[int, Float[Tensor, ...]] = {}
    with torch.inference_mode():
        for batch in batches(rows, runner.device):
            logits = logits_of(runner, batch, rows, tokenizer.eos if start is None else start)
            for place, row in zip(batch.places, probabilities_of(logits, problem), strict=True):
                answers[place] = row.cpu()
    if head.pool != "tokens":
        return [of_text(answers[place], labels) for place in range(len(rows))]
    return [
        of_tokens(answers[place], row, tokenizer, checked[place], labels)
        for place, row in enumerate(rows)
    ]


def require_classifier(runner: Runner, labels: list[str]) -> Classifier:
    """The classifier, with a name for each of its labels."""
    head = runner.config.head
    if not isinstance(head, Classifier):
        raise refusal(runner.config, "classification", expected="a model with a classifier")
    if len(labels) != head.labels:
        raise InputError(
            f"{len(labels)} names for {head.labels} labels",
            expected="one each",
            fix="labels=model.labels",
        )
    if len(set(labels)) != len(labels):
        raise InputError(
            f"the labels {', '.join(labels)[:80]}",
            expected="each name once",
            fix='labels=["first", "second", …]',
        )
    return head


def logits_of(
    runner: Runner, batch: Batch, rows: list[list[int]], start: int | None
) -> Float[Tensor, "*shape labels"]:
    """The logits. The decoder of an encoder–decoder reads the same text, shifted right."""
    if runner.config.encoder is None or runner.config.decoder is None:
        hidden = runner.hidden(batch.tokens, padding=batch.padding)
        return runner.head(hidden, padding=batch.padding)
    if start is None:
        raise InputError(
            "no token to start the decoder with",
            expected="the decoder's first token",
            fix="classify(…, start=id)",
        )
    shifted = make_batch(
        [[start, *rows[place][:-1]] for place in batch.places],
        list(range(len(batch.places))),
        runner.device,
    )
    hidden = runner.hidden(
        shifted.tokens, padding=shifted.padding, source=batch.tokens, source_padding=batch.padding
    )
    return runner.head(hidden, padding=shifted.padding)


def probabilities_of(
    logits: Float[Tensor, "*shape labels"], problem: str | None
) -> Float[Tensor, "*shape labels"]:
    """Logits to probabilities, in float32."""
    logits = logits.float()
    if problem == "regression":
        return logits
    return (
        logits.sigmoid()
        if problem == "multi_label_classification" or logits.shape[-1] == 1
        else logits.softmax(-1)
    )


def of_text(probabilities: Float[Tensor, " labels"], labels: list[str]) -> Classification:
    """The classification of a text."""
    values = probabilities.tolist()
    best = int(probabilities.argmax())
    return Classification(labels[best], values[best], dict(zip(labels, values, strict=True)))


def of_tokens(
    probabilities: Float[Tensor, "time labels"],
    row: list[int],
    tokenizer: Tokenizer,
    text: str,
    labels: list[str],
) -> Classification:
    """The labels of a tagger: every token of the text without the special ones."""
    before, after = (len(ids) for ids in tokenizer.engine.around)
    stop = len(row) - after
    best = probabilities[before:stop].max(-1)
    parts = zip(
        row[before:stop],
        tokenizer.offsets(text)[: stop - before],
        best.indices.tolist(),
        best.values.tolist(),
        strict=True,
    )
    tokens = [
        TokenLabel(id, text[begin:end], begin, end, labels[label], value)
        for id, (begin, end), label, value in parts
    ]
    return Classification(None, None, tokens=tokens)
