"""`Source`: an opened checkpoint, with its config keys and lazy tensors under Hugging Face's
names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sightline.config import ModelConfig
    from sightline.families import Family

ReadTensor = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file, read lazily: `read` maps the file or decodes quantized blocks.

    `kind` is GGUF's storage type, such as `Q4_0`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: ReadTensor
    kind: str = ""

    @property
    def numbers(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint is: its family, its head and its configuration. `unknown_keys` lists the
    keys of config.json that the family does not know."""

    family: Family
    head: str
    config: ModelConfig
    unknown_keys: str = ""


@dataclass(slots=True)
class Source:
    """An opened checkpoint whose tensors are not read yet.

    `keys` is config.json as a dictionary (made from the metadata where the format has none),
    `tensors` are under Hugging Face's names, `tokenizer` is a folder with tokenizer files or a
    `Vocabulary`. `left_out` are the names of the tensors that the user chose to ignore. `identity`
    is determined once, by `identity.identify`, and reused by everything that loads the source.
    """

    where: Path
    format: str
    keys: dict[str, Any]
    tensors: dict[str, Entry]
    tokenizer: Any = None
    notes: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])
    identity: Identity | None = None
