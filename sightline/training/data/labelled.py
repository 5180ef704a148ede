"""Labelled texts for classification: batches bucketed by length, one label per row.

    text,label                       {"text": "What a film!", "label": "good"}
    "What a film!",good              {"text": "Too long.", "label": "bad"}

Class indices follow the sorted label names.
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
from sightline.training.data.batch import Batch, pad_rows
from sightline.training.data.bucketed import Buckets, batches_by_length

SHAPE = '{"text": …, "label": …}'
VALIDATION_ROWS = 64  # rows per validation batch


@dataclass(frozen=True, slots=True)
class Examples:
    """Texts, each with its label."""

    texts: list[str]
    labels: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def names(self) -> list[str]:
        """The distinct labels, sorted: numbers by value, then words alphabetically."""
        return sorted(
            set(self.labels),
            key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name),
        )

    def hold_out(self, every: int) -> tuple[Examples, Examples]:
        """Split into training examples and every `every`-th example, which is held out."""
        validation = [n for n in range(len(self)) if n % every == every - 1]
        rest = [n for n in range(len(self)) if n % every != every - 1]
        return self.select(rest), self.select(validation)

    def select(self, indices: Sequence[int]) -> Examples:
        return Examples([self.texts[n] for n in indices], [self.labels[n] for n in indices])


def read_labelled(path: Path) -> Examples:
    """Read a .csv or .jsonl file with the columns text and label. Errors name the line of an
    incomplete row."""
    examples = Examples([], [])
    for line, row in read_rows(path, shape=SHAPE):
        text = row.get("text")
        label = parse_label(row.get("label"))
        if not isinstance(text, str) or not text.strip() or label is None:
            missing = "no text" if not isinstance(text, str) or not text.strip() else "no label"
            raise InputError(
                f"{path}, line {line}: {missing}",
                expected="text and label in every row",
                fix="correct the line",
            )
        examples.texts.append(text)
        examples.labels.append(label)
    if len(examples.names) < 2:
        raise InputError(
            f"{path}: every label is {examples.names[0]!r}", expected="two labels or more"
        )
    return examples


def parse_label(value: Any) -> str | None:
    """A label from a string or an integer; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value).strip() or None


@dataclass(slots=True)
class Labelled:
    """Token ids of the texts, special tokens included, and the class index of each. `tokens` is
    the batch size in tokens; rows are truncated to `longest` tokens."""

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
        usable = np.flatnonzero(sizes > 0)
        if not len(usable):
            raise InputError("no text with any tokens", expected="labelled texts")
        self._buckets = Buckets(sizes, usable, self.tokens, self.seed)

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
        sizes = np.array([len(row) for row in rows], dtype=np.int64)
        for indices in batches_by_length(sizes, VALIDATION_ROWS):
            yield self._batch(rows, labels, indices)

    def _batch(
        self, rows: Sequence[Sequence[int]], labels: Sequence[int], indices: NDArray[np.int64]
    ) -> Batch:
        truncated = [rows[n][: self.longest] or [self.pad] for n in indices]
        tokens, padding = pad_rows(truncated, self.pad)
        return Batch(
            tokens=tokens,
            targets=torch.tensor([labels[n] for n in indices]),
            count=len(indices),
            padding=padding,
        )
