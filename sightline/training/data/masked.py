"""Masked language modelling over windows of a text: predict the tokens at randomly selected
positions.

    of the selected units   80 % become the mask token   10 % a random token   10 % stay unchanged

A unit is a token, a whole word, or a span of geometric length (SpanBERT: p = 0.2, at most 10).
The random numbers of a window depend on the seed and on the sample's index in the whole run: each
epoch masks other tokens, and a resumed run masks the same ones.

Training may mask any share of the positions. Held-out text is always masked at 15 %, so that losses
of runs with different shares are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import ConfigError, InputError, nearest
from sightline.text.tokenizer import Tokenizer
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.data.order import random
from sightline.training.data.packed import PackedText

Unit = Literal["token", "word", "span"]
UNITS = ("token", "word", "span")
SHARE = 0.15
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1
SPAN_STOP = 0.2
LONGEST_SPAN = 10
TRAINING = 4  # random streams: see `order.random`
HELD_OUT = 5


@dataclass(slots=True)
class MaskedText:
    """`text` provides the windows, `mask` is the mask token's id, `special` the ids that are never
    masked and never used as random tokens. `begins` tells for each id whether it begins a word;
    only `unit="word"` needs it."""

    text: PackedText
    mask: int
    vocab_size: int
    special: frozenset[int] = frozenset()
    unit: Unit = "token"
    begins: NDArray[np.bool_] | None = None
    share: float = SHARE
    _plain: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"masking by {self.unit!r}", fix=nearest(self.unit, UNITS))
        if not 0 < self.share < 1:
            raise ConfigError(
                f"{self.share:g} of the positions masked",
                expected="a number between 0 and 1",
                fix="share=0.15",
            )
        if not 0 <= self.mask < self.vocab_size:
            raise InputError(f"mask token {self.mask}", expected=f"an id below {self.vocab_size}")
        if self.unit == "word" and (self.begins is None or len(self.begins) != self.vocab_size):
            raise InputError(
                "unit='word' without a table of the tokens that begin a word",
                expected="begins=word_starts(tokenizer, vocab_size)",
            )
        excluded = self.special | {self.mask}
        self._plain = np.array(
            [id for id in range(self.vocab_size) if id not in excluded], dtype=np.int64
        )
        if not len(self._plain):
            raise InputError("a vocabulary of special tokens only", expected="some text tokens")

    @property
    def fingerprint(self) -> str:
        begins = "" if self.begins is None else np.packbits(self.begins).tobytes().hex()
        return (
            f"{self.text.fingerprint} masked {self.unit} {self.share} {self.mask}"
            f" {sorted(self.special)} {begins}"
        )

    @property
    def epoch_batches(self) -> int:
        return self.text.epoch_batches

    def batch(self, step: int) -> Batch:
        return self._hide(self.text.batch(step), self.share, TRAINING, step * self.text.rows)

    def validation(self) -> Iterator[Batch]:
        first = 0
        for batch in self.text.validation():
            yield self._hide(batch, SHARE, HELD_OUT, first)
            first += batch.rows

    def _hide(self, batch: Batch, share: float, stream: int, first: int) -> Batch:
        """Mask a batch. Row n uses the random numbers of (seed, stream, first + n)."""
        tokens = batch.tokens.clone()
        targets = torch.full_like(batch.tokens, IGNORED)
        for n, row in enumerate(batch.tokens.numpy()):
            rng = random(self.text.seed, stream, first + n)
            for unit in select_units(self.units(row, rng), self.budget(row, share), rng):
                targets[n, unit] = batch.tokens[n, unit]
                draw = rng.random()
                if draw < MASK_SHARE:
                    tokens[n, unit] = self.mask
                elif draw < MASK_SHARE + RANDOM_SHARE:
                    tokens[n, unit] = torch.from_numpy(
                        self._plain[rng.integers(len(self._plain), size=len(unit))]
                    )
        return replace(
            batch, tokens=tokens, targets=targets, count=max(1, int((targets != IGNORED).sum()))
        )

    def maskable(self, row: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~np.isin(row, [self.mask, *self.special])

    def budget(self, row: NDArray[np.int64], share: float) -> int:
        """How many positions of a row to mask: this share of the maskable ones, at least one."""
        available = int(self.maskable(row).sum())
        return min(available, max(1, round(share * available)))

    def units(
        self, row: NDArray[np.int64], rng: np.random.Generator
    ) -> Sequence[NDArray[np.int64]]:
        """The units that are masked together: the positions of each token, word or span."""
        maskable = self.maskable(row)
        if self.unit == "token":
            return list(np.flatnonzero(maskable)[:, None])
        if self.unit == "word":
            assert self.begins is not None
            starts = self.begins[row] | ~maskable
        else:
            starts = span_starts(len(row), rng) | ~maskable
        starts |= np.concatenate(([True], ~maskable[:-1]))  # a unit starts after a special token
        return [
            part[maskable[part]]
            for part in np.split(np.arange(len(row)), np.flatnonzero(starts))
            if maskable[part].any()
        ]


def span_starts(length: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Where spans start: their lengths are geometric, at most LONGEST_SPAN."""
    starts = np.zeros(length, dtype=np.bool_)
    at = -int(rng.integers(LONGEST_SPAN))
    while at < length:
        if at >= 0:
            starts[at] = True
        at += min(LONGEST_SPAN, int(rng.geometric(SPAN_STOP)))
    return starts


def select_units(
    units: Sequence[NDArray[np.int64]], budget: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Units in random order, at most `budget` positions. Units that do not fit are skipped; if none
    fits, the first is truncated."""
    count = 0
    for n in rng.permutation(len(units)):
        unit = units[n]
        if count + len(unit) <= budget:
            count += len(unit)
            yield unit
    if not count and len(units):
        yield units[0][:budget]


def word_starts(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.bool_]:
    """For each id, whether it begins a word: its piece does not start with `##` (WordPiece), or
    does not start with a letter or digit (all others)."""
    pieces = [
        tokenizer.engine.piece(id) or "" for id in range(min(vocab_size, tokenizer.vocab_size))
    ]
    is_word_piece = any(piece.startswith("##") and len(piece) > 2 for piece in pieces)
    begins = np.ones(vocab_size, dtype=np.bool_)
    for id, piece in enumerate(pieces):
        if is_word_piece:
            begins[id] = not piece.startswith("##")
        elif id not in tokenizer.special_ids:
            begins[id] = not tokenizer.token(id)[:1].isalnum()
    return begins
