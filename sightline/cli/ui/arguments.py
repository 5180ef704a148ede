"""Kinds of arguments that commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def whole(kind: Any, tokens: Sequence[Token]) -> int:
    """A whole number, as written: 1.5 is refused, not rounded."""
    if not tokens[0].value.lstrip("+-").isdecimal():
        raise ValueError(f"{tokens[0].value!r} is not a whole number.")
    return int(tokens[0].value)


Count = Annotated[int | None, Parameter(converter=whole)]


def words(kind: Any, tokens: Sequence[Token]) -> str:
    """A text as written. It may begin with a hyphen, but what looks like an option was meant as
    one."""
    value = tokens[0].value
    if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", value):
        raise ValueError(f"no option is called {value}.")
    return value


Words = Annotated[str | None, Parameter(allow_leading_hyphen=True, converter=words)]
OneText = Annotated[
    str, Parameter(allow_leading_hyphen=True)
]  # of several; without it a lone - would be an unknown option
Strict = Annotated[
    bool,
    Parameter(
        help=(
            "Refuse NaN weights, and keys of config.json that nobody knows; otherwise both are"
            " noted."
        )
    ),
]
Dtype = Annotated[
    str,
    Parameter(
        help=(
            "How the weights are kept: float32, float16, or, by the native engine, int8,"
            " int8_groups, int4 or int4_min."
        )
    ),
]
IgnoreTensors = Annotated[
    tuple[str, ...],
    Parameter(
        negative=(),
        help=(
            "Leave out tensors whose names match this glob, such as 'v_head.*'; may be given"
            " several times."
        ),
    ),
]
