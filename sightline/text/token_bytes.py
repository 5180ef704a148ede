"""The bytes that each token writes, for whoever must know a text before it is written: constrained
generation.

    decode(ids)  =  opening(id₁) · within(id₂) · within(id₃) · …        as UTF-8

`opening` differs from `within` only where a tokenizer treats the beginning of a text in its own
way: SentencePiece drops the space that it put there itself, WordPiece puts a space before every
word but the first. Control tokens write nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sightline.errors import InputError
from sightline.text.engines.engine import Engine
from sightline.text.engines.marian import MarianEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.streaming import REPLACEMENT, SPACE, SPELLED_BYTE, bytes_writer
from sightline.text.tokenizer import Tokenizer

TRIALS = 300
TRIAL_LENGTH = 6


@dataclass(frozen=True, slots=True)
class Written:
    """By id, what a token writes within a text; and for those that differ there, what it writes
    when it opens one."""

    within: list[bytes]
    opening: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def join(self, ids: Sequence[int]) -> bytes:
        """The text of ids that are no control tokens."""
        first = b"".join(self.opening.get(id, self.within[id]) for id in ids[:1])
        return first + b"".join(self.within[id] for id in ids[1:])


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """For every id the bytes that it writes within a text; nothing for control tokens and for ids
    without a piece."""
    return written(tokenizer).within


def written(tokenizer: Tokenizer) -> Written:
    """What each token writes, or one line about why that cannot be said of this tokenizer."""
    engine = tokenizer.engine
    ids = [
        id
        for id in range(engine.size)
        if id not in tokenizer.special_ids and engine.piece(id) is not None
    ]
    write = bytes_writer(engine)
    if write is None:
        return _asked(engine, ids)
    texts = {id: write(id) for id in ids}
    drops = isinstance(engine, SentencePieceEngine) and engine.vocabulary().prefix_space
    opening = (
        {id: text[1:] for id, text in texts.items() if (engine.piece(id) or "").startswith(SPACE)}
        if drops
        else {}
    )
    return Written([texts.get(id, b"") for id in range(engine.size)], opening)


def _asked(engine: Engine, ids: Sequence[int]) -> Written:
    """Found by asking the decoder for each token beside one that is known, then checked on
    sequences of many."""
    known = _known(engine, ids)
    within = dict[int, bytes]()
    opening = dict[int, bytes]()
    for id in ids:
        byte = known.byte(id)
        within[id] = known.between(id) if byte is None else byte
        first = known.before(id) if byte is None else byte
        if first != within[id]:
            opening[id] = first
    found = Written([within.get(id, b"") for id in range(engine.size)], opening)
    _check(engine, ids, found)
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that writes a word, and that word at the beginning and after it."""

    engine: Engine
    anchor: int
    first: str
    later: str
    has_bytes: bool

    def between(self, id: int) -> bytes:
        """What a token writes between two that are known."""
        return self._without(
            self.engine.text([self.anchor, id, self.anchor], skip_special=True), self.first, id
        )

    def before(self, id: int) -> bytes:
        """What a token writes at the beginning, before one that is known."""
        return self._without(self.engine.text([id, self.anchor], skip_special=True), "", id)

    def byte(self, id: int) -> bytes | None:
        """The byte beyond ASCII that a token spells: part of a character, which the decoder alone
        would not show."""
        piece = self.engine.piece(id) or ""
        spelled = self.has_bytes and SPELLED_BYTE.fullmatch(piece)
        return bytes([int(piece[3:5], 16)]) if spelled and int(piece[3:5], 16) >= 0x80 else None

    def _without(self, text: str, front: str, id: int) -> bytes:
        """A text without the known words around it."""
        middle = text[len(front) : len(text) - len(self.later)]
        lost = REPLACEMENT in middle and REPLACEMENT not in (self.engine.piece(id) or "")
        if lost or text != front + middle + self.later:
            raise _unsure(self.engine, id)
        return middle.encode()


def _known(engine: Engine, ids: Sequence[int]) -> _Known:
    """The first token that writes a word of letters."""
    for id in ids:
        text = engine.text([id], skip_special=True)
        if text.isalpha():
            later = engine.text([id, id], skip_special=True)[len(text) :]
            letter = engine.id("<0x41>")
            has_bytes = (
                letter is not None and engine.text([id, letter], skip_special=True) == f"{text}A"
            )
            return _Known(engine, id, text, later, has_bytes)
    raise InputError(
        "a tokenizer without a word in it",
        expected="tokens that write text",
        fix="generate without a constraint",
    )


def _check(engine: Engine, ids: Sequence[int], found: Written) -> None:
    """Some hundred sequences of tokens must decode to their bytes; Marian drops white space around
    a text."""
    dice = random.Random(0)
    around = None if isinstance(engine, MarianEngine) else ""
    for _ in range(TRIALS):
        some = dice.choices(ids, k=TRIAL_LENGTH)
        try:
            text = found.join(some).decode()
        except UnicodeDecodeError:
            continue
        if engine.text(some, skip_special=True).strip(around) != text.strip(around):
            raise _unsure(engine, some[0])


def _unsure(engine: Engine, id: int) -> InputError:
    return InputError(
        f"what the token {engine.piece(id)!r} writes depends on its neighbours",
        expected="a tokenizer whose tokens write the same bytes everywhere",
        fix="generate without a constraint",
    )
