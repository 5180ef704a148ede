"""Strict JSON for untrusted files, in bounded time and memory.

Python's reader keeps the last of two equal keys, accepts NaN, and turns `1e999` into infinity. Here
each of these is an error.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from sightline.errors import CheckpointError
from sightline.files.checkpoint_files import open_checkpoint_file, printable_name

MAX_BYTES = 10_000_000
MAX_SEPARATORS = 2_000_000  # bounds the memory of the parsed objects; 200,000 tensors have fewer
MAX_DIGITS = 40  # transformers writes model_max_length as int(1e30)
MAX_DEPTH = 64
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _RefusedError(Exception):
    """A rule that the text breaks; becomes a CheckpointError with the file's name."""


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a regular file of at most `max_bytes`."""
    try:
        with open_checkpoint_file(path) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(
            f"{printable_name(path)} cannot be read: {error.strerror}",
            fix="check the disk and the file's permissions",
        ) from None
    if len(data) > max_bytes:
        raise CheckpointError(
            f"{printable_name(path)} is larger than {max_bytes:,} bytes",
            expected="a small JSON file",
            fix="download it again",
        )
    value = parse_json(data, printable_name(path))
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{printable_name(path)} holds a {type(value).__name__}",
            expected="a JSON object {…}",
            fix="download it again",
        )
    return value


def parse_json(data: bytes, where: str, *, max_separators: int = MAX_SEPARATORS) -> Any:
    """The value of UTF-8 JSON: no key twice, no NaN or infinity, no integer of over 40 digits,
    no nesting deeper than 64, no half of a surrogate pair."""
    try:
        if sum(data.count(separator) for separator in (b",", b"[", b"{", b":")) > max_separators:
            raise _RefusedError(f"has more than {max_separators:,} values")
        value = _decode(data)
        if _is_deeper_than(value, MAX_DEPTH):
            raise _RefusedError(f"is nested deeper than {MAX_DEPTH}")
        if SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        seen = f"{where} has half of a surrogate pair, which is no character"
    except UnicodeDecodeError as error:
        seen = f"{where} is not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        seen = f"{where} is not JSON at character {error.pos}: {error.msg}"
    except RecursionError:
        seen = f"{where} is nested deeper than {MAX_DEPTH}"
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
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _RefusedError(f"has the key {printable_name(name)} twice")
        names.add(name)
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _RefusedError(f"has a number of {len(text):,} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"has the number {printable_name(text)}, which is not finite")
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
