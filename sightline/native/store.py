"""Packed weights on disk: what an engine needs, in one file, so that the checkpoint need not be read again.

    magic · length of the header · its SHA-256 │ header (JSON) │ small tensors │ matrices, each its weights and its scales │ a page of zeros

The header has a key (what was packed, how and by which build), the program, and the size of all that follows it. Matrices are not
copied but mapped: processes share them, and memory holds what was touched. A file appears under its name when it is whole, or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import torch
from torch import Tensor

from sightline import kernels
from sightline.native import matrices
from sightline.native.engine import NativeEngine
from sightline.native.matrices import BEYOND, LINE, rounded
from sightline.native.program import Kept, Matrix, Program

FORMAT = 1
MAGIC, SUFFIX, UNFINISHED = b"SIGHTPAK", ".packed", ".unfinished"
START, MOST_HEADER = 48, 1 << 28
SPARE, HOUR = 1 << 30, 3600  # so much of the disk stays free; seconds after which an unfinished file has no writer any more
PAGE = 4096
DTYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8)}
APART = ("matrices", "kept")  # of a program: its large and small tensors

Key = dict[str, Any]


class BrokenError(Exception):
    """A file that is no store, or no whole one; the words say why."""


@dataclass(slots=True)
class Entry:
    """An engine from disk, and what was noted when it was packed."""

    engine: NativeEngine
    notes: list[str] = field(default_factory=list[str])


def key_of(**said: Any) -> Key:
    """What was packed, as plain values, and by which build: another one may lay matrices out differently."""
    sources = [str(kernels.ready().__file__), *sorted(map(str, Path(__file__).parent.glob("*.py")))]
    build = [(seen.st_size, seen.st_mtime_ns) for seen in map(os.stat, sources)]
    return plain({"format": FORMAT, "sightline": version("sightline"), "kernels": kernels.ready().kind(), "build": build} | said)


def plain(value: Any) -> Any:
    """Values as JSON has them; a small tensor by its number."""
    if isinstance(value, Kept):
        return {"kept": value.number}
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in cast(dict[Any, Any], value).items()}
    return [plain(one) for one in cast(Sequence[Any], value)] if isinstance(value, (list, tuple)) else value


def lively(value: Any) -> Any:
    """The reverse of `plain`."""
    if isinstance(value, dict):
        said = cast(dict[str, Any], value)
        return Kept(said["kept"]) if said.keys() == {"kept"} else {name: lively(one) for name, one in said.items()}
    return [lively(one) for one in cast(list[Any], value)] if isinstance(value, list) else value


def write(path: Path, key: Key, engine: NativeEngine, *, notes: Sequence[str] = ()) -> None:
    """Write an engine's weights. OSError where that cannot be done; then there is no file, or the one that was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.stem}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with unfinished.open("xb") as file:
            write_parts(file, key, engine, list(notes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_parts(file: BinaryIO, key: Key, engine: NativeEngine, notes: list[str]) -> None:
    said, packed = engine.program, matrices.span(engine.packed)
    small = [x.contiguous().flatten().view(torch.uint8) for x in said.kept]
    header: dict[str, Any] = {"key": key, "notes": notes, "half_cache": engine.half_cache}
    header["program"] = {one.name: plain(getattr(said, one.name)) for one in fields(said) if one.name not in APART}
    header["kept"] = [[str(x.dtype).removeprefix("torch."), list(x.shape)] for x in said.kept]
    pairs = zip(said.matrices, engine.packed, strict=True)
    header["matrices"] = [[one.name, packed.precision, one.rows, one.inputs, one.sensitive] for one, packed in pairs]
    header["size"] = rounded(sum(rounded(len(x), LINE) for x in small), PAGE) + len(packed) + BEYOND
    check_room(file, header["size"])
    text = json.dumps(header).encode()
    file.write(MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)
    align(file, PAGE)
    for part in small:
        file.write(part.numpy().data)
        align(file, LINE)
    align(file, PAGE)
    file.write(packed.numpy().data)
    file.write(bytes(BEYOND))


def check_room(file: BinaryIO, wanted: int) -> None:
    """A cache must not fill the disk."""
    if shutil.disk_usage(os.path.dirname(file.name)).free < wanted + SPARE:
        raise OSError(errno.ENOSPC, f"less than {(wanted + SPARE) / 1e9:.1f} GB are free")


def align(file: BinaryIO, to: int) -> None:
    file.write(bytes(-file.tell() % to))


def release(engine: NativeEngine) -> None:
    """Let go of the weights that an engine was packed from."""
    for one in engine.program.matrices:
        one.make = unreadable


def unreadable() -> Tensor:
    raise AssertionError("these weights are there in their packed form alone")


def read(path: Path, key: Key) -> Entry | None:
    """What was written under this key; None if there is no such file, or it was made from something else."""
    try:
        with open(path, "rb", opener=at_once) as file:
            header, start = read_header(file)
            return made(file, header, start) if header["key"] == key else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BrokenError(error.strerror or str(error)) from None
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise BrokenError(f"it says what cannot be ({type(error).__name__})") from None


def at_once(path: str, flags: int) -> int:
    """Opened without waiting, should it be a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header, and where the small tensors begin."""
    start = file.read(START)
    if len(start) < START or start[:8] != MAGIC:
        refuse("it does not begin as such a file does")
    length = int.from_bytes(start[8:16], "little")
    text = file.read(length) if length <= MOST_HEADER else b""
    if hashlib.sha256(text).digest() != start[16:]:
        refuse("its header is damaged")
    header = json.loads(text)
    begins, ends = rounded(START + length, PAGE), os.fstat(file.fileno()).st_size
    if ends != begins + header["size"]:
        refuse(f"it has {ends:,} bytes and should have {begins + header['size']:,}")
    return header, begins


def refuse(why: str) -> NoReturn:
    raise BrokenError(why)


def made(file: BinaryIO, header: dict[str, Any], at: int) -> Entry:
    """The engine over the mapped file."""
    memory = torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    kept = list[Tensor]()
    for kind, shape in header["kept"]:
        form = torch.empty(shape, dtype=DTYPES[kind], device="meta")
        kept.append(memory[at : at + form.nbytes].view(form.dtype).view(shape))
        at += rounded(form.nbytes, LINE)
    at, wanted = rounded(at, PAGE), [(precision, rows, inputs) for _, precision, rows, inputs, _ in header["matrices"]]
    if at + matrices.total(wanted) + BEYOND != len(memory):
        refuse("its matrices have other sizes than it says")
    named = [Matrix(name, rows, inputs, unreadable, sensitive) for name, _, rows, inputs, sensitive in header["matrices"]]
    said = Program(matrices=named, kept=kept, **lively(header["program"]))
    check_numbers(said.operations, len(named), len(kept))
    packed = matrices.laid_out(wanted, memory[at:])
    return Entry(NativeEngine(said, packed, half_cache=header["half_cache"]), header["notes"])


def check_numbers(said: Any, packed: int, kept: int) -> None:
    """The engine finds memory by these numbers, so none may be wrong."""
    if isinstance(said, Kept) and not 0 <= said.number < kept:
        refuse("a small tensor is missing")
    if isinstance(said, dict) and not 0 <= cast(dict[str, Any], said).get("matrix", 0) < packed:
        refuse("a matrix is missing")
    for one in cast(list[Any], list(said.values()) if isinstance(said, dict) else said if isinstance(said, list) else []):
        check_numbers(one, packed, kept)


def tidy(folder: Path) -> None:
    """Remove what processes that were killed have left, and entries whose checkpoint is gone."""
    for path in folder.glob(f"*{UNFINISHED}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > HOUR:
                path.unlink()
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError, BrokenError, ValueError, TypeError, LookupError):
            with open(path, "rb", opener=at_once) as file:
                files = read_header(file)[0]["key"]["files"]
            if not any(os.path.exists(name) for name, *_ in files):
                path.unlink()


def size(folder: Path) -> tuple[int, int]:
    """How many entries there are, and their bytes."""
    found = list[int]()
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            found.append(path.stat().st_size)
    return len(found), sum(found)
