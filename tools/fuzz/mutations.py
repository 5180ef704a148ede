"""Mutations of files: bytes, numbers in binary headers, JSON values, text. All from one seeded
generator."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    31,
    255,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    2**31,
    2**63,
    2**64,
    10**18,
    10**30,
    0.5,
    -0.0,
    1e-30,
    1e308,
]
WORDS = [
    "",
    "a",
    "0",
    "F32",
    "BF16",
    "silu",
    "../x",
    "/dev/zero",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "\u202e",
    "\ud800",
    "[red]",
    "x" * 5000,
]
LISTS: list[Any] = [[], [0], [0, 0], [10**18, 10**18], [-1], [None], [[]], ["1"], [0.0]]
VALUES: list[Any] = [*SCALARS, *WORDS, *LISTS, {}, {"a": {}}, {"type": "Sequence"}]
KEYS = ["__metadata__", "../x", "a\nb", "", "z", "type", "id", "\x1b]0;x\x07"]
SIGNS = [
    "NaN",
    "1e999",
    '"',
    "{",
    "}",
    "\\",
    "\0",
    "\x1b[2J",
    "\u202e",
    "\n",
    ",",
    "-",
    ".",
    "{{",
    "%}",
    "{% for a in b %}",
    "#",
]
TEXTS = ["[" * 5000, "9" * 5000, *SIGNS]
STARTS = [
    b"GGUF\x03\0\0\0",
    b"PK\x03\x04",
    b"\x93NUMPY\x01\0",
    b"\x80\x02}q\x00.",
    b"\x1f\x8b",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
]
MAGIC = [b"", b"{}", b"[]", b"\0" * 64, *STARTS]
JSON_ENDINGS = (".json", ".jsonl")
TEXT_ENDINGS = (".txt", ".toml", ".jinja", *JSON_ENDINGS)
HEADER = 512

Mutation = Callable[[random.Random, bytes], bytes]


def mutate(folder: Path, generator: random.Random) -> None:
    """One to three mutations of a folder's files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        path = generator.choice(files)
        mutation = generator.choice(mutations_for(path))
        path.write_bytes(mutation(generator, path.read_bytes()))


def mutations_for(path: Path) -> list[Mutation]:
    """The mutations that apply to a file; structure-aware ones are more frequent."""
    common: list[Mutation] = [
        flip_bits,
        cut,
        remove_bytes,
        insert_bytes,
        repeat_bytes,
        replace_start,
    ]
    if path.suffix in JSON_ENDINGS:
        return [*common, insert_text, *[exchange_value] * 8, nest]
    if path.suffix in TEXT_ENDINGS:
        return [*common, *[insert_text] * 3, *[exchange_word] * 4]
    if path.suffix in (".safetensors", ".trace"):
        return [*common, flip_bits, set_number, *[exchange_header_value] * 6]
    return [*common, flip_bits, flip_bits, *[set_number] * 4]


# ------------------------------------------------------------------------------------------ bytes


def place(generator: random.Random, size: int) -> int:
    """A random offset, half of the time within the header."""
    return generator.randrange(max(1, min(size, HEADER) if generator.random() < 0.5 else size))


def flip_bits(generator: random.Random, data: bytes) -> bytes:
    flipped = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 8])):
        if flipped:
            flipped[place(generator, len(flipped))] ^= 1 << generator.randrange(8)
    return bytes(flipped)


def cut(generator: random.Random, data: bytes) -> bytes:
    return data[: generator.randrange(len(data) + 1)]


def remove_bytes(generator: random.Random, data: bytes) -> bytes:
    at = place(generator, len(data))
    return data[:at] + data[at + generator.randrange(1, 17) :]


def insert_bytes(generator: random.Random, data: bytes) -> bytes:
    at = place(generator, len(data) + 1)
    return data[:at] + generator.randbytes(generator.choice([1, 2, 4, 8, 64])) + data[at:]


def repeat_bytes(generator: random.Random, data: bytes) -> bytes:
    """Copy a piece of the file to another offset."""
    start = place(generator, len(data))
    piece = data[start : start + generator.choice([4, 16, 64, 512])]
    at = place(generator, len(data) + 1)
    return data[:at] + piece + data[at if generator.random() < 0.5 else at + len(piece) :]


def replace_start(generator: random.Random, data: bytes) -> bytes:
    magic = generator.choice(MAGIC)
    return generator.choice([magic, magic + data[len(magic) :], magic + data])


def set_number(generator: random.Random, data: bytes) -> bytes:
    """Replace a little-endian integer (a length, a count, an offset, a type)."""
    size, form = generator.choice([(1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q")])
    at = place(generator, max(1, len(data) - size))
    at -= at % size if generator.random() < 0.5 else 0
    old = int.from_bytes(data[at : at + size], "little")
    new = generator.choice([*NUMBERS, old + 1, old - 1, old * 2, -old, len(data)]) % 2 ** (8 * size)
    return data[:at] + struct.pack(form, new) + data[at + size :]


# ------------------------------------------------------------------------------------------- JSON


def exchange_value(generator: random.Random, data: bytes) -> bytes:
    """Change a value somewhere in the JSON, or in one line of JSON lines."""
    lines = data.split(b"\n") if data.count(b"\n{") > 1 else [data]
    number = generator.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return data
    lines[number] = json.dumps(exchanged(generator, value)).encode()
    return b"\n".join(lines)


def exchanged(generator: random.Random, value: Any) -> Any:
    """The value with one node replaced, renamed or removed."""
    if isinstance(value, (int, float)) and generator.random() < 0.2:
        return value * 2 + 1
    if not isinstance(value, (dict, list)) or not value or generator.random() < 0.1:
        return generator.choice(VALUES)
    mutated: Any = value.copy()
    key = generator.choice(
        list(mutated) if isinstance(mutated, dict) else list(range(len(mutated)))
    )
    how = generator.random()
    if how < 0.1:
        del mutated[key]
    elif how < 0.2 and isinstance(mutated, dict):
        mutated[generator.choice(KEYS)] = mutated.pop(key)
    elif how < 0.2 and isinstance(mutated, list):
        mutated.append(mutated[key])
    else:
        mutated[key] = exchanged(generator, mutated[key])
    return mutated


def exchange_header_value(generator: random.Random, data: bytes) -> bytes:
    """Change safetensors' header, and correct its length; also the JSON inside its metadata."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return data
    inner = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    if isinstance(inner, dict) and isinstance(inner.get("trace"), str) and generator.random() < 0.7:
        inner["trace"] = exchange_value(generator, inner["trace"].encode()).decode(errors="replace")
    else:
        header = exchanged(generator, header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def nest(generator: random.Random, data: bytes) -> bytes:
    depth = generator.choice([50, 500, 5_000, 200_000])
    return (
        b'{"a":' * depth + data + b"}" * depth
        if generator.random() < 0.5
        else b"[" * depth + data + b"]" * depth
    )


# ------------------------------------------------------------------------------------------- text


def insert_text(generator: random.Random, data: bytes) -> bytes:
    at = generator.randrange(len(data) + 1)
    return data[:at] + generator.choice(TEXTS).encode() + data[at:]


def exchange_word(generator: random.Random, data: bytes) -> bytes:
    """Replace a word by another word of the text, or by an unusual one."""
    words = data.split(b" ")
    other = generator.choice(
        [*words, *(str(value).encode(errors="replace") for value in [*SCALARS, *WORDS])]
    )
    words[generator.randrange(len(words))] = other
    return b" ".join(words)
