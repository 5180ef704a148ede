"""Configurations as plain values: checked when made, written to JSON and TOML, read back exactly.

A field whose type is a choice of classes (`Learned | Rotary | …`) is written as a table with a
`type` key. `None` is written by leaving the field out, so every field that may be None must default
to None.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sightline.errors import ConfigError, nearest, short_repr
from sightline.files.regular import read_text_file

T = TypeVar("T")


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Each field's resolved type."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def choices(kind: Any) -> tuple[Any, ...]:
    """`A | B | None` → (A, B, NoneType); anything else is its own only choice."""
    return (
        typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType)
        else (kind,)
    )


def check_fields(value: Any) -> None:
    """Refuse a field of the wrong type, a NaN or an infinity. Called by each configuration's
    `__post_init__`."""
    for name, kind in field_types(type(value)).items():
        seen = getattr(value, name)
        if not any(_fits(seen, choice) for choice in choices(kind)):
            raise ConfigError(
                f"{type(value).__name__}.{name} is {short_repr(seen)}", expected=_spell(kind)
            )


def _fits(seen: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return seen in typing.get_args(kind)
    if origin is tuple:
        element = typing.get_args(kind)[0]
        return isinstance(seen, tuple) and all(
            any(_fits(x, choice) for choice in choices(element)) for x in typing.cast(Any, seen)
        )
    if kind is float:
        return isinstance(seen, (int, float)) and not isinstance(seen, bool) and math.isfinite(seen)
    if kind is int:
        return isinstance(seen, int) and not isinstance(seen, bool)
    return isinstance(seen, kind)


def _spell(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    names = {
        float: "a finite number",
        int: "an integer",
        bool: "true or false",
        type(None): "None",
    }
    return " or ".join(
        names.get(choice) or getattr(choice, "__name__", str(choice)) for choice in choices(kind)
    )


def to_plain(value: Any) -> Any:
    """A configuration as dictionaries, lists, strings and numbers."""
    if isinstance(value, tuple):
        return [to_plain(x) for x in typing.cast(Any, value)]
    if not dataclasses.is_dataclass(value):
        return value
    plain: dict[str, Any] = {}
    for name, kind in field_types(type(typing.cast(Any, value))).items():
        seen = getattr(value, name)
        if seen is not None:
            tag = {"type": type(seen).__name__} if _is_tagged(kind) else {}
            plain[name] = {**tag, **to_plain(seen)} if tag else to_plain(seen)
    return plain


def from_plain(kind: type[T], plain: Any, *, where: str = "") -> T:
    """The inverse of `to_plain`. Unknown keys are refused, with the nearest known one."""
    where = where or kind.__name__
    if not isinstance(plain, dict):
        raise ConfigError(f"{where} is {short_repr(plain)}", expected="a table of fields")
    table = typing.cast(dict[str, Any], plain)
    known = field_types(kind)
    for name in table:
        if name not in known:
            raise ConfigError(f"{where} has no field {short_repr(name)}", fix=nearest(name, known))
    required = [
        f.name
        for f in dataclasses.fields(typing.cast(Any, kind))
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in table:
            raise ConfigError(f"{where} lacks {name!r}", fix=f"add {name} to {where}")
    return kind(**{name: _read(known[name], table[name], f"{where}.{name}") for name in table})


def _is_tagged(kind: Any) -> bool:
    return sum(dataclasses.is_dataclass(choice) for choice in choices(kind)) > 1


def _read(kind: Any, plain: Any, where: str) -> Any:
    if typing.get_origin(kind) is tuple:
        if not isinstance(plain, list):
            raise ConfigError(f"{where} is {short_repr(plain)}", expected="a list")
        element = typing.get_args(kind)[0]
        return tuple(
            _read(element, x, f"{where}[{n}]") for n, x in enumerate(typing.cast(list[Any], plain))
        )
    classes: dict[str, type[Any]] = {
        choice.__name__: choice
        for choice in choices(kind)
        if isinstance(choice, type) and dataclasses.is_dataclass(choice)
    }
    if not classes:
        return plain
    if not _is_tagged(kind):
        return from_plain(next(iter(classes.values())), plain, where=where)
    tag = typing.cast(dict[str, Any], plain).get("type") if isinstance(plain, dict) else plain
    if not isinstance(tag, str) or tag not in classes:
        raise ConfigError(f"{where}.type is {short_repr(tag)}", fix=nearest(str(tag), classes))
    fields = (
        {k: v for k, v in typing.cast(dict[str, Any], plain).items() if k != "type"}
        if isinstance(plain, dict)
        else {}
    )
    return from_plain(classes[tag], fields, where=where)


def write(value: Any, path: str | Path) -> None:
    """Write a configuration to a `.json` or `.toml` file."""
    Path(path).write_text(to_text(value, _format(path)), encoding="utf-8")


def read(kind: type[T], path: str | Path) -> T:
    """Read a configuration from a `.json` or `.toml` file."""
    style = _format(path)
    try:
        text = read_text_file(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            fix="check the path",
        ) from None
    return from_text(kind, text, style, where=str(path))


def to_text(value: Any, style: str = "json") -> str:
    """A configuration as JSON or TOML text."""
    if style == "toml":
        import tomli_w

        return tomli_w.dumps(to_plain(value))
    return json.dumps(to_plain(value), indent=2, allow_nan=False) + "\n"


def from_text(kind: type[T], text: str, style: str = "json", *, where: str = "text") -> T:
    """The inverse of `to_text`."""
    try:
        plain = tomllib.loads(text) if style == "toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where} is not {style.upper()}: {error}", fix="repair the file"
        ) from None
    return from_plain(kind, plain)


def _format(path: str | Path) -> str:
    style = Path(path).suffix.lstrip(".").lower()
    if style not in ("json", "toml"):
        raise ConfigError(
            f"{path} has the ending {Path(path).suffix!r}",
            expected=".json or .toml",
            fix="rename the file",
        )
    return style
