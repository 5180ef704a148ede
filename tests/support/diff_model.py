"""A tiny model whose tokens are numbers, for comparing two prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sightline as sl

IDS, OTHER, SOURCE = [5, 9, 14, 3, 22, 8, 17], [1, 1, 2, 28, 6, 13], [4, 7, 12, 19, 2]


@dataclass
class Tiny:
    transformer: sl.Transformer
    tokenizer: Any = None
    name: str = "tiny"
