"""Packed text: a memory-mapped file of token ids, cut into windows of the context length.

    data/    train.tokens  validation.tokens  (uint16 or uint32)   data.json   tokenizer.json

Window i of epoch e begins at i · context + offset(seed, e): each epoch cuts the text at other
places, and leaves out less than two windows at its ends. Documents in the same window do not attend
to each other. The first document predicts the end token, and the second starts from it, as
generation without a prompt does.
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
RESTORE = "restore the file, then continue with --resume auto"
SCAN = 1 << 24  # tokens checked per slice


def dtype_for(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


Identity = tuple[int, int, int, int]


def file_identity(path: Path) -> Identity:
    """Device, inode, size and time: they differ once a file is replaced, truncated or rewritten."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Tokens:
    """A file of token ids. Opening it checks every id."""

    path: Path
    ids: NDArray[Any]
    sha256: str
    identity: Identity

    @staticmethod
    def open(path: Path, *, dtype: str, vocab_size: int, min_tokens: int = 1) -> Tokens:
        """Open a file; an InputError unless every token is in the vocabulary."""
        try:
            opened = file_identity(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror})",
                expected="a file of tokens",
                fix="sightline data prepare",
            ) from None
        size = opened[2]
        width = np.dtype(dtype).itemsize
        if size % width or size < min_tokens * width:
            seen = (
                f"{size:,} bytes, not a multiple of the size of {dtype}"
                if size % width
                else f"{size // width:,} tokens"
            )
            raise InputError(
                f"{path}: {seen}",
                expected=f"at least {min_tokens:,} tokens of {width} bytes",
                fix="sightline data prepare",
            )
        ids = np.memmap(path, dtype=dtype, mode="r")
        for at in range(0, len(ids), SCAN):
            part = ids[at : at + SCAN]
            if int(part.max()) >= vocab_size:
                first = at + int(np.argmax(part >= vocab_size))
                raise InputError(
                    f"{path}: token {int(ids[first])} at position {first:,}"
                    f" (byte {first * width:,})",
                    expected=f"ids below {vocab_size:,}",
                    fix="prepare the data with this model's tokenizer",
                )
        return Tokens(path, ids, file_sha256(path), opened)

    def read(self, at: int, count: int) -> NDArray[np.int64]:
        """Read `count` tokens; an InputError if the file has changed since it was opened. This
        bypasses the memory map: a missing page would kill the process with SIGBUS."""
        try:
            if file_identity(self.path) != self.identity:
                raise InputError(
                    f"{self.path}: changed while it was in use",
                    expected="the original file",
                    fix=RESTORE,
                )
            tokens = np.fromfile(
                self.path, dtype=self.ids.dtype, count=count, offset=at * self.ids.itemsize
            )
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror})",
                expected="the original file",
                fix=RESTORE,
            ) from None
        if len(tokens) != count:
            raise InputError(
                f"{self.path}: ends within tokens {at:,} to {at + count:,}",
                expected="the original file",
                fix=RESTORE,
            )
        return tokens.astype(np.int64)


def read_sheet(folder: Path) -> dict[str, Any]:
    """Read the datasheet `data.json`. No other file is opened; a meta.pkl is never unpickled."""
    if not (folder / SHEET).is_file():
        raise InputError(
            f"{folder}: has no {SHEET}",
            expected="a folder of prepared data",
            fix=f"sightline data prepare FILES --out {folder}",
        )
    return read_json(folder / SHEET, max_bytes=50_000_000)


@lru_cache(maxsize=4)
def offset(seed: int, epoch: int, spare: int) -> int:
    """The shift of an epoch's windows: 0 … spare."""
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
    """Windows per validation, evenly spread over the held-out text."""
    _windows: int = field(init=False)

    def __post_init__(self) -> None:
        whole = (len(self.train.ids) - 1) // self.context
        if whole < 1:
            raise InputError(
                f"{self.train.path}: {len(self.train.ids):,} tokens for a context of"
                f" {self.context:,}",
                expected=f"at least {self.context + 1:,}, one window and the token after it",
                fix=f"a longer text, or context={max(1, (len(self.train.ids) - 1) // 2)}",
            )
        # One fewer than fit, so that the windows can shift by at least a whole window.
        self._windows = max(1, whole - 1)

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
        windows = samples(self.seed, step * self.rows, self.rows, self._windows)
        return self._batch(self.train, [self._start(epoch, window) for epoch, window in windows])

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
        evaluated = min(windows, self.evaluated)
        selected = sorted({windows * n // evaluated for n in range(evaluated)})
        for at in range(0, len(selected), self.rows):
            yield self._batch(
                self.held_out, [n * context for n in selected[at : at + self.rows]], context
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
