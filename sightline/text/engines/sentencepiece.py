"""An Engine over the SentencePiece library: unigram and BPE with byte fallback."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import sentencepiece

from sightline.text.engines.engine import Span, call_native, control_parts
from sightline.text.vocabulary.sentencepiece_model import (
    byte_to_character,
    piece_spans,
    serialise,
    without_prefix_space,
)
from sightline.text.vocabulary.vocabulary import BYTE, CONTROL, UNKNOWN, UNUSED, Vocabulary

SPACE = "▁"
UNKNOWN_TEXT = " ⁇ "
# sentencepiece 0.2.2 renamed out_type; the old name is deprecated
RETURN_TYPE = (
    "return_type"
    if "return_type" in inspect.signature(sentencepiece.SentencePieceProcessor.encode).parameters
    else "out_type"
)


def encoded_spans(processor: Any, text: str) -> list[tuple[int, int, int]]:
    """First byte, last byte + 1 and id of each piece of a text."""
    return piece_spans(processor.encode(text, **{RETURN_TYPE: "serialized_proto"}))


class SentencePieceEngine:
    """An engine over one processor, and a second one that adds no space before a continuation."""

    def __init__(self, vocabulary: Vocabulary, model: bytes | None = None) -> None:
        """From a vocabulary; `model` are the bytes of the original file where there is one."""
        self._vocabulary = vocabulary
        self.model = serialise(vocabulary) if model is None else model
        self._first = self._processor(self.model)
        self._continuation = self._processor(without_prefix_space(self.model))
        self.size = len(vocabulary.pieces)
        self.specials = frozenset(
            id for id in range(self.size) if vocabulary.kind_of(id) in (CONTROL, UNKNOWN)
        )
        self.around = (vocabulary.before, vocabulary.after)

    def _processor(self, model: bytes) -> Any:
        """A processor for a model's bytes."""
        return call_native(
            self._vocabulary.where,
            "be built",
            lambda: sentencepiece.SentencePieceProcessor(model_proto=model),
        )

    def ids(self, text: str, *, control: bool) -> list[int]:
        """See Engine."""
        if not control:
            return list(self._first.encode(text))
        ids: list[int] = []
        pieces = self._vocabulary.pieces
        for part in control_parts(text, ((pieces[id], id) for id in self.specials)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += (self._continuation if ids else self._first).encode(part)
        return ids

    def spans(self, text: str) -> list[Span]:
        """See Engine. Each byte token of a character has the span of the whole character."""
        places = byte_to_character(text)
        spans: list[Span] = []
        for begin, end, id in reversed(encoded_spans(self._first, text)):
            inside = begin == end and self._vocabulary.kind_of(id) == BYTE and spans
            spans.append(spans[-1] if inside else (places[begin], places[end]))
        return spans[::-1]

    def text(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """See Engine. The first space, which the tokenizer added, is removed."""
        shown_ids = [
            id for id in ids if not (skip_special and self._vocabulary.kind_of(id) == CONTROL)
        ]
        written = b"".join(self._bytes(id) for id in shown_ids).decode("utf-8", errors="replace")
        opens = bool(shown_ids) and self._vocabulary.pieces[shown_ids[0]].startswith(SPACE)
        return written[1:] if opens and self._vocabulary.prefix_space else written

    def _bytes(self, id: int) -> bytes:
        """The bytes of one piece."""
        piece = self._vocabulary.pieces[id]
        kind = self._vocabulary.kind_of(id)
        if kind == BYTE and len(piece) == 6:
            return bytes([int(piece[3:5], 16)])
        if kind == UNKNOWN:
            return UNKNOWN_TEXT.encode()
        return piece.replace(SPACE, " ").encode()

    def piece(self, id: int) -> str | None:
        """See Engine."""
        return self._vocabulary.pieces[id] if 0 <= id < self.size else None

    def id(self, piece: str) -> int | None:
        """See Engine."""
        id = int(self._first.piece_to_id(piece))
        return id if self.piece(id) == piece else None

    def readable(self, id: int, *, source: bool = False) -> str:
        """See Engine."""
        piece = self._vocabulary.pieces[id]
        return (
            piece
            if self._vocabulary.kind_of(id) in (CONTROL, UNKNOWN, UNUSED, BYTE)
            else piece.replace(SPACE, " ")
        )

    def vocabulary(self) -> Vocabulary:
        """See Engine."""
        return self._vocabulary
