"""What is looked at: a model with its tokenizer, and a text as tokens that a reader can find again
in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sightline.core.model import Transformer
from sightline.text.tokenizer import Tokenizer


class Subject(Protocol):
    """A `Model`, or anything that has these."""

    @property
    def running(self) -> Transformer: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its id, how a reader would write it, and where its characters stand in the text
    (None for those that have none)."""

    id: int
    text: str
    start: int | None = None
    end: int | None = None


MOST = 16  # tokens that are tried as the bytes of one character and its neighbours


def read_tokens(
    tokenizer: Tokenizer | None,
    ids: Sequence[int],
    text: str | None = None,
    *,
    source: bool = False,
) -> tuple[Token, ...]:
    """Ids as tokens, with their place in the text if they came from one. A character that is split
    over several tokens is shown whole by each of them. `source` are ids that the model reads, which
    the rare tokenizer spells in other letters than those it writes."""
    if tokenizer is None:
        return tuple(Token(id, f"<{id}>") for id in ids)
    own = tokenizer.encode(text) if text else []
    first = (
        next(
            (n for n in range(len(ids) - len(own) + 1) if list(ids[n : n + len(own)]) == own), None
        )
        if own
        else None
    )
    spans = (
        dict(enumerate(tokenizer.offsets(text), start=first)) if text and first is not None else {}
    )
    spelt = [tokenizer.token(id, source=source) for id in ids]
    found: list[Token] = []
    for place, (id, shown) in enumerate(zip(ids, _whole(tokenizer, ids, spelt), strict=True)):
        found.append(Token(id, shown, *spans.get(place, (None, None))))
    return tuple(found)


def _whole(tokenizer: Tokenizer, ids: Sequence[int], spelt: list[str]) -> list[str]:
    """Bytes that are a character only together, as that character."""
    shown = list(spelt)
    start = 0
    for place, text in enumerate(spelt):
        if "\\x" not in text:
            start = place + 1
            continue
        start = max(start, place + 1 - MOST)
        together = tokenizer.decode(ids[start : place + 1])
        if together and "\ufffd" not in together:
            shown[start : place + 1] = [together] * (place + 1 - start)
            start = place + 1
    return shown
