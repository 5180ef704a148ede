"""Packed weights on disk: one file with everything that an engine needs, so that the checkpoint
need not be read again.

    magic · length of the header · its SHA-256 │ header (JSON) │ small tensors │ matrices, each its
    weights and its scales │ a page of zeros

The header has a key (checkpoint, precision and build), the program, the size of the data after it
and the CRC-32 of each mebibyte of that data. Weights are read into memory, not mapped, and verified
while they are read: the verified bytes are those that run, even if the file is changed or truncated
later. Files are written atomically: a file is complete, or does not exist.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import torch
from torch import Tensor

from sightline.config.model import StackConfig
from sightline.engine import matrices
from sightline.engine.checksums import BLOCK, checksums, read_verified
from sightline.engine.engine import NativeEngine
from sightline.engine.matrices import BEYOND, LINE, PRECISIONS, Precision, rounded
from sightline.engine.program import Matrix
from sightline.engine.program_check import check_program, require
from sightline.engine.program_format import (
    FIELDS,
    StoredProgram,
    decode_program,
    encode_program,
)
from sightline.files.atomic import atomic_write
from sightline.files.regular import open_regular_file
from sightline.kernels import library as kernels

FORMAT = 2
MAGIC = b"SIGHTPAK"
SUFFIX = ".packed"
UNFINISHED = (f".*{SUFFIX}.*.part", "*.unfinished")  # the second: of earlier versions
START = 48
MOST_HEADER = 1 << 25
SPARE = 1 << 30  # bytes of disk space that stay free
HOUR = 3600  # seconds after which an unfinished file counts as abandoned
PAGE = 4096
HEADER = {"key", "notes", "half_cache", "program", "kept", "matrices", "size", "sums"}
MOST_NUMBERS = 1 << 40  # of one tensor; larger sizes are a damaged file
PACKAGES = (
    "config",
    "core",
    "families",
    "checkpoints",
    "engine",
)  # these sources determine the packed bytes

Key = dict[str, Any]


class BrokenError(Exception):
    """A file that is not a valid packed file; the message is the reason."""


@dataclass(slots=True)
class Entry:
    """An engine from disk, and the notes from when it was packed."""

    engine: NativeEngine
    notes: list[str] = field(default_factory=list[str])


def key_of(**facts: Any) -> Key:
    """The cache key as plain values, with the build: another build may lay out matrices
    differently."""
    package = Path(__file__).parents[1]
    sources = [
        str(kernels.ready().__file__),
        *sorted(str(path) for name in PACKAGES for path in (package / name).rglob("*.py")),
    ]
    build = [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, sources)]
    versions = {
        "sightline": version("sightline"),
        "torch": torch.__version__,
        "kernels": kernels.ready().instruction_set(),
    }
    return json_values(
        {"format": FORMAT, "build": hashlib.sha256(str(build).encode()).hexdigest()}
        | versions
        | facts
    )


def json_values(value: Any) -> Any:
    """Values as JSON types: strings as keys, lists instead of tuples."""
    if isinstance(value, dict):
        return {str(name): json_values(item) for name, item in cast(dict[Any, Any], value).items()}
    return (
        [json_values(item) for item in cast(Sequence[Any], value)]
        if isinstance(value, (list, tuple))
        else value
    )


def write(path: Path, key: Key, engine: NativeEngine, *, notes: Sequence[str] = ()) -> None:
    """Write an engine's weights. On an OSError there is no file, or the previous one is
    unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        write_parts(file, key, engine, list(notes))


def write_parts(file: BinaryIO, key: Key, engine: NativeEngine, notes: list[str]) -> None:
    program = engine.program
    header: dict[str, Any] = {"key": key, "notes": notes, "half_cache": engine.half_cache}
    header["program"] = encode_program(program)
    header["kept"] = [list(x.shape) for x in program.tensors]
    pairs = zip(program.matrices, engine.packed, strict=True)
    header["matrices"] = [
        [matrix.name, packed.precision, matrix.rows, matrix.inputs, matrix.sensitive]
        for matrix, packed in pairs
    ]
    header["size"] = sum(len(piece) for piece in data_of(engine))
    check_room(file, header["size"])
    header["sums"] = checksums(data_of(engine))
    text = json.dumps(header).encode()
    file.write(MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)
    file.write(bytes(-file.tell() % PAGE))
    file.writelines(data_of(engine))


def data_of(engine: NativeEngine) -> Iterator[memoryview]:
    """The data after the header, in pieces: small tensors aligned to cache lines, then the matrices
    aligned to a page."""
    size = 0
    for x in engine.program.tensors:
        piece = x.contiguous().flatten().view(torch.uint8).numpy().data
        fill = -len(piece) % LINE
        size += len(piece) + fill
        yield piece
        yield memoryview(bytes(fill))
    yield memoryview(bytes(-size % PAGE))
    yield matrices.span(engine.packed).numpy().data
    yield memoryview(bytes(BEYOND))


def check_room(file: BinaryIO, needed: int) -> None:
    """A cache must not fill the disk."""
    if shutil.disk_usage(os.path.dirname(file.name)).free < needed + SPARE:
        raise OSError(errno.ENOSPC, f"less than {(needed + SPARE) / 1e9:.1f} GB are free")


def release(engine: NativeEngine) -> None:
    """Drop the weights that an engine was packed from."""
    for matrix in engine.program.matrices:
        matrix.make = unreadable


def unreadable() -> Tensor:
    raise AssertionError("these weights exist only in packed form")


def read(path: Path, key: Key, stack: StackConfig) -> Entry | None:
    """The entry under this key for a decoder of this configuration; None if there is no such file,
    or its key differs. BrokenError if the file is damaged or inconsistent."""
    try:
        with open_regular_file(path) as file:
            header, start = read_header(file)
            return engine_from(file, header, start, stack) if header["key"] == key else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BrokenError(error.strerror or str(error)) from None
    except ValueError as error:
        raise BrokenError(str(error)) from None
    except (
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise BrokenError(f"it is inconsistent ({type(error).__name__})") from None


def read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header, and the offset of the small tensors."""
    start = file.read(START)
    if len(start) < START or start[:8] != MAGIC:
        refuse("it does not have the magic bytes")
    length = int.from_bytes(start[8:16], "little")
    text = file.read(length) if length <= MOST_HEADER else b""
    if hashlib.sha256(text).digest() != start[16:]:
        refuse("its header is damaged")
    header = json.loads(text)
    if not isinstance(header, dict):
        refuse("its header is not an object")
    begins = rounded(START + length, PAGE)
    ends = os.fstat(file.fileno()).st_size
    if type(header["size"]) is not int or ends != begins + header["size"]:
        refuse(f"its size is not that in its header: {ends:,} bytes")
    if file.read(begins - START - length).strip(b"\0"):
        refuse("there is something between its header and its data")
    return header, begins


def refuse(why: str) -> NoReturn:
    raise BrokenError(why)


def engine_from(file: BinaryIO, header: dict[str, Any], start: int, stack: StackConfig) -> Entry:
    """The engine with its weights in memory. Every value of the header is checked before it is
    used."""
    require(header.keys() == HEADER, "its header is not complete")
    shapes = tensor_shapes(header["kept"])
    named = matrices_of(header["matrices"])
    packed_as = precisions_of(header["matrices"])
    layout: list[tuple[Precision, int, int]] = [
        (how, matrix.rows, matrix.inputs) for how, matrix in zip(packed_as, named, strict=True)
    ]
    begins = rounded(sum(rounded(4 * math.prod(shape), LINE) for shape in shapes), PAGE)
    size = header["size"]
    sums = header["sums"]
    require(
        begins + matrices.total(layout) + BEYOND == size,
        "its tensors have other sizes than those in its header",
    )
    require(
        isinstance(sums, list) and len(sums) == -(-size // BLOCK),
        "it does not have one checksum per block",
    )
    notes = header["notes"]
    require(
        isinstance(notes, list) and all(isinstance(note, str) for note in notes),
        "its notes are not text",
    )
    require(type(header["half_cache"]) is bool, "the dtype of its KV cache is missing")
    memory = torch.empty(
        size, dtype=torch.uint8
    )  # small pages: making room for large ones takes longer than reading the file
    stored = stored_program(header["program"], named, tensors_in(memory, shapes))
    check_program(stored, stack)
    read_verified(file.fileno(), start, memory, sums)
    return Entry(
        NativeEngine(
            stored.program(),
            matrices.lay_out(layout, memory[begins:]),
            half_cache=header["half_cache"],
        ),
        notes,
    )


def is_size(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MOST_NUMBERS


def tensor_shapes(shapes: Any) -> list[list[int]]:
    """The shapes of the small tensors."""
    require(isinstance(shapes, list), "its small tensors are not a list")
    for shape in shapes:
        require(
            isinstance(shape, list) and len(shape) <= 8 and all(map(is_size, shape)),
            "a small tensor has an impossible shape",
        )
        require(math.prod(shape) <= MOST_NUMBERS, "a small tensor is impossibly large")
    return shapes


def matrices_of(matrices: Any) -> list[Matrix]:
    require(
        isinstance(matrices, list)
        and all(isinstance(entry, list) and len(entry) == 5 for entry in matrices),
        "its matrices are not a list",
    )
    for name, _, rows, inputs, sensitive in matrices:
        require(isinstance(name, str) and type(sensitive) is bool, "a matrix has no name")
        require(
            is_size(rows, 1) and is_size(inputs, 1) and rows * inputs <= MOST_NUMBERS,
            "a matrix has an impossible size",
        )
    return [
        Matrix(name, rows, inputs, unreadable, sensitive)
        for name, _, rows, inputs, sensitive in matrices
    ]


def precisions_of(matrices: list[Any]) -> list[Precision]:
    names = [entry[1] for entry in matrices]
    require(
        all(isinstance(name, str) and name in PRECISIONS for name in names),
        "a matrix has an unknown precision",
    )
    return names


def tensors_in(memory: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The small tensors, each aligned to a cache line."""
    tensors = list[Tensor]()
    at = 0
    for shape in shapes:
        size = 4 * math.prod(shape)
        tensors.append(memory[at : at + size].view(torch.float32).view(tuple(shape)))
        at += rounded(size, LINE)
    return tensors


def stored_program(values: Any, named: list[Matrix], tensors: list[Tensor]) -> StoredProgram:
    is_complete = isinstance(values, dict) and values.keys() == set(FIELDS)
    require(is_complete, "its program is not complete")
    return decode_program(values, named, tensors)


def tidy(folder: Path) -> None:
    """Remove unfinished files of killed processes, and entries whose checkpoint is gone."""
    unfinished = [path for pattern in UNFINISHED for path in folder.glob(pattern)]
    for path in unfinished:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > HOUR:
                path.unlink()
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError, BrokenError, ValueError, TypeError, LookupError, RecursionError):
            with open_regular_file(path) as file:
                files = read_header(file)[0]["key"]["files"]
            if not any(os.path.exists(name) for name, *_ in files):
                path.unlink()


def size(folder: Path) -> tuple[int, int]:
    """The number of entries, and their size in bytes."""
    sizes = list[int]()
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)
