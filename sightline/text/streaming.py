"""Streaming decoding: text in complete characters, without the prompt and without stop strings.

    stream, stops = TextStream(tokenizer, prompt_ids), StopStrings(["\\nUser:"])
    for id in new_ids:
        text, stopped = stops.push(stream.push(id))

The pieces of a TextStream concatenated are exactly `tokenizer.decode(new_ids)`. The cost per token
does not depend on the length of the text: where a token always writes the same bytes, they go
through one incremental UTF-8 decoder; where they depend on its neighbours, only the tokens since
the last settled one are decoded."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence

from sightline.errors import InputError
from sightline.text.engines.characters import CharacterEngine
from sightline.text.engines.engine import Engine
from sightline.text.engines.rust import RustEngine, byte_alphabet
from sightline.text.engines.sentencepiece import UNKNOWN_TEXT, SentencePieceEngine
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.vocabulary import BYTE, UNKNOWN

SPACE = "▁"
REPLACEMENT = "\ufffd"
SPELLED_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SHORT_TAIL = 8  # tokens; a longer unsettled tail is decoded each time its length has doubled
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000

Write = Callable[[int], bytes]


class TextStream:
    """Tokens in, text out as soon as later tokens cannot change it."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, keep_space: bool = False
    ) -> None:
        """`keep_space` keeps the space between prompt and text, which SentencePiece's decoding
        would drop."""
        self._tokenizer = tokenizer
        before = [id for id in prompt_ids if self._is_text(id)] if keep_space else []
        write = bytes_writer(tokenizer.engine)
        self._text = (
            _ContextualText(tokenizer.engine, before)
            if write is None
            else _ByteText(tokenizer.engine, write, continues=bool(before))
        )

    def push(self, id: int) -> str:
        """The text that is settled by this token; often one token late."""
        return self._text.push(int(id)) if self._is_text(int(id)) else ""

    def finish(self) -> str:
        """The rest; an incomplete character is U+FFFD."""
        return self._text.finish()

    def _is_text(self, id: int) -> bool:
        """Control tokens and ids beyond the vocabulary write nothing, as in `Tokenizer.decode`."""
        return 0 <= id < self._tokenizer.vocab_size and id not in self._tokenizer.special_ids


class _ByteText:
    """For tokenizers whose tokens write the same bytes in every context."""

    def __init__(self, engine: Engine, write: Write, *, continues: bool) -> None:
        self._engine = engine
        self._write = write
        self._drops_space = (
            not continues
            and isinstance(engine, SentencePieceEngine)
            and engine.vocabulary().prefix_space
        )
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The characters that this token's bytes complete."""
        written = self._write(id)
        if self._drops_space and (self._engine.piece(id) or "").startswith(SPACE):
            written = written[1:]
        self._drops_space = False
        return self._characters.decode(written)

    def finish(self) -> str:
        """The rest of an incomplete character, as U+FFFD."""
        return self._characters.decode(b"", final=True)


class _ContextualText:
    """For tokenizers whose tokens depend on their neighbours: WordPiece, byte fallback in a
    tokenizer.json, Marian.

    `_ids` are the last settled token (the context) and those after it; `_emitted` characters of
    their text have been returned."""

    def __init__(self, engine: Engine, before: Sequence[int]) -> None:
        self._engine = engine
        settled = next((id for id in reversed(before) if self._settles(id)), None)
        self._ids = [] if settled is None else [settled]
        self._emitted = len(self._decode_tail())

    def push(self, id: int) -> str:
        """The new text, unless later tokens may still change it."""
        self._ids.append(id)
        size = len(self._ids)
        if self._is_byte(id) or (size > SHORT_TAIL and size & (size - 1) and not self._settles(id)):
            return ""
        new = self._new(self._decode_tail())
        if self._settles(id):
            self._ids = [id]
            self._emitted = len(self._decode_tail())
        return new

    def finish(self) -> str:
        """The text that was held back."""
        return self._new(self._decode_tail())

    def _new(self, text: str) -> str:
        """The text that was not returned yet."""
        new = text[self._emitted :]
        self._emitted = max(self._emitted, len(text))
        return new

    def _decode_tail(self) -> str:
        """The text of the tail."""
        return self._engine.text(self._ids, skip_special=True) if self._ids else ""

    def _settles(self, id: int) -> bool:
        """Whether a token is enough context for the next one: it writes visible, complete
        characters."""
        text = "" if self._is_byte(id) else self._engine.text([id], skip_special=True)
        return bool(text.strip()) and REPLACEMENT not in text

    def _is_byte(self, id: int) -> bool:
        """A run of byte tokens is all characters or all U+FFFD, so nothing is settled before it
        ends."""
        return SPELLED_BYTE.fullmatch(self._engine.piece(id) or "") is not None


def bytes_writer(engine: Engine) -> Write | None:
    """A function from a token to its bytes, or None if they depend on its neighbours."""
    if isinstance(engine, CharacterEngine):
        return lambda id: engine.text([id], skip_special=True).encode()
    if isinstance(engine, SentencePieceEngine):
        return _sentencepiece_writer(engine)
    if isinstance(engine, RustEngine) and str(engine.tokenizer.decoder).startswith("ByteLevel("):
        return _byte_level_writer(engine)
    return None


def _sentencepiece_writer(engine: SentencePieceEngine) -> Write:
    """A byte, the text of the unknown piece, or the piece with its spaces."""
    vocabulary = engine.vocabulary()

    def write(id: int) -> bytes:
        piece = vocabulary.pieces[id]
        kind = vocabulary.kind_of(id)
        if kind == BYTE and len(piece) == 6:
            return bytes([int(piece[3:5], 16)])
        return (UNKNOWN_TEXT if kind == UNKNOWN else piece.replace(SPACE, " ")).encode()

    return write


def _byte_level_writer(engine: RustEngine) -> Write:
    """GPT-2's letters back to bytes; a piece with other letters (an added token) is its own
    text."""
    letters = byte_alphabet()

    def write(id: int) -> bytes:
        piece = engine.piece(id) or ""
        if all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        return piece.encode()

    return write


class StopStrings:
    """Text in, text out up to the first complete stop string; a possible prefix of one is held
    back.

    Of several that end at the same character the longest counts, so the result does not depend on
    how the text was split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = check_stops(stops)
        self._fallbacks = [fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._pending = ""
        self._is_stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text before a stop string, and whether there was one; after it, no more text
        comes."""
        if self._is_stopped:
            return "", True
        for place, character in enumerate(text):
            length = self._advance(character)
            if length:
                whole = self._pending + text[: place + 1]
                self._pending = ""
                self._is_stopped = True
                return whole[:-length], True
        whole = self._pending + text
        safe = len(whole) - max(self._matched, default=0)
        self._pending = whole[safe:]
        return whole[:safe], False

    def finish(self) -> str:
        """The text that was held back."""
        rest = self._pending
        self._pending = ""
        return rest

    def _advance(self, character: str) -> int:
        """Match one more character; the length of the longest stop string that it completes, or
        0."""
        complete = 0
        for number, (stop, back) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = back[matched]
            matched += stop[matched] == character
            self._matched[number] = matched
            if matched == len(stop):
                complete = max(complete, matched)
        return complete


def check_stops(stops: Sequence[str]) -> list[str]:
    """The stop strings, checked."""
    if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
        raise InputError("the stop strings are not a list of texts", fix='stops=["\\n\\n"]')
    if len(stops) > MAX_STOPS:
        raise InputError(f"{len(stops)} stop strings", expected=f"at most {MAX_STOPS}")
    if "" in stops:
        raise InputError(
            "a stop string is empty", expected="at least one character", fix="leave it out"
        )
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_LENGTH:
        raise InputError(
            f"a stop string of {longest:,} characters", expected=f"at most {MAX_STOP_LENGTH:,}"
        )
    return list(stops)


def fallbacks(stop: str) -> list[int]:
    """For each number of matched characters, how many still match one place later (Knuth, Morris,
    Pratt 1977)."""
    back = [0, 0]
    for character in stop[1:]:
        matched = back[-1]
        while matched and stop[matched] != character:
            matched = back[matched]
        back.append(matched + (stop[matched] == character))
    return back
