"""The bytes that each token writes, for constrained generation.

    decode(ids)  =  opening(id₁) · within(id₂) · within(id₃) · …        as UTF-8

`opening` differs from `within` only where a tokenizer treats the start of a text differently:
SentencePiece drops the space that it added, WordPiece puts a space before every word but the first.
Control tokens write nothing."""

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
class TokenByteTable:
    """By id, the bytes of a token within a text; and at its start, for tokens that differ there."""

    within: list[bytes]
    opening: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def join(self, ids: Sequence[int]) -> bytes:
        """The bytes of ids that are not control tokens."""
        first = b"".join(self.opening.get(id, self.within[id]) for id in ids[:1])
        return first + b"".join(self.within[id] for id in ids[1:])


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """For every id its bytes within a text; empty for control tokens and for ids without a
    piece."""
    return token_byte_table(tokenizer).within


def token_byte_table(tokenizer: Tokenizer) -> TokenByteTable:
    """The bytes of each token; an InputError if they depend on the context."""
    engine = tokenizer.engine
    ids = [
        id
        for id in range(engine.size)
        if id not in tokenizer.special_ids and engine.piece(id) is not None
    ]
    write = bytes_writer(engine)
    if write is None:
        return _probe_decoder(engine, ids)
    texts = {id: write(id) for id in ids}
    drops = isinstance(engine, SentencePieceEngine) and engine.vocabulary().prefix_space
    opening = (
        {id: text[1:] for id, text in texts.items() if (engine.piece(id) or "").startswith(SPACE)}
        if drops
        else {}
    )
    return TokenByteTable([texts.get(id, b"") for id in range(engine.size)], opening)


def _probe_decoder(engine: Engine, ids: Sequence[int]) -> TokenByteTable:
    """Decode each token next to a known one, then verify on random sequences."""
    anchor = _find_anchor(engine, ids)
    within = dict[int, bytes]()
    opening = dict[int, bytes]()
    for id in ids:
        byte = anchor.byte(id)
        within[id] = anchor.between(id) if byte is None else byte
        first = anchor.before(id) if byte is None else byte
        if first != within[id]:
            opening[id] = first
    table = TokenByteTable([within.get(id, b"") for id in range(engine.size)], opening)
    _verify(engine, ids, table)
    return table


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A token that writes a word: its text at the start and within a text."""

    engine: Engine
    anchor: int
    first: str
    later: str
    has_bytes: bool

    def between(self, id: int) -> bytes:
        """The bytes of a token between two anchors."""
        return self._without(
            self.engine.text([self.anchor, id, self.anchor], skip_special=True), self.first, id
        )

    def before(self, id: int) -> bytes:
        """The bytes of a token at the start, before an anchor."""
        return self._without(self.engine.text([id, self.anchor], skip_special=True), "", id)

    def byte(self, id: int) -> bytes | None:
        """The non-ASCII byte of a byte token: part of a character, which cannot be decoded by
        itself."""
        piece = self.engine.piece(id) or ""
        spelled = self.has_bytes and SPELLED_BYTE.fullmatch(piece)
        return bytes([int(piece[3:5], 16)]) if spelled and int(piece[3:5], 16) >= 0x80 else None

    def _without(self, text: str, front: str, id: int) -> bytes:
        """The text without the anchors around it."""
        middle = text[len(front) : len(text) - len(self.later)]
        incomplete = REPLACEMENT in middle and REPLACEMENT not in (self.engine.piece(id) or "")
        if incomplete or text != front + middle + self.later:
            raise _depends_on_context(self.engine, id)
        return middle.encode()


def _find_anchor(engine: Engine, ids: Sequence[int]) -> _Anchor:
    """The first token that writes a word of letters."""
    for id in ids:
        text = engine.text([id], skip_special=True)
        if text.isalpha():
            later = engine.text([id, id], skip_special=True)[len(text) :]
            letter = engine.id("<0x41>")
            has_bytes = (
                letter is not None and engine.text([id, letter], skip_special=True) == f"{text}A"
            )
            return _Anchor(engine, id, text, later, has_bytes)
    raise InputError(
        "a tokenizer without any word",
        expected="tokens that write text",
        fix="generate without a constraint",
    )


def _verify(engine: Engine, ids: Sequence[int], table: TokenByteTable) -> None:
    """Random sequences of tokens must decode to their bytes; Marian strips white space around a
    text."""
    generator = random.Random(0)
    stripped = None if isinstance(engine, MarianEngine) else ""
    for _ in range(TRIALS):
        sequence = generator.choices(ids, k=TRIAL_LENGTH)
        try:
            text = table.join(sequence).decode()
        except UnicodeDecodeError:
            continue
        if engine.text(sequence, skip_special=True).strip(stripped) != text.strip(stripped):
            raise _depends_on_context(engine, sequence[0])


def _depends_on_context(engine: Engine, id: int) -> InputError:
    return InputError(
        f"what the token {engine.piece(id)!r} writes depends on its neighbours",
        expected="a tokenizer whose tokens write the same bytes everywhere",
        fix="generate without a constraint",
    )
