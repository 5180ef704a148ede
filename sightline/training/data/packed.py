"""A text as packed tokens: one file of whole numbers, mapped into memory, cut into windows of the
context's length.

    data/    train.tokens  validation.tokens  (uint16 or uint32)   data.json   tokenizer.json

Window i of epoch e begins at i · context + offset(seed, e): each epoch cuts the text elsewhere, and
leaves out less than two windows at its ends. Documents that share a window do not see each other.
The end token between two is said by the first and read by the second: it is the last that the one
predicts, and what the other is begun from, as a model begins when it has read nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.files.checkpoint_files import file_sha256
from sightline.files.strict_json import read_json
from sightline.training.data.batch import Batch
from sightline.training.data.order import random, samples

SHEET = "data.json"
TRAIN = "train.tokens"
VALIDATION = "validation.tokens"
AGAIN = "put it back, then go on with --resume auto"
SCAN = 1 << 24  # tokens that are looked at together


def dtype_for(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


Identity = tuple[int, int, int, int]


def identity(path: Path) -> Identity:
    """What changes when a file is replaced, cut or rewritten."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Tokens:
    """One file of tokens, opened after a look at every one of them."""

    path: Path
    ids: NDArray[Any]
    sha256: str
    identity: Identity

    @staticmethod
    def open(path: Path, *, dtype: str, vocab_size: int, least: int = 1) -> Tokens:
        """The file, if each of its tokens is one of the vocabulary."""
        try:
            known = identity(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror})",
                expected="a file of tokens",
                fix="sightline data prepare",
            ) from None
        size = known[2]
        width = np.dtype(dtype).itemsize
        if size % width or size < least * width:
            why = (
                f"{size:,} bytes are no whole number of {dtype}"
                if size % width
                else f"{size // width:,} tokens"
            )
            raise InputError(
                f"{path}: {why}",
                expected=f"at least {least:,} tokens of {width} bytes",
                fix="sightline data prepare",
            )
        ids = np.memmap(path, dtype=dtype, mode="r")
        for at in range(0, len(ids), SCAN):
            part = ids[at : at + SCAN]
            if int(part.max()) >= vocab_size:
                worst = at + int(np.argmax(part >= vocab_size))
                seen = (
                    f"{path}: token {int(ids[worst])} at place {worst:,} (byte {worst * width:,})"
                )
                raise InputError(
                    seen,
                    expected=f"ids below {vocab_size:,}",
                    fix="prepare the data with this model's tokenizer",
                )
        return Tokens(path, ids, file_sha256(path), known)

    def read(self, at: int, many: int) -> NDArray[np.int64]:
        """Some of the tokens, of the file as it was opened. Read, not mapped: a page that is gone
        would end the process without a word."""
        try:
            if identity(self.path) != self.identity:
                raise InputError(
                    f"{self.path}: changed while it was in use",
                    expected="the file as it was",
                    fix=AGAIN,
                )
            found = np.fromfile(
                self.path, dtype=self.ids.dtype, count=many, offset=at * self.ids.itemsize
            )
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror})",
                expected="the file as it was",
                fix=AGAIN,
            ) from None
        if len(found) != many:
            raise InputError(
                f"{self.path}: ends within tokens {at:,} to {at + many:,}",
                expected="the file as it was",
                fix=AGAIN,
            )
        return found.astype(np.int64)


def read_sheet(folder: Path) -> dict[str, Any]:
    """What `data.json` says. Nothing else in the folder is opened: a meta.pkl stays shut."""
    if not (folder / SHEET).is_file():
        raise InputError(
            f"{folder}: has no {SHEET}",
            expected="a folder of prepared data",
            fix=f"sightline data prepare FILES --out {folder}",
        )
    return read_json(folder / SHEET, max_bytes=50_000_000)


@lru_cache(maxsize=4)
def offset(seed: int, epoch: int, spare: int) -> int:
    """How far the windows of an epoch are moved: 0 … spare."""
    return int(random(seed, 3, epoch).integers(spare + 1))


@dataclass(slots=True)
class PackedText:
    """Next-token prediction over windows of a text."""

    train: Tokens
    held_out: Tokens | None
    context: int
    rows: int
    seed: int
    end: int | None = None
    evaluated: int = 64
    """Windows of the held-out text that a validation reads; evenly spread over it."""
    _windows: int = field(init=False)

    def __post_init__(self) -> None:
        whole = (len(self.train.ids) - 1) // self.context
        if whole < 1:
            seen = (
                f"{self.train.path}: {len(self.train.ids):,} tokens for a context of"
                f" {self.context:,}"
            )
            least = f"at least {self.context + 1:,}, one window and the token after it"
            raise InputError(
                seen,
                expected=least,
                fix=f"a longer text, or context={max(1, (len(self.train.ids) - 1) // 2)}",
            )
        self._windows = max(
            1, whole - 1
        )  # one fewer than fit, so that they can be moved by more than one

    @property
    def fingerprint(self) -> str:
        return (
            f"{self.train.sha256} {self.held_out.sha256 if self.held_out else ''} {self.context}"
            f" {self.rows} {self.seed} {self.end}"
        )

    @property
    def epoch_batches(self) -> int:
        return max(1, self._windows // self.rows)

    def batch(self, step: int) -> Batch:
        which = samples(self.seed, step * self.rows, self.rows, self._windows)
        return self._batch(self.train, [self._start(epoch, window) for epoch, window in which])

    def _start(self, epoch: int, window: int) -> int:
        """Where a window of an epoch begins."""
        spare = len(self.train.ids) - 1 - self._windows * self.context
        return window * self.context + offset(self.seed, epoch, spare)

    def validation(self) -> Iterator[Batch]:
        if self.held_out is None:
            return
        count = len(self.held_out.ids)
        context = min(self.context, count - 1)
        windows = max(1, (count - 1) // context)
        chosen = sorted(
            {
                windows * n // min(windows, self.evaluated)
                for n in range(min(windows, self.evaluated))
            }
        )
        for at in range(0, len(chosen), self.rows):
            yield self._batch(
                self.held_out, [n * context for n in chosen[at : at + self.rows]], context
            )

    def _batch(self, text: Tokens, starts: Sequence[int], context: int | None = None) -> Batch:
        rows = torch.from_numpy(
            np.stack([text.read(at, (context or self.context) + 1) for at in starts])
        )
        tokens = rows[:, :-1].contiguous()
        targets = rows[:, 1:].contiguous()
        documents = None
        if self.end is not None:
            ends = tokens == self.end
            documents = ends.cumsum(1) if bool(ends.any()) else None
        return Batch(tokens=tokens, targets=targets, count=targets.numel(), documents=documents)


def sheet_text(sheet: dict[str, Any]) -> str:
    return json.dumps(sheet, indent=1, ensure_ascii=False)
