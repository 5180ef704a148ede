"""The outcomes of a case."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["refused", "equal", "traceback", "crash", "hang", "memory", "difference"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SOUND: tuple[Kind, ...] = ("refused", "equal")


class RefusedError(Exception):
    """The reader refused in its documented way."""


class DifferenceError(Exception):
    """The reader accepted the bytes and read something other than it should."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise DifferenceError(what)
