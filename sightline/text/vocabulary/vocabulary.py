"""A tokenizer as data, as read from a GGUF file, a llama2.c file or a list of characters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

Kind = Literal["bytes", "sentencepiece", "unigram", "wordpiece", "characters"]

# the kinds of a piece, numbered as SentencePiece and GGUF number them
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class SpecialIds(TypedDict, total=False):
    """Ids of the special tokens."""

    bos: int | None
    eos: int | None
    pad: int | None
    unknown: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Pieces by id, and how text is encoded with them.

    bytes: GPT-2's byte-level BPE (`merges`, `split` names the pre-tokenizer) · sentencepiece: BPE
    by `scores` · unigram: the most probable pieces by `scores` · wordpiece: BERT's (`lower_case`) ·
    characters: one piece per character; `written` are the output pieces if they differ from the
    input pieces.
    """

    where: Path
    kind: Kind
    pieces: list[str]
    kinds: list[int] = field(default_factory=list[int])
    scores: list[float] = field(default_factory=list[float])
    merges: list[str] = field(default_factory=list[str])
    written: list[str] = field(default_factory=list[str])
    split: str = ""
    charsmap: bytes = b""
    prefix_space: bool = True
    lower_case: bool = False
    remove_extra_whitespaces: bool = False
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unknown: int | None = None
    mask: int | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    chat_template: str | None = None

    def kind_of(self, id: int) -> int:
        """The kind of a piece."""
        return self.kinds[id] if self.kinds else NORMAL

    def ids_of(self, kind: int) -> list[int]:
        """All ids of a kind."""
        return [id for id, known in enumerate(self.kinds) if known == kind]
