"""Marian's three files: one SentencePiece model for the source, one for the target, and vocab.json
with the ids of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import sentencepiece

from sightline.errors import CheckpointError
from sightline.text.engines.engine import Span, call_native, control_parts
from sightline.text.engines.sentencepiece import encoded_spans
from sightline.text.vocabulary.sentencepiece_model import byte_to_character

SPACE = "▁"
LANGUAGE = re.compile(
    r">>[^<>]+<<"
)  # ">>fra<<" at the start makes a multilingual model translate into French


class MarianEngine:
    """An engine over two processors and one table."""

    def __init__(self, where: Path, ids: dict[str, int], source: bytes, target: bytes) -> None:
        missing = [piece for piece in ("</s>", "<unk>") if piece not in ids]
        if missing:
            raise CheckpointError(
                f"{where}: {missing[0]} is missing", expected="Marian's vocabulary"
            )
        self._where = where
        self._ids = ids
        self._pieces = {id: piece for piece, id in ids.items()}
        self._source: Any = call_native(
            where, "be built", lambda: sentencepiece.SentencePieceProcessor(model_proto=source)
        )
        self._target: Any = call_native(
            where, "be built", lambda: sentencepiece.SentencePieceProcessor(model_proto=target)
        )
        self.size = max(self._pieces) + 1
        self.specials = frozenset(
            ids[piece] for piece in ("</s>", "<unk>", "<pad>", "<s>") if piece in ids
        )
        self.around: tuple[tuple[int, ...], tuple[int, ...]] = ((), (ids["</s>"],))

    def ids(self, text: str, *, control: bool) -> list[int]:
        """See Engine."""
        parts = (
            control_parts(text, ((self._pieces[id], id) for id in self.specials))
            if control
            else [text]
        )
        return [
            id for part in parts for id in ([part] if isinstance(part, int) else self._cut(part))
        ]

    def _cut(self, text: str) -> list[int]:
        """The language token, if the model has it, then the pieces."""
        mark = self._mark(text)
        pieces = [*([mark] if mark else []), *self._source.encode_as_pieces(text[len(mark) :])]
        return [self._ids.get(piece, self._ids["<unk>"]) for piece in pieces]

    def target_ids(self, text: str) -> list[int]:
        """The ids of a translation, by the target's model."""
        return [
            self._ids.get(piece, self._ids["<unk>"])
            for piece in self._target.encode_as_pieces(text)
        ]

    def _mark(self, text: str) -> str:
        """The language token at the start, or an empty text."""
        match = LANGUAGE.match(text)
        return match[0] if match and match[0] in self._ids else ""

    def spans(self, text: str) -> list[Span]:
        """See Engine."""
        mark = self._mark(text)
        rest = text[len(mark) :]
        places = byte_to_character(rest)
        spans = encoded_spans(self._source, rest)
        cut = [(len(mark) + places[begin], len(mark) + places[end]) for begin, end, _ in spans]
        return [*([(0, len(mark))] if mark else []), *cut]

    def text(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """See Engine. Pieces between special ones are joined by the target's model."""
        written = ""
        run = list[str]()
        for id in ids:
            if id not in self.specials:
                run.append(self._pieces.get(id, ""))
            elif not skip_special:
                written = f"{written}{self._join(run)} {self._pieces[id]} "
                run = []
        return (written + self._join(run)).strip()

    def _join(self, pieces: list[str]) -> str:
        """The text of some pieces."""
        return call_native(
            self._where,
            "decode",
            lambda: str(self._target.decode_pieces([piece for piece in pieces if piece])),
        )

    def piece(self, id: int) -> str | None:
        """See Engine."""
        return self._pieces.get(id)

    def id(self, piece: str) -> int | None:
        """See Engine."""
        return self._ids.get(piece)

    def readable(self, id: int, *, source: bool = False) -> str:
        """See Engine."""
        return self._pieces.get(id, "").replace(SPACE, " ")

    def vocabulary(self) -> NoReturn:
        """Two models cannot be written into another format."""
        raise CheckpointError(
            f"{self._where}: Marian's tokenizer has no other form", fix="save the model as a folder"
        )
