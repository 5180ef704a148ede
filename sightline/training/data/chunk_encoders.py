"""What makes tokens of a long text, part after part, as if it had been given whole.

    encode(a ++ b) = encode(a) ++ encode(b)        where b begins with the space after a word

That holds for tokenizers that keep a space with the word behind it. Those that put a space before
every text (SentencePiece) want b without its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from sightline.checkpoints.tokenizer_files import NAMES, tokenizer_files, tokenizer_of
from sightline.errors import InputError
from sightline.terminal.progress import Report, silent
from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import END, PAD, SPECIAL, train_tokenizer
from sightline.text.training.words import UNKNOWN, character_tokenizer, tokenizer_config

FILES = tuple(name for name in NAMES if name != "generation_config.json")
LOOK_BACK = 4096  # characters from the end in which a place to cut is looked for


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer at work. `end` follows each document; `drops` says that a later part loses its
    first space."""

    kind: str
    files: dict[str, bytes]
    vocab_size: int
    end: int | None
    encode: Callable[[str], Sequence[int] | NDArray[Any]]
    drops: bool = False

    def part(self, text: str, *, first: bool) -> Sequence[int] | NDArray[Any]:
        """The tokens of a part; `first` of its document, or a later one."""
        return self.encode(text[1:] if self.drops and not first and text.startswith(" ") else text)

    @property
    def sha256(self) -> str:
        """Of the tokenizer's files."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(f"{name} {len(self.files[name])} ".encode() + self.files[name])
        return digest.hexdigest()


def cut(text: str, keep: int = 0) -> tuple[str, str]:
    """Cut before the last space behind a letter or digit, else before a line's end behind one, else
    anywhere; the rest has at least `keep` characters, so that what began there can still be found.
    """
    last = max(0, len(text) - keep)
    for sign in (" ", "\n"):
        at = last
        while (at := text.rfind(sign, max(1, last - LOOK_BACK), at)) > 0:
            if text[at - 1].isalnum():
                return text[:at], text[at:]
    return text[:last], text[last:]


def of_characters(parts: Iterable[str]) -> Encoder:
    """One token for each character. The table is looked up by NumPy, which is a hundred times
    faster than the library."""
    made = character_tokenizer(parts)
    ids = {ord(sign): id for sign, id in made.get_vocab().items() if len(sign) == 1}
    table = np.full(max(ids) + 2, ids[ord(UNKNOWN)], dtype=np.uint32)
    table[list(ids)] = list(ids.values())

    def encode(text: str) -> NDArray[Any]:
        points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4")
        return table[np.minimum(points, len(table) - 1)]

    files = _files(made, tokenizer_config(END, END, unknown=UNKNOWN))
    return Encoder("characters", files, made.get_vocab_size(), made.token_to_id(END), encode)


def of_bpe(texts: Sequence[Path], vocab_size: int, progress: Report = silent) -> Encoder:
    """Byte-level BPE, learned from these files."""
    made = train_tokenizer(texts, vocab_size=vocab_size, progress=progress)
    tokenizer = Tokenizer(RustEngine(Path("tokenizer.json"), made))
    return Encoder(
        "bpe",
        _files(made, tokenizer_config(END, END, PAD, more=SPECIAL[2:])),
        vocab_size,
        made.token_to_id(END),
        tokenizer.encode,
    )


def of_model(reference: str) -> Encoder:
    """The tokenizer of a folder, or of a model without its weights."""
    if Path(reference).is_dir():
        found = Tokenizer.from_folder(reference)
        files = {
            name: (Path(reference) / name).read_bytes()
            for name in FILES
            if (Path(reference) / name).is_file()
        }
    else:
        from sightline.checkpoints.open import open_source
        from sightline.checkpoints.sources.reference import resolve

        source = open_source(resolve(reference))
        found = tokenizer_of(source)
        files = {
            name: data for name, data in tokenizer_files(source, found).items() if name in FILES
        }
    if found is None:
        raise InputError(
            f"{reference[:100]}: has no tokenizer",
            expected="characters, bpe, or a folder with a tokenizer.json",
        )
    joined = found.encode("one two")
    kept = found.encode(" two")
    dropped = found.encode("two")
    drops = found.encode("one") + kept != joined and found.encode("one") + dropped == joined
    return Encoder("given", files, found.vocab_size, found.eos, found.encode, drops)


def _files(made: tokenizers.Tokenizer, config: bytes) -> dict[str, bytes]:
    return {"tokenizer.json": made.to_str(pretty=True).encode(), "tokenizer_config.json": config}
