"""A tokenizer as data: what a GGUF file, a llama2.c file or a list of characters says of itself,
before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

Kind = Literal["bytes", "sentencepiece", "unigram", "wordpiece", "characters"]

# the kinds of a piece, numbered as SentencePiece and GGUF number them
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class SpecialIds(TypedDict, total=False):
    """The ids with a name."""

    bos: int | None
    eos: int | None
    pad: int | None
    unknown: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Pieces by id, and how they are put together.

    bytes: GPT-2's byte-level BPE (`merges`, `split` names the pre-tokenizer) · sentencepiece: BPE
    by `scores` · unigram: the most probable pieces by `scores` · wordpiece: BERT's (`lower_case`) ·
    characters: one piece per character; `written` are the pieces that decode when they are others
    than those that encode.
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
        """What sort of piece an id is."""
        return self.kinds[id] if self.kinds else NORMAL

    def ids_of(self, kind: int) -> list[int]:
        """Every id of one sort."""
        return [id for id, known in enumerate(self.kinds) if known == kind]
