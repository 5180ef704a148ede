"""Prompts for analyses: a text, token ids or a trace, converted to ids and checked.

For an encoder–decoder, `source` is the encoder's text and the target ids begin with the start
token; a trace has both.
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
class Prompt:
    """A text as ids, and the source of an encoder–decoder; with their strings where known."""

    ids: list[int]
    source: list[int] | None = None
    text: str = ""
    source_text: str = ""


def ids_for(subject: Subject, text_or_ids: Text) -> list[int]:
    """The ids of a text, with special tokens; given ids unchanged. At least one, and all within the
    vocabulary."""
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
    config = subject.transformer.config
    size = max(stack.embedding.vocab_size for stack in config.stacks.values())
    if not ids:
        raise InputError(
            "an empty text", expected="at least one token", fix='"The cat sat on the mat"'
        )
    unknown = next((id for id in ids if not 0 <= id < size), None)
    if unknown is not None:
        raise InputError(
            f"token {unknown}", expected=f"0 to {size - 1}", fix="use ids of this model's tokenizer"
        )
    return ids


def prompt_of(subject: Subject, text: Text | Trace, source: Text | None = None) -> Prompt:
    """The ids of a text, of given ids, or of a trace."""
    if isinstance(text, Trace):
        source_ids = None if text.source is None else [token.id for token in text.source]
        return Prompt([token.id for token in text.tokens], source_ids, text.text, text.source_text)
    config = subject.transformer.config
    two_stacks = config.encoder is not None and config.decoder is not None
    if two_stacks and (source is None or isinstance(text, str)):
        fix = "give model.trace(text, source=…) instead of the text"
        raise InputError(
            f"{short_repr(text)} for an encoder–decoder",
            expected="target ids that begin with its start token, and source=",
            fix=fix,
        )
    if source is not None and not two_stacks:
        raise InputError(
            "a source for a model with one stack",
            expected="an encoder–decoder",
            fix="leave source out",
        )
    source_ids = None if source is None else ids_for(subject, source)
    return Prompt(
        ids_for(subject, text),
        source_ids,
        text_or_empty(text),
        "" if source is None else text_or_empty(source),
    )


def text_or_empty(text: Text) -> str:
    """The text, or an empty string for token ids."""
    return text if isinstance(text, str) else ""


def trace_prompt(
    subject: Subject, text: Text | Trace, *, source: Text | None = None, what: Iterable[str]
) -> Trace:
    """Run one pass that records `what`."""
    prompt = prompt_of(subject, text, source)
    return trace_of(
        subject,
        prompt.ids,
        source=prompt.source,
        text=prompt.text,
        source_text=prompt.source_text,
        what=tuple(what),
    )


def trace_attention(
    subject: Subject, text: Text | Trace, *, source: Text | None = None, value: bool = False
) -> Trace:
    """A trace with every attention map: the given one, if it is complete."""
    if isinstance(text, Trace) and has_all_attention(
        text, len(sites_of(subject.transformer)), value=value
    ):
        return text
    return trace_prompt(
        subject, text, source=source, what=("query", "key", "value") if value else ("query", "key")
    )


def has_all_attention(trace: Trace, sites: int, *, value: bool) -> bool:
    """Whether a trace has the queries of all tokens in all layers, and the values if needed."""
    looks = trace.looks.values()
    same = all(look.queries == len(trace.tokens_of(look.site[0])) for look in looks)
    return (
        len(looks) == sites
        and same
        and (not value or all(look.value is not None for look in looks))
    )
