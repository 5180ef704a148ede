"""Texts with labels, for classification: batches bucketed by length, one label a row.

    text,label                       {"text": "What a film!", "label": "good"}
    "What a film!",good              {"text": "Too long.", "label": "bad"}

Labels are numbered in the order of their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.text.rows import read_rows
from sightline.training.data.batch import Batch, padded
from sightline.training.data.bucketed import Buckets, by_length

SHAPE = '{"text": …, "label": …}'
TOGETHER = 64  # rows of a validation batch


@dataclass(frozen=True, slots=True)
class Examples:
    """Texts, each with its label."""

    texts: list[str]
    labels: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def names(self) -> list[str]:
        """Each label once, in order: numbers by their value, words by their letters."""
        found = set(self.labels)
        return sorted(
            found, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)
        )

    def parted(self, every: int) -> tuple[Examples, Examples]:
        """Those that are learned, and every so-many-th, which is held out."""
        held = [n for n in range(len(self)) if n % every == every - 1]
        rest = [n for n in range(len(self)) if n % every != every - 1]
        return self.only(rest), self.only(held)

    def only(self, which: Sequence[int]) -> Examples:
        return Examples([self.texts[n] for n in which], [self.labels[n] for n in which])


def read_labelled(path: Path) -> Examples:
    """A .csv or .jsonl file with the columns text and label; a row that lacks one is named by its
    line."""
    found = Examples([], [])
    for line, row in read_rows(path, shape=SHAPE):
        text = row.get("text")
        label = plain_label(row.get("label"))
        if not isinstance(text, str) or not text.strip() or label is None:
            lacks = "no text" if not isinstance(text, str) or not text.strip() else "no label"
            raise InputError(
                f"{path}, line {line}: {lacks}",
                expected="text and label in every row",
                fix="correct the line",
            )
        found.texts.append(text)
        found.labels.append(label)
    if len(found.names) < 2:
        raise InputError(
            f"{path}: every label is {found.names[0]!r}", expected="two labels or more"
        )
    return found


def plain_label(value: Any) -> str | None:
    """A word or a whole number, as a word."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value).strip() or None


@dataclass(slots=True)
class Labelled:
    """Token ids of the texts, with what the model expects around them, and the number of each one's
    label. `tokens` is the size of a batch; what is longer than `longest` is cut behind."""

    rows: Sequence[Sequence[int]]
    labels: Sequence[int]
    pad: int
    tokens: int
    seed: int
    held_out: tuple[Sequence[Sequence[int]], Sequence[int]] = ((), ())
    longest: int = 512
    _buckets: Buckets = field(init=False)

    def __post_init__(self) -> None:
        sizes = np.array([min(len(row), self.longest) for row in self.rows], dtype=np.int64)
        kept = np.flatnonzero(sizes > 0)
        if not len(kept):
            raise InputError("no text with any tokens", expected="texts with labels")
        self._buckets = Buckets(sizes, kept, self.tokens, self.seed)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(
            f"labelled {self.tokens} {self.seed} {self.pad} {self.longest}".encode()
        )
        for row, label in zip(self.rows, self.labels, strict=True):
            digest.update(np.array([label, len(row), *row], dtype=np.int32).tobytes())
        return digest.hexdigest()

    @property
    def epoch_batches(self) -> int:
        return self._buckets.epoch_batches

    def batch(self, step: int) -> Batch:
        return self._batch(self.rows, self.labels, self._buckets.batch(step))

    def validation(self) -> Iterator[Batch]:
        rows, labels = self.held_out
        for which in by_length(np.array([len(row) for row in rows], dtype=np.int64), TOGETHER):
            yield self._batch(rows, labels, which)

    def _batch(
        self, rows: Sequence[Sequence[int]], labels: Sequence[int], which: NDArray[np.int64]
    ) -> Batch:
        tokens, padding = padded([rows[n][: self.longest] or [self.pad] for n in which], self.pad)
        return Batch(
            tokens=tokens,
            targets=torch.tensor([labels[n] for n in which]),
            count=len(which),
            padding=padding,
        )
