"""A memory-mapped file; reading is refused if the file changed after it was opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sightline.errors import CheckpointError

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class MappedFile:
    """The bytes of one regular file, read on access."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._status_when_opened = self._status()
        if not self._status_when_opened[0]:
            raise CheckpointError(
                f"{where}: the file is empty", expected="a checkpoint", fix="fetch the file again"
            )
        try:
            self._bytes: Bytes = np.asarray(
                np.memmap(where, dtype=np.uint8, mode="r")
            )  # a plain array: slices of a memmap are slow
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{where}: cannot be mapped ({error})", fix="check that the file can be read"
            ) from None

    def __len__(self) -> int:
        return self._status_when_opened[0]

    def _status(self) -> tuple[int, int]:
        """Size and modification time; a folder, a pipe or a device is refused."""
        try:
            status = os.stat(self.where)
        except OSError as error:
            raise CheckpointError(
                f"{self.where}: cannot be opened ({error.strerror})", fix="check the path"
            ) from None
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(
                f"{self.where}: is not a regular file", expected="a checkpoint file"
            )
        return status.st_size, status.st_mtime_ns

    def part(self, start: int, length: int) -> Bytes:
        """`length` bytes from `start`, as they were when the file was opened."""
        if start < 0 or length < 0 or start + length > len(self):
            seen = (
                f"{self.where}: bytes {start} to {start + length} are outside the file of"
                f" {len(self)} bytes"
            )
            raise CheckpointError(seen, fix="fetch the file again")
        if self._status() != self._status_when_opened:
            raise CheckpointError(
                f"{self.where}: the file changed after it was opened", fix="open it again"
            )
        return self._bytes[start : start + length]

    def tensor(self, start: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A copy of one plain tensor that begins at `start`."""
        length = dtype.itemsize
        for size in shape:
            length *= size
        raw = bytearray(self.part(start, length).tobytes())
        return (
            torch.frombuffer(raw, dtype=dtype).reshape(tuple(shape))
            if length
            else torch.empty(tuple(shape), dtype=dtype)
        )
