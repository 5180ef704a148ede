"""Masked tokens over windows of a text: some of the positions are asked for, and what stands there
is hidden.

    of the chosen units    80 % become the mask token    10 % a random token    10 % stay unchanged

A unit is a token, a whole word, or a span of geometric length (SpanBERT: p = 0.2, at most 10). The
draws of a window belong to (seed, its number in the endless sequence of samples): another epoch
hides other words, and a resumed run the same ones.

Training may ask for any share of the positions; held-out text is always asked for 15 %, so that
losses of different shares compare.
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
HIDDEN = 0.8
REPLACED = 0.1
SPAN_STOP = 0.2
LONGEST_SPAN = 10
TRAINING = 4  # which random numbers: see `order.random`
HELD_OUT = 5


@dataclass(slots=True)
class MaskedText:
    """`text` cuts the windows, `mask` is the mask token, `special` the ids that are never hidden
    and never put in another's place. `begins` says of each id whether a word begins with it; only
    whole words need it."""

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
                "whole words, without knowing which tokens begin one",
                expected="begins=word_beginnings(tokenizer, vocab_size)",
            )
        never = self.special | {self.mask}
        self._plain = np.array(
            [id for id in range(self.vocab_size) if id not in never], dtype=np.int64
        )
        if not len(self._plain):
            raise InputError("a vocabulary of special tokens alone", expected="some tokens of text")

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

    def _hide(self, batch: Batch, share: float, purpose: int, first: int) -> Batch:
        """Row n draws from (seed, purpose, first + n)."""
        tokens = batch.tokens.clone()
        targets = torch.full_like(batch.tokens, IGNORED)
        for n, row in enumerate(batch.tokens.numpy()):
            chance = random(self.text.seed, purpose, first + n)
            for unit in chosen(self.units(row, chance), self.budget(row, share), chance):
                targets[n, unit] = batch.tokens[n, unit]
                fate = chance.random()
                if fate < HIDDEN:
                    tokens[n, unit] = self.mask
                elif fate < HIDDEN + REPLACED:
                    tokens[n, unit] = torch.from_numpy(
                        self._plain[chance.integers(len(self._plain), size=len(unit))]
                    )
        return replace(
            batch, tokens=tokens, targets=targets, count=max(1, int((targets != IGNORED).sum()))
        )

    def maskable(self, row: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~np.isin(row, [self.mask, *self.special])

    def budget(self, row: NDArray[np.int64], share: float) -> int:
        """How many positions of a row are asked for: this share of those that may be, and one at
        least."""
        may = int(self.maskable(row).sum())
        return min(may, max(1, round(share * may)))

    def units(
        self, row: NDArray[np.int64], chance: np.random.Generator
    ) -> Sequence[NDArray[np.int64]]:
        """What is hidden as a whole: the positions of each token, word or span."""
        may = self.maskable(row)
        if self.unit == "token":
            return list(np.flatnonzero(may)[:, None])
        if self.unit == "word":
            assert self.begins is not None
            starts = self.begins[row] | ~may
        else:
            starts = cuts(len(row), chance) | ~may
        starts |= np.concatenate(([True], ~may[:-1]))  # what follows a special token begins anew
        return [
            part[may[part]]
            for part in np.split(np.arange(len(row)), np.flatnonzero(starts))
            if may[part].any()
        ]


def cuts(length: int, chance: np.random.Generator) -> NDArray[np.bool_]:
    """Where spans begin: their lengths are geometric, and none is longer than LONGEST_SPAN."""
    starts = np.zeros(length, dtype=np.bool_)
    at = -int(chance.integers(LONGEST_SPAN))
    while at < length:
        if at >= 0:
            starts[at] = True
        at += min(LONGEST_SPAN, int(chance.geometric(SPAN_STOP)))
    return starts


def chosen(
    units: Sequence[NDArray[np.int64]], budget: int, chance: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Units in random order, as many as the budget pays for; one that is too long is passed over,
    unless nothing was chosen yet."""
    spent = 0
    for n in chance.permutation(len(units)):
        unit = units[n]
        if spent + len(unit) <= budget:
            spent += len(unit)
            yield unit
    if not spent and len(units):
        yield units[0][:budget]


def word_beginnings(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.bool_]:
    """For each id, whether a word begins with it: no `##` (WordPiece), a space or a sign before its
    letters (all others)."""
    pieces = [
        tokenizer.engine.piece(id) or "" for id in range(min(vocab_size, tokenizer.vocab_size))
    ]
    continued = any(piece.startswith("##") and len(piece) > 2 for piece in pieces)
    begins = np.ones(vocab_size, dtype=np.bool_)
    for id, piece in enumerate(pieces):
        if continued:
            begins[id] = not piece.startswith("##")
        elif id not in tokenizer.special_ids:
            begins[id] = not tokenizer.token(id)[:1].isalnum()
    return begins
