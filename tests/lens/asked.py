"""Tiny models as something to look at, with a text of ids for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import sightline as sl
from sightline.text.tokenizer import Tokenizer
from tests.support.tiny import ALL, inputs, make


@dataclass(frozen=True)
class Tiny:
    """A subject."""

    transformer: sl.Transformer
    tokenizer: Tokenizer | None = None
    name: str = "tiny"


@cache
def tiny(name: str) -> Tiny:
    return Tiny(make(ALL[name]))


def ids_of(name: str, time: int = 7) -> list[int]:
    return inputs(ALL[name], batch=1, time=time)["tokens"][0].tolist()


def source_of(name: str) -> dict[str, Any]:
    """`source=` for those that have one."""
    given = inputs(ALL[name], batch=1)
    return {"source": given["source"][0].tolist()} if "source" in given else {}
