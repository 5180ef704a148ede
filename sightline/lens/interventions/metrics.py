"""Metrics for sweeps: one number from the logits. Any function of the logits `[time, vocab_size]`
is a metric.

logit_difference(model, " Paris", " Rome")          logit(Paris) − logit(Rome) at the last position
probability(model, " Paris", position=4)            softmax(logits)[Paris]
lambda logits: logits[-1].max()                     your own
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from sightline.config import LanguageHead, MaskedHead
from sightline.errors import InputError, short_repr
from sightline.lens.trace.layer import checked_index
from sightline.lens.trace.subject import Subject

Metric = Callable[[Tensor], float]


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric of the logits at one position."""

    description: str
    position: int
    read: Callable[[Float[Tensor, " vocab_size"]], Tensor]

    def __call__(self, logits: Float[Tensor, "time vocab_size"]) -> float:
        return float(
            self.read(logits[checked_index("position", self.position, logits.shape[0])].float())
        )


def logit_difference(
    subject: Subject, right: str | int, wrong: str | int, *, position: int = -1
) -> Reading:
    """logit(right) − logit(wrong) at a position: the log-odds of the two, in nats."""
    first = one_token(subject, right)
    second = one_token(subject, wrong)
    return Reading(
        f"logit {short_repr(right)} − logit {short_repr(wrong)} at {position}",
        position,
        lambda logits: logits[first] - logits[second],
    )


def probability(subject: Subject, word: str | int, *, position: int = -1) -> Reading:
    """softmax(logits)[word] at a position."""
    id = one_token(subject, word)
    return Reading(
        f"probability of {short_repr(word)} at {position}",
        position,
        lambda logits: logits.softmax(-1)[id],
    )


def one_token(subject: Subject, word: str | int) -> int:
    """The id of a word that is a single token, for a model with logits over a vocabulary."""
    config = subject.transformer.config
    tokenizer = subject.tokenizer
    if not isinstance(config.head, (LanguageHead, MaskedHead)):
        expected = "a language model, or a custom metric: a function of the model's output"
        raise InputError(
            f"{subject.name or 'a model'}, which has no logits over a vocabulary",
            expected=expected,
            fix="metric=lambda output: …",
        )
    if isinstance(word, int):
        return checked_index("token", word, config.last.embedding.vocab_size)
    if tokenizer is None:
        raise InputError(
            f"the word {short_repr(word)}, for a model without tokenizer",
            expected="a token id",
            fix="logit_difference(model, 5, 7)",
        )
    ids = tokenizer.encode(word)
    if len(ids) != 1:
        pieces = ", ".join(repr(tokenizer.token(id)) for id in ids) or "none"
        fix = 'choose a word that is one (" Paris" with its space), or give a token id'
        raise InputError(
            f"{short_repr(word)}, which is {len(ids)} tokens: {pieces}",
            expected="one token",
            fix=fix,
        )
    if ids[0] == tokenizer.unknown:
        raise InputError(
            f"{short_repr(word)}, which the tokenizer does not know",
            expected="one token",
            fix="choose another word",
        )
    return ids[0]


def evaluate_metric(metric: Metric, logits: Tensor) -> float:
    """The metric of the logits; must be finite."""
    value = float(metric(logits))
    if not math.isfinite(value):
        raise InputError(
            f"a metric of {value}",
            expected="a finite number",
            fix="check the metric: its argument is the logits [time, vocab_size]",
        )
    return value


def metric_name(metric: Metric) -> str:
    """The description of a metric, or the function's name."""
    return str(getattr(metric, "description", getattr(metric, "__name__", "metric")))
