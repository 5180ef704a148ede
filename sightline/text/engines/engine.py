"""The interface of tokenizer engines: the Rust `tokenizers` library, SentencePiece, Marian, or a
table of characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from sightline.errors import CheckpointError, short_reason
from sightline.text.engines.native_stderr import hold_stderr
from sightline.text.vocabulary.vocabulary import Vocabulary

Result = TypeVar("Result")
Span = tuple[int, int]


class Engine(Protocol):
    """Text to ids and back."""

    @property
    def size(self) -> int:
        """Pieces in the vocabulary: the highest id + 1."""
        ...

    @property
    def specials(self) -> frozenset[int]:
        """Ids of control tokens, which are not text."""
        ...

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a text."""
        ...

    def ids(self, text: str, *, control: bool) -> list[int]:
        """The text's ids; with `control`, special pieces in the text become special ids."""
        ...

    def spans(self, text: str) -> list[Span]:
        """For each id, the characters of the text that it stands for."""
        ...

    def text(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of ids that are all in the vocabulary."""
        ...

    def piece(self, id: int) -> str | None:
        """A piece as the file spells it."""
        ...

    def id(self, piece: str) -> int | None:
        """The id of a piece as the file spells it."""
        ...

    def readable(self, id: int, *, source: bool = False) -> str:
        """A piece as readable text; `source` gives the input side where input and output differ."""
        ...

    def vocabulary(self) -> Vocabulary:
        """The tokenizer as data, to be written into another format."""
        ...


def call_native(where: Any, what: str, call: Callable[[], Result]) -> Result:
    """Run a call into Rust or C++; any exception or panic becomes a CheckpointError."""
    try:
        with hold_stderr():
            return call()
    except (KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit, CheckpointError):
        raise
    except BaseException as error:
        raise CheckpointError(
            f"{where}: the tokenizer cannot {what} ({short_reason(error)})",
            fix="fetch the tokenizer's files again",
        ) from None


def control_parts(text: str, specials: Iterable[tuple[str, int]]) -> list[str | int]:
    """Split a text at its special pieces: strings between them, ids for the pieces."""
    ids = {piece: id for piece, id in specials if piece}
    if not ids:
        return [text]
    pattern = "|".join(re.escape(piece) for piece in sorted(ids, key=len, reverse=True))
    parts = re.split(f"({pattern})", text)
    return [ids[part] if place % 2 else part for place, part in enumerate(parts) if part]
