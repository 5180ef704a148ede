"""A tokenizer whose tokens are single letters."""

from __future__ import annotations

from pathlib import Path

from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.vocabulary import CONTROL, NORMAL, Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyzäß猫🙂., !?;"


def tokenizer(*, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> Tokenizer:
    """Forty pieces: three special ones and characters."""
    pieces = ["<pad>", "<s>", "</s>", *LETTERS][:40]
    kinds = [CONTROL] * 3 + [NORMAL] * (len(pieces) - 3)
    vocabulary = Vocabulary(
        where=Path("letters"),
        kind="characters",
        pieces=pieces,
        kinds=kinds,
        bos=1,
        eos=2,
        before=before,
        after=after,
    )
    return Tokenizer.from_vocabulary(vocabulary)
