"""Tokenize a long text in chunks, with the same tokens as in one piece.

    encode(a ++ b) = encode(a) ++ encode(b)        where b begins with the space after a word

This holds for tokenizers that attach a space to the word after it. For tokenizers that prepend a
space to every text (SentencePiece), b is encoded without its leading space.
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
LOOK_BACK = 4096  # characters from the end that are searched for a place to cut


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer for documents in chunks. `end` is the token after each document;
    `drops_space`: chunks after the first are encoded without their leading space."""

    kind: str
    files: dict[str, bytes]
    vocab_size: int
    end: int | None
    encode: Callable[[str], Sequence[int] | NDArray[Any]]
    drops_space: bool = False

    def encode_chunk(self, text: str, *, first: bool) -> Sequence[int] | NDArray[Any]:
        """Encode a chunk; `first` if the document begins with it."""
        drop = self.drops_space and not first and text.startswith(" ")
        return self.encode(text[1:] if drop else text)

    @property
    def sha256(self) -> str:
        """The digest of the tokenizer's files."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(f"{name} {len(self.files[name])} ".encode() + self.files[name])
        return digest.hexdigest()


def cut(text: str, keep: int = 0) -> tuple[str, str]:
    """Cut before the last space that follows a letter or digit, else before the last such newline,
    else at the end. At least `keep` characters remain, so that a separator across two chunks is
    still found."""
    last = max(0, len(text) - keep)
    for character in (" ", "\n"):
        at = last
        while (at := text.rfind(character, max(1, last - LOOK_BACK), at)) > 0:
            if text[at - 1].isalnum():
                return text[:at], text[at:]
    return text[:last], text[last:]


def character_encoder(chunks: Iterable[str]) -> Encoder:
    """One token per character. A NumPy table lookup, a hundred times faster than the tokenizers
    library."""
    tokenizer = character_tokenizer(chunks)
    ids = {ord(piece): id for piece, id in tokenizer.get_vocab().items() if len(piece) == 1}
    table = np.full(max(ids) + 2, ids[ord(UNKNOWN)], dtype=np.uint32)
    table[list(ids)] = list(ids.values())

    def encode(text: str) -> NDArray[Any]:
        points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4")
        return table[np.minimum(points, len(table) - 1)]

    return Encoder(
        "characters",
        _files(tokenizer, tokenizer_config(END, END, unknown=UNKNOWN)),
        tokenizer.get_vocab_size(),
        tokenizer.token_to_id(END),
        encode,
    )


def bpe_encoder(texts: Sequence[Path], vocab_size: int, progress: Report = silent) -> Encoder:
    """Train a byte-level BPE tokenizer on text files."""
    trained = train_tokenizer(texts, vocab_size=vocab_size, progress=progress)
    tokenizer = Tokenizer(RustEngine(Path("tokenizer.json"), trained))
    return Encoder(
        "bpe",
        _files(trained, tokenizer_config(END, END, PAD, more=SPECIAL[2:])),
        vocab_size,
        trained.token_to_id(END),
        tokenizer.encode,
    )


def model_encoder(reference: str) -> Encoder:
    """The tokenizer of a folder or of a model; no weights are loaded."""
    if Path(reference).is_dir():
        tokenizer = Tokenizer.from_folder(reference)
        files = {
            name: (Path(reference) / name).read_bytes()
            for name in FILES
            if (Path(reference) / name).is_file()
        }
    else:
        from sightline.checkpoints.open import open_source
        from sightline.checkpoints.sources.reference import resolve

        source = open_source(resolve(reference))
        tokenizer = tokenizer_of(source)
        files = {
            name: data for name, data in tokenizer_files(source, tokenizer).items() if name in FILES
        }
    if tokenizer is None:
        raise InputError(
            f"{reference[:100]}: has no tokenizer",
            expected="characters, bpe, or a folder with a tokenizer.json",
        )
    joined = tokenizer.encode("one two")
    first = tokenizer.encode("one")
    with_space = first + tokenizer.encode(" two")
    without_space = first + tokenizer.encode("two")
    drops_space = with_space != joined and without_space == joined
    return Encoder(
        "given", files, tokenizer.vocab_size, tokenizer.eos, tokenizer.encode, drops_space
    )


def _files(tokenizer: tokenizers.Tokenizer, config: bytes) -> dict[str, bytes]:
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": config,
    }
