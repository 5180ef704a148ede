"""What every reader gives: keys and tensors, in Hugging Face's spelling, read when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Read = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file: what it is, and how to get it. Reading may map the file or decode
    blocks; nothing is read before.

    `kind` is GGUF's name of how the numbers are stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Read
    kind: str = ""

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(slots=True)
class Source:
    """A checkpoint, opened but not read.

    `keys` is config.json as a dictionary (made from the metadata where the format has none),
    `tensors` are under Hugging Face's names, `tokenizer` is whatever the format says of its
    tokenizer (a folder, or a description made by the reader). `left_out` are the names of the
    tensors that the user chose to ignore.
    """

    where: Path
    format: str
    keys: dict[str, Any]
    tensors: dict[str, Entry]
    tokenizer: Any = None
    notes: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])
