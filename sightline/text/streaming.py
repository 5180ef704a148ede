"""Text while it is being written: whole characters only, never the prompt's, and never a stop
string.

    stream, stops = TextStream(tokenizer, prompt_ids), StopStrings(["\\nUser:"])
    for id in new_ids:
        shown, met = stops.push(stream.push(id))

The pieces of a TextStream joined are `tokenizer.decode(new_ids)`, to the character. Each token
costs the same however long the text is: where a token always writes the same bytes they go through
one incremental UTF-8 decoder; where it depends on its neighbours, only the tokens since the last
settled one are decoded.
"""

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
MOST_STOPS = 16
LONGEST_STOP = 1000

Write = Callable[[int], bytes]


class TextStream:
    """Tokens in, text out as soon as it is certain."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, keep_space: bool = False
    ) -> None:
        """`keep_space` keeps the space between prompt and text, which SentencePiece's decoding
        takes for its own and drops."""
        self._tokenizer = tokenizer
        before = [id for id in prompt_ids if self._is_text(id)] if keep_space else []
        write = bytes_writer(tokenizer.engine)
        self._text = (
            _Tail(tokenizer.engine, before)
            if write is None
            else _Bytes(tokenizer.engine, write, going_on=bool(before))
        )

    def push(self, id: int) -> str:
        """The text that is certain now that this token has come; often one token late."""
        return self._text.push(int(id)) if self._is_text(int(id)) else ""

    def finish(self) -> str:
        """The rest; a character that never became whole is U+FFFD."""
        return self._text.finish()

    def _is_text(self, id: int) -> bool:
        """Control tokens and ids beyond the vocabulary write nothing, as in `Tokenizer.decode`."""
        return 0 <= id < self._tokenizer.vocab_size and id not in self._tokenizer.special_ids


class _Bytes:
    """For tokenizers whose every token writes the same bytes wherever it stands."""

    def __init__(self, engine: Engine, write: Write, *, going_on: bool) -> None:
        self._engine = engine
        self._write = write
        self._drops_space = (
            not going_on
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
        """What is left of a character."""
        return self._characters.decode(b"", final=True)


class _Tail:
    """For tokenizers whose tokens depend on their neighbours: WordPiece, byte fallback in a
    tokenizer.json, Marian.

    `_ids` are the last settled token (the context) and those after it; `_shown` characters of their
    text have been given out.
    """

    def __init__(self, engine: Engine, before: Sequence[int]) -> None:
        self._engine = engine
        settled = next((id for id in reversed(before) if self._settles(id)), None)
        self._ids = [] if settled is None else [settled]
        self._shown = len(self._decoded())

    def push(self, id: int) -> str:
        """The new text, unless what follows may still change it."""
        self._ids.append(id)
        size = len(self._ids)
        if self._is_byte(id) or (size > SHORT_TAIL and size & (size - 1) and not self._settles(id)):
            return ""
        new = self._new(self._decoded())
        if self._settles(id):
            self._ids = [id]
            self._shown = len(self._decoded())
        return new

    def finish(self) -> str:
        """What was held back."""
        return self._new(self._decoded())

    def _new(self, text: str) -> str:
        """What was not given out yet."""
        new = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return new

    def _decoded(self) -> str:
        """The text of the tail."""
        return self._engine.text(self._ids, skip_special=True) if self._ids else ""

    def _settles(self, id: int) -> bool:
        """Whether a token is enough of a context for the next one: it shows something, and is no
        part of a character."""
        text = "" if self._is_byte(id) else self._engine.text([id], skip_special=True)
        return bool(text.strip()) and REPLACEMENT not in text

    def _is_byte(self, id: int) -> bool:
        """A run of byte tokens is all characters or all U+FFFD: nothing is certain before it
        ends."""
        return SPELLED_BYTE.fullmatch(self._engine.piece(id) or "") is not None


def bytes_writer(engine: Engine) -> Write | None:
    """What one token writes wherever it stands, or None if that depends on its neighbours."""
    if isinstance(engine, CharacterEngine):
        return lambda id: engine.text([id], skip_special=True).encode()
    if isinstance(engine, SentencePieceEngine):
        return _sentencepiece_writer(engine)
    if isinstance(engine, RustEngine) and str(engine.tokenizer.decoder).startswith("ByteLevel("):
        return _byte_level_writer(engine)
    return None


def _sentencepiece_writer(engine: SentencePieceEngine) -> Write:
    """A byte, the unknown piece's sign, or the piece with its spaces."""
    vocabulary = engine.vocabulary()

    def write(id: int) -> bytes:
        piece = vocabulary.pieces[id]
        kind = vocabulary.kind_of(id)
        if kind == BYTE and len(piece) == 6:
            return bytes([int(piece[3:5], 16)])
        return (UNKNOWN_TEXT if kind == UNKNOWN else piece.replace(SPACE, " ")).encode()

    return write


def _byte_level_writer(engine: RustEngine) -> Write:
    """GPT-2's letters back to bytes; a piece with another letter in it (an added token) stands for
    itself."""
    letters = byte_alphabet()

    def write(id: int) -> bytes:
        piece = engine.piece(id) or ""
        if all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        return piece.encode()

    return write


class StopStrings:
    """Text in, text that may be shown out: up to the stop string that is complete first, and
    nothing that may become one.

    Of several that are complete at the same character the longest counts, so the result does not
    depend on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = checked(stops)
        self._fallbacks = [fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._met = False

    def push(self, text: str) -> tuple[str, bool]:
        """What may be shown, and whether a stop string was met; after one, nothing more is
        shown."""
        if self._met:
            return "", True
        for place, sign in enumerate(text):
            length = self._advance(sign)
            if length:
                whole = self._held + text[: place + 1]
                self._held = ""
                self._met = True
                return whole[:-length], True
        whole = self._held + text
        safe = len(whole) - max(self._matched, default=0)
        self._held = whole[safe:]
        return whole[:safe], False

    def finish(self) -> str:
        """What was held back and became no stop string."""
        held = self._held
        self._held = ""
        return held

    def _advance(self, sign: str) -> int:
        """One character on, in every stop string; the length of the longest that is now complete,
        or 0."""
        complete = 0
        for number, (stop, back) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            matched = self._matched[number]
            while matched and stop[matched] != sign:
                matched = back[matched]
            matched += stop[matched] == sign
            self._matched[number] = matched
            if matched == len(stop):
                complete = max(complete, matched)
        return complete


def checked(stops: Sequence[str]) -> list[str]:
    """The stop strings, or one line about why not."""
    if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
        raise InputError("the stop strings are no list of texts", fix='stops=["\\n\\n"]')
    if len(stops) > MOST_STOPS:
        raise InputError(f"{len(stops)} stop strings", expected=f"at most {MOST_STOPS}")
    if "" in stops:
        raise InputError(
            "a stop string is empty", expected="at least one character", fix="leave it out"
        )
    longest = max(map(len, stops), default=0)
    if longest > LONGEST_STOP:
        raise InputError(
            f"a stop string of {longest:,} characters", expected=f"at most {LONGEST_STOP:,}"
        )
    return list(stops)


def fallbacks(stop: str) -> list[int]:
    """For each number of matched characters, how many still match one place later (Knuth, Morris,
    Pratt 1977)."""
    back = [0, 0]
    for sign in stop[1:]:
        matched = back[-1]
        while matched and stop[matched] != sign:
            matched = back[matched]
        back.append(matched + (stop[matched] == sign))
    return back
