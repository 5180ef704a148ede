"""Metrics: one number of what a model says, for a sweep. Any function of the logits `[time,
vocab_size]` will do.

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
from sightline.lens.trace.layer import checked
from sightline.lens.trace.subject import Subject

Metric = Callable[[Tensor], float]


@dataclass(frozen=True, slots=True)
class Reading:
    """A number read off the logits `[time, vocab_size]` at one position."""

    says: str
    position: int
    read: Callable[[Float[Tensor, " vocab_size"]], Tensor]

    def __call__(self, logits: Float[Tensor, "time vocab_size"]) -> float:
        return float(self.read(logits[checked("position", self.position, logits.shape[0])].float()))


def logit_difference(
    subject: Subject, right: str | int, wrong: str | int, *, position: int = -1
) -> Reading:
    """logit(right) − logit(wrong) at a position: by how many nats the model prefers the one."""
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
    """The id of a word that is one token, in a model that has logits over words."""
    config = subject.running.config
    tokenizer = subject.tokenizer
    if not isinstance(config.head, (LanguageHead, MaskedHead)):
        expected = "a language model, or a metric of your own: a function of what the model gives"
        raise InputError(
            f"{subject.name or 'a model'}, which gives no logits over words",
            expected=expected,
            fix="metric=lambda output: …",
        )
    if isinstance(word, int):
        return checked("token", word, config.last.embedding.vocab_size)
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


def measured(metric: Metric, logits: Tensor) -> float:
    """The metric, which must be a number."""
    found = float(metric(logits))
    if not math.isfinite(found):
        raise InputError(
            f"a metric of {found}",
            expected="a finite number",
            fix="look at the metric: it is handed logits [time, vocab_size]",
        )
    return found


def named(metric: Metric) -> str:
    """What a metric says it is."""
    return str(getattr(metric, "says", getattr(metric, "__name__", "metric")))
