"""One piece per character. Output characters may differ from input characters."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.errors import CheckpointError, InputError
from sightline.text.engines.engine import Span, control_parts
from sightline.text.vocabulary.vocabulary import CONTROL, UNKNOWN, Vocabulary


class CharacterEngine:
    """An engine over a table. A character that is not in it becomes the unknown piece, or is
    refused if there is none."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        written = vocabulary.written or vocabulary.pieces
        self._written = written
        self.size = max(len(vocabulary.pieces), len(written))
        self.specials = frozenset(
            id
            for id in range(len(vocabulary.kinds))
            if vocabulary.kind_of(id) in (CONTROL, UNKNOWN)
        )
        self._ids = {
            piece: id for id, piece in enumerate(vocabulary.pieces) if id not in self.specials
        }
        wrong = [piece for piece in self._ids if len(piece) != 1]
        if wrong or len(self._ids) + len(
            [id for id in self.specials if id < len(vocabulary.pieces)]
        ) != len(vocabulary.pieces):
            seen = (
                f"{vocabulary.where}: the pieces {wrong[:3]} are not single characters"
                if wrong
                else f"{vocabulary.where}: a piece twice"
            )
            raise CheckpointError(
                seen,
                expected="a vocabulary of single characters",
                fix="add the tokenizer.json of the model",
            )
        self.around = (vocabulary.before, vocabulary.after)

    def ids(self, text: str, *, control: bool) -> list[int]:
        """See Engine."""
        names = [
            (self._vocabulary.pieces[id], id)
            for id in self.specials
            if id < len(self._vocabulary.pieces)
        ]
        parts = control_parts(text, names) if control else [text]
        return [
            id
            for part in parts
            for id in ([part] if isinstance(part, int) else map(self._id, part))
        ]

    def _id(self, character: str) -> int:
        """The id of a character."""
        id = self._ids.get(character, self._vocabulary.unknown)
        if id is None:
            known = "".join(self._ids)[:60]
            raise InputError(
                f"{self._vocabulary.where}: the character {character!r} is not in the vocabulary",
                expected=f"one of {known!r}",
            )
        return id

    def spans(self, text: str) -> list[Span]:
        """See Engine."""
        return [(at, at + 1) for at in range(len(text))]

    def text(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """See Engine."""
        return "".join(
            self._written[id]
            for id in ids
            if id < len(self._written) and not (skip_special and id in self.specials)
        )

    def piece(self, id: int) -> str | None:
        """See Engine."""
        return self._written[id] if 0 <= id < len(self._written) else None

    def id(self, piece: str) -> int | None:
        """See Engine."""
        known = self._ids.get(piece)
        return (
            known
            if known is not None
            else next((id for id in self.specials if self.piece(id) == piece), None)
        )

    def readable(self, id: int, *, source: bool = False) -> str:
        """See Engine."""
        return (
            self._vocabulary.pieces[id]
            if source and id < len(self._vocabulary.pieces)
            else self.piece(id)
        ) or ""

    def vocabulary(self) -> Vocabulary:
        """See Engine."""
        return self._vocabulary
