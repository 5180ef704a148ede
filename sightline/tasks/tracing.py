"""Tracing a text: encoding it for the model. An encoder–decoder that is given one text translates
it first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sightline.checkpoints.defaults import Defaults
from sightline.config import StackConfig
from sightline.engine.runner import NativeRunner
from sightline.errors import InputError, short_repr
from sightline.generation.decode import check_ids
from sightline.lens.trace.native import native_trace
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, trace_of
from sightline.tasks.translate import Translation, start_of
from sightline.text.engines.marian import MarianEngine
from sightline.text.tokenizer import Tokenizer

Text = str | Sequence[int]


def trace(
    subject: Subject,
    defaults: Defaults,
    text: Text,
    source: Text | None,
    *,
    layers: Iterable[int] | None,
    what: Iterable[str],
    translate: Callable[[str], Translation],
    native: NativeRunner | None = None,
) -> Trace:
    """One recorded forward pass over a text. The decoder of an encoder–decoder begins with its
    start token, which is put before `text`.

    With `native`, the native engine runs the pass. It cannot record encoders and encoder–decoders:
    torch runs their pass, also where the engine runs `translate`."""
    config = (subject.transformer if native is None else native).config
    tokenizer = subject.tokenizer
    if config.encoder is None or config.decoder is None:
        if source is not None:
            raise InputError(
                "a source for a model with one stack",
                expected="an encoder–decoder",
                fix="trace(text)",
            )
        ids = check_ids_fit("text", ids_of(tokenizer, text), config.last)
        if native is not None:
            return native_trace(
                native, subject, ids, text=text_or_empty(text), layers=layers, what=what
            )
        return trace_of(subject, ids, text=text_or_empty(text), layers=layers, what=what)
    read = text if source is None else source
    source_ids = check_ids_fit("source", ids_of(tokenizer, read), config.encoder)
    start = start_of(defaults, tokenizer)
    if source is None:
        target, target_text = translate_first(translate, text)
    else:
        target = target_ids(tokenizer, text)
        target_text = text_or_empty(text)
    ids = check_ids_fit("text", [start, *target], config.decoder)
    return trace_of(
        subject,
        ids,
        source=source_ids,
        text=target_text,
        source_text=text_or_empty(read),
        layers=layers,
        what=what,
    )


def translate_first(translate: Callable[[str], Translation], text: Text) -> tuple[list[int], str]:
    """The model's own translation, without its last token, which the decoder never reads."""
    if not isinstance(text, str):
        raise InputError(
            "token ids for an encoder–decoder, without their source",
            expected="both",
            fix="trace(target, source=source)",
        )
    translation = translate(text)
    return translation.tokens[:-1], translation.text


def ids_of(tokenizer: Tokenizer | None, text: Text) -> list[int]:
    """A text as tokens, with the special tokens that the model expects; token ids as they are."""
    return needed(tokenizer).encode(text, special=True) if isinstance(text, str) else as_ids(text)


def target_ids(tokenizer: Tokenizer | None, text: Text) -> list[int]:
    """A translation as target ids, without start and end."""
    if not isinstance(text, str):
        return as_ids(text)
    engine = needed(tokenizer).engine
    return (
        engine.target_ids(text)
        if isinstance(engine, MarianEngine)
        else needed(tokenizer).encode(text)
    )


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, which a text needs."""
    if tokenizer is None:
        raise InputError(
            "a text for a model without tokenizer", expected="token ids", fix="trace([1, 2, 3])"
        )
    return tokenizer


def as_ids(ids: Any) -> list[int]:
    """Ids as Python integers, also from an array or a tensor."""
    try:
        return [id.tolist() if hasattr(id, "tolist") else id for id in ids]
    except TypeError:
        raise InputError(
            f"the text is {short_repr(ids)}",
            expected="a text, or a list of token ids",
            fix='trace("The cat sat")',
        ) from None


def check_ids_fit(name: str, ids: list[int], stack: StackConfig) -> list[int]:
    """Refuse empty texts, ids outside the vocabulary, and more tokens than the context has."""
    if not ids:
        raise InputError(
            f"an empty {name}", expected="at least one token", fix='trace("The cat sat on the mat")'
        )
    check_ids(name, ids, stack.embedding.vocab_size)
    if len(ids) > stack.max_positions:
        limit = stack.max_positions
        seen = f"a {name} of {len(ids)} tokens for a context of {limit}"
        fix = f"shorten it: trace(model.ids(text)[:{limit}])"
        raise InputError(seen, expected=f"at most {limit}", fix=fix)
    return ids


def text_or_empty(text: Text) -> str:
    """A text, or nothing for token ids."""
    return text if isinstance(text, str) else ""
