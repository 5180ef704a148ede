"""An Engine over the Rust `tokenizers` library: byte-level BPE, WordPiece, Unigram, any
tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from sightline.text.engines.engine import Span, call_native
from sightline.text.vocabulary.patterns import LAST_SPACES, check_spaces
from sightline.text.vocabulary.rust import vocabulary_from_json, without_names
from sightline.text.vocabulary.vocabulary import Vocabulary

SPACE = "▁"


def byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others are numbered from
    U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


def drop_first_space(step: Any) -> None:
    """Set every Metaspace of a pre-tokenizer's JSON that prepends to the first word to "never"."""
    if step.get("prepend_scheme") == "first":
        step["prepend_scheme"] = "never"
    for inner in step.get("pretokenizers", ()):
        drop_first_space(inner)


class RustEngine:
    """An engine over `tokenizers.Tokenizer`. Special pieces that a user types stay plain text."""

    def __init__(self, where: Path, tokenizer: tokenizers.Tokenizer) -> None:
        self._where = where
        self.tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        added = tokenizer.get_added_tokens_decoder()
        self.specials = frozenset(id for id, token in added.items() if token.special)
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._added = frozenset(added)
        self._is_byte_level = "ByteLevel" in str(tokenizer.decoder)
        self._letters = byte_alphabet() if self._is_byte_level else {}
        steps = (tokenizer.pre_tokenizer, tokenizer.normalizer)
        # As JSON: their repr panics where it cuts a long pattern within a character.
        self._spaces_limited = any(
            json.dumps(LAST_SPACES).encode() in step.__getstate__()
            for step in steps
            if step is not None
        )
        pre_tokenizer = tokenizer.pre_tokenizer
        self._prefixes_first = (
            pre_tokenizer is not None
            and b'"prepend_scheme":"first"' in pre_tokenizer.__getstate__()
        )

    @cached_property
    def _with_control(self) -> tokenizers.Tokenizer:
        """A copy that encodes special pieces in the text as control tokens; made on first use."""
        copy = tokenizers.Tokenizer.from_str(self.tokenizer.to_str())
        copy.encode_special_tokens = False
        return copy

    @cached_property
    def _without_control(self) -> tokenizers.Tokenizer:
        """A copy in which no text matches a special piece; made when text first gives a special
        id."""
        names = {piece for id in self.specials if (piece := self.piece(id)) is not None}
        copy = tokenizers.Tokenizer.from_str(
            json.dumps(without_names(json.loads(self.tokenizer.to_str()), names))
        )
        copy.encode_special_tokens = True
        return copy

    @cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        """A copy without special pieces that puts no space before a text's first word."""
        names = {piece for id in self.specials if (piece := self.piece(id)) is not None}
        tokenizer_json = without_names(json.loads(self.tokenizer.to_str()), names)
        drop_first_space(tokenizer_json["pre_tokenizer"])
        copy = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json))
        copy.encode_special_tokens = True
        return copy

    def continuation_ids(self, text: str) -> list[int]:
        """The ids of a text that follows a special token. They differ from `ids` where only the
        first word of the whole text gets a space (Metaspace's prepend_scheme "first")."""
        if not self._prefixes_first:
            return self.ids(text, control=False)
        self._check(text)
        return call_native(
            self._where,
            "encode",
            lambda: self._continuing.encode(text, add_special_tokens=False).ids,
        )

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See Engine."""
        return self._around

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the post-processor adds around a short text."""
        probes = (
            "a",
            *(self.readable(id) for id in range(min(self.size, 300)) if id not in self.specials),
        )
        probe = next((text for text in probes if self._ids(text, special=False)), "")
        bare = tuple(self._ids(probe, special=False))
        whole = tuple(self._ids(probe, special=True))
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        return (), ()

    def _ids(self, text: str, *, special: bool) -> list[int]:
        """The Rust call."""
        return call_native(
            self._where,
            "encode",
            lambda: self.tokenizer.encode(text, add_special_tokens=special).ids,
        )

    def ids(self, text: str, *, control: bool) -> list[int]:
        """See Engine."""
        if not control:
            return self._encode_text(text).ids
        self._check(text)
        return call_native(
            self._where,
            "encode",
            lambda: self._with_control.encode(text, add_special_tokens=False).ids,
        )

    def spans(self, text: str) -> list[Span]:
        """See Engine."""
        return self._encode_text(text).offsets

    def _encode_text(self, text: str) -> tokenizers.Encoding:
        """Encode without control tokens, even if the model lists them among its pieces (T5,
        mBART)."""
        self._check(text)
        encoding = call_native(
            self._where, "encode", lambda: self.tokenizer.encode(text, add_special_tokens=False)
        )
        if self.specials.isdisjoint(encoding.ids):
            return encoding
        return call_native(
            self._where,
            "encode",
            lambda: self._without_control.encode(text, add_special_tokens=False),
        )

    def _check(self, text: str) -> None:
        if self._spaces_limited:
            check_spaces(self._where, text)

    def text(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """See Engine."""
        return call_native(
            self._where,
            "decode",
            lambda: self.tokenizer.decode(list(ids), skip_special_tokens=skip_special),
        )

    def piece(self, id: int) -> str | None:
        """See Engine."""
        return self.tokenizer.id_to_token(id) if id >= 0 else None

    def id(self, piece: str) -> int | None:
        """See Engine."""
        return self.tokenizer.token_to_id(piece)

    def readable(self, id: int, *, source: bool = False) -> str:
        """See Engine."""
        piece = self.piece(id) or ""
        if id in self._added:
            return piece
        if self._is_byte_level and all(letter in self._letters for letter in piece):
            return bytes(self._letters[letter] for letter in piece).decode(
                "utf-8", errors="backslashreplace"
            )
        return piece.replace(SPACE, " ")

    def vocabulary(self) -> Vocabulary:
        """See Engine."""
        return vocabulary_from_json(self._where, json.loads(self.tokenizer.to_str()), self.around)
