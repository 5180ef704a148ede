"""JSON from strangers: one meaning or none, in bounded time and memory.

Python's own reader keeps the last of two equal keys, accepts NaN, and turns `1e999` into infinity.
Here each of those is an error.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from sightline.errors import CheckpointError
from sightline.files.checked import open_regular, shown

MOST_BYTES = 10_000_000
MOST_SEPARATORS = 2_000_000  # bounds the memory of the parsed objects; 200,000 tensors have fewer
MOST_DIGITS = 20
MOST_DEPTH = 64
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _RefusedError(Exception):
    """A rule of ours that the text breaks; becomes a CheckpointError with the file's name."""


def read_json(path: Path, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a regular file of at most `most_bytes`."""
    try:
        with open_regular(path) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise CheckpointError(
            f"{shown(path)} cannot be read: {error.strerror}",
            fix="check the disk and the file's permissions",
        ) from None
    if len(data) > most_bytes:
        raise CheckpointError(
            f"{shown(path)} is larger than {most_bytes:,} bytes",
            expected="a small JSON file",
            fix="download it again",
        )
    value = parse_json(data, shown(path))
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{shown(path)} holds a {type(value).__name__}",
            expected="a JSON object {…}",
            fix="download it again",
        )
    return value


def parse_json(data: bytes, where: str) -> Any:
    """The value of UTF-8 JSON: no key twice, no NaN or infinity, no number of over 20 digits, no
    nesting deeper than 64, no half of a surrogate pair."""
    try:
        if sum(data.count(separator) for separator in (b",", b"[", b"{", b":")) > MOST_SEPARATORS:
            raise _RefusedError(f"has more than {MOST_SEPARATORS:,} values")
        value = _decode(data)
        if _is_deeper_than(value, MOST_DEPTH):
            raise _RefusedError(f"is nested deeper than {MOST_DEPTH}")
        if SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        seen = f"{where} has half of a surrogate pair, which is no character"
    except UnicodeDecodeError as error:
        seen = f"{where} is not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        seen = f"{where} is not JSON at character {error.pos}: {error.msg}"
    except RecursionError:
        seen = f"{where} is nested deeper than {MOST_DEPTH}"
    except _RefusedError as refused:
        seen = f"{where} {refused}"
    else:
        return value
    raise CheckpointError(seen, expected="plain JSON", fix="download the file again, or correct it")


def _decode(data: bytes) -> Any:
    text = data.decode("utf-8")
    return json.loads(
        text,
        object_pairs_hook=_unique,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=_constant,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _RefusedError(f"has the key {shown(name)} twice")
        names.add(name)
    return made


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise _RefusedError(f"has a number of {len(text):,} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"has the number {shown(text)}, which is not finite")
    return value


def _constant(text: str) -> NoReturn:
    raise _RefusedError(f"has {text}, which is not JSON")


def _is_deeper_than(value: Any, most: int) -> bool:
    level: list[Any] = [value]
    for _ in range(most):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    """The containers inside a container."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, (dict, list))]
