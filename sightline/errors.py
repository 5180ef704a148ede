"""Every error a user can cause, as one line: what was seen, what was expected, and the fix.

SightlineError
├── ConfigError      a configuration that no model could have        (also a ValueError)
├── InputError       tensors, tokens or arguments that do not fit    (also a ValueError)
├── CheckpointError  a file or folder that is not a usable model     (also a ValueError)
└── RecordError      a recording or an edit of something not there   (also a KeyError)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sightline.escapes import escape_line


class SightlineError(Exception):
    """`seen` is what was wrong, `expected` what would be right, `fix` what to type instead."""

    def __init__(self, seen: str, *, expected: str = "", fix: str = "") -> None:
        self.seen = seen
        self.expected = expected
        self.fix = fix
        super().__init__(seen, expected, fix)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without `__init__`, whose keywords `args` cannot fill: an error of a worker
        process arrives as it was raised."""
        return rebuild, (type(self), self.args), dict(self.__dict__)

    def __str__(self) -> str:
        line = self.seen
        if self.expected:
            line += f"; expected {self.expected}"
        if self.fix:
            line += f". Fix: {self.fix}"
        return escape_line(line)


def rebuild(kind: type[SightlineError], args: tuple[str, ...]) -> SightlineError:
    """An error with these `args`; pickle sets its attributes afterwards."""
    return Exception.__new__(kind, *args)


class ConfigError(SightlineError, ValueError):
    """A configuration that no model could have."""


class InputError(SightlineError, ValueError):
    """Tensors, tokens or arguments that do not fit the model or each other."""


class CheckpointError(SightlineError, ValueError):
    """A file or folder that is not a usable model: names the file, the key or tensor, and the
    remedy."""


class RecordError(SightlineError, KeyError):
    """A recording or an edit of something that is not there."""

    __str__ = SightlineError.__str__


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'heads'?`, or the list of what there is."""
    import difflib  # takes ten milliseconds, and only errors need it

    known = sorted(known)
    matcher = difflib.SequenceMatcher(b=name)
    likeness = dict[str, float]()
    for word in known:
        matcher.set_seq1(word)
        likeness[word] = matcher.ratio()
    best = max(known, key=likeness.__getitem__, default="")  # in a tie the first
    close = likeness.get(best, 0.0) >= 0.6
    return f"did you mean {best!r}?" if close else f"use one of {', '.join(known)}"


def short_repr(value: object) -> str:
    """A value as it would be typed, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def short_reason(error: BaseException) -> str:
    """What another library's exception says, on one line and cut where it is long; its type where
    it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:159] + "…"
