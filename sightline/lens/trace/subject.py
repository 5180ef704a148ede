"""The subject of an analysis: a model with its tokenizer; and tokens with their text and character
spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sightline.core.model import Transformer
from sightline.core.runner import in_eval_mode
from sightline.text.tokenizer import Tokenizer


class Subject(Protocol):
    """A `Model`, or anything with these attributes."""

    @property
    def transformer(self) -> Transformer: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def name(self) -> str: ...


def eval_transformer(subject: Subject) -> Transformer:
    """What runs an analysis: the subject's transformer, without dropout."""
    return in_eval_mode(subject.transformer)


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its id, its text, and its character span in the text (None if it has none)."""

    id: int
    text: str
    start: int | None = None
    end: int | None = None


MAX_BYTE_TOKENS = 16  # tokens that are decoded together to complete a character


def read_tokens(
    tokenizer: Tokenizer | None,
    ids: Sequence[int],
    text: str | None = None,
    *,
    source: bool = False,
) -> tuple[Token, ...]:
    """Ids as tokens, with their character spans if `text` is given. A character that is split over
    several tokens is shown in full by each of them. `source` marks ids of the source language,
    which some tokenizers (Marian) decode with another vocabulary."""
    if tokenizer is None:
        return tuple(Token(id, f"<{id}>") for id in ids)
    text_ids = tokenizer.encode(text) if text else []
    first = _find(text_ids, ids) if text_ids else None
    spans = (
        dict(enumerate(tokenizer.offsets(text), start=first)) if text and first is not None else {}
    )
    pieces = [tokenizer.token(id, source=source) for id in ids]
    tokens: list[Token] = []
    for position, (id, piece) in enumerate(
        zip(ids, _join_split_characters(tokenizer, ids, pieces), strict=True)
    ):
        tokens.append(Token(id, piece, *spans.get(position, (None, None))))
    return tuple(tokens)


def _find(part: Sequence[int], ids: Sequence[int]) -> int | None:
    """The first position at which `ids` contains `part`."""
    starts = range(len(ids) - len(part) + 1)
    return next((n for n in starts if list(ids[n : n + len(part)]) == list(part)), None)


def _join_split_characters(
    tokenizer: Tokenizer, ids: Sequence[int], pieces: list[str]
) -> list[str]:
    """Tokens that are single bytes of a character, each shown as the whole character."""
    shown = list(pieces)
    start = 0
    for position, text in enumerate(pieces):
        if "\\x" not in text:
            start = position + 1
            continue
        start = max(start, position + 1 - MAX_BYTE_TOKENS)
        character = tokenizer.decode(ids[start : position + 1])
        if character and "\ufffd" not in character:
            shown[start : position + 1] = [character] * (position + 1 - start)
            start = position + 1
    return shown
