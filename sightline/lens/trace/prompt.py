"""What is asked about: a text, token ids or a trace of them, as the ids that a model reads.

An encoder–decoder reads `source` and is shown writing ids that begin with its start token; a trace
has both already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sightline.errors import InputError, short_repr
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, trace_of

Text = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Question:
    """One text as ids, and the source of an encoder–decoder; the texts themselves where they are
    known."""

    ids: list[int]
    source: list[int] | None = None
    text: str = ""
    source_text: str = ""


def ids_for(subject: Subject, text_or_ids: Text) -> list[int]:
    """A text as tokens, with what the model expects around it; ids as they are. At least one, and
    only such as the model has."""
    if isinstance(text_or_ids, str):
        if subject.tokenizer is None:
            raise InputError(
                "a text, for a model without tokenizer",
                expected="token ids",
                fix="give the ids: [5, 17, 3]",
            )
        ids = subject.tokenizer.encode(text_or_ids, special=True)
    else:
        ids = [int(id) for id in text_or_ids]
    config = subject.running.config
    size = max(stack.embedding.vocab_size for stack in config.stacks.values())
    if not ids:
        raise InputError(
            "an empty text", expected="at least one token", fix='"The cat sat on the mat"'
        )
    wrong = next((id for id in ids if not 0 <= id < size), None)
    if wrong is not None:
        raise InputError(
            f"token {wrong}", expected=f"0 to {size - 1}", fix="use ids of this model's tokenizer"
        )
    return ids


def question_of(subject: Subject, asked: Text | Trace, source: Text | None = None) -> Question:
    """The ids of a text, or those that a trace is of."""
    if isinstance(asked, Trace):
        read = None if asked.source is None else [token.id for token in asked.source]
        return Question([token.id for token in asked.tokens], read, asked.text, asked.source_text)
    config = subject.running.config
    both = config.encoder is not None and config.decoder is not None
    if both and (source is None or isinstance(asked, str)):
        fix = "give model.trace(text, source=…) instead of the text"
        raise InputError(
            f"{short_repr(asked)} for an encoder–decoder",
            expected="target ids that begin with its start token, and source=",
            fix=fix,
        )
    if source is not None and not both:
        raise InputError(
            "a source for a model with one stack",
            expected="an encoder–decoder",
            fix="leave source out",
        )
    read = None if source is None else ids_for(subject, source)
    return Question(
        ids_for(subject, asked), read, written(asked), "" if source is None else written(source)
    )


def written(text: Text) -> str:
    """A text, or nothing for token ids."""
    return text if isinstance(text, str) else ""


def seen(
    subject: Subject, asked: Text | Trace, *, source: Text | None = None, what: Iterable[str]
) -> Trace:
    """A pass that keeps `what`."""
    question = question_of(subject, asked, source)
    return trace_of(
        subject,
        question.ids,
        source=question.source,
        text=question.text,
        source_text=question.source_text,
        what=tuple(what),
    )


def seen_attention(
    subject: Subject, asked: Text | Trace, *, source: Text | None = None, value: bool = False
) -> Trace:
    """A trace in which every attention map can be rebuilt: the one that was given, if it will
    do."""
    if isinstance(asked, Trace) and is_whole(asked, len(sites_of(subject.running)), value=value):
        return asked
    return seen(
        subject, asked, source=source, what=("query", "key", "value") if value else ("query", "key")
    )


def is_whole(trace: Trace, sites: int, *, value: bool) -> bool:
    """Whether all tokens of all layers asked, and all that is needed was kept."""
    looks = trace.looks.values()
    same = all(look.queries == len(trace.tokens_of(look.site[0])) for look in looks)
    return (
        len(looks) == sites
        and same
        and (not value or all(look.value is not None for look in looks))
    )
