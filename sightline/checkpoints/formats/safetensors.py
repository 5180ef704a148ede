"""Safetensors files and their shard indices. They are untrusted: every byte of the file is
accounted for before a tensor is created.

    8 bytes: length of the header | header: {"name": {"dtype", "shape", "data_offsets"}} | the
    tensors' bytes, end to end

Reading maps the file copy-on-write: a tensor costs no memory until it is touched, and changing it
never changes the file. Reading the same entry twice gives two tensors over the same memory. A file
that changed since it was opened is refused when the next tensor is read; one that is cut short in
place while its tensors are in use ends the process, as every mapped file does.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.formats.magic import MOST_HEADER, PREFIX_BYTES, kind_from_bytes
from sightline.checkpoints.source import Entry
from sightline.errors import CheckpointError
from sightline.files.checkpoint_files import open_checkpoint_file, printable_name
from sightline.files.strict_json import parse_json, read_json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MOST_NAME = 512
MOST_DIMENSIONS = 16
AGAIN = "download the file again"

Open = Callable[[Path], dict[str, Entry]]
Identity = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """The position of a tensor in the data section, from the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """A file mapped into memory, and its identity at that time."""

    path: Path
    identity: Identity
    memory: mmap.mmap

    def check(self) -> None:
        """A file that was cut short or rewritten must not be read: its offsets mean nothing, and a
        missing page ends the process."""
        try:
            now = _identity(os.stat(self.path))
        except OSError as error:
            raise CheckpointError(
                f"{printable_name(self.path)} is gone since it was opened: {error.strerror}",
                fix="load the model again",
            ) from None
        if now != self.identity:
            raise CheckpointError(
                f"{printable_name(self.path)} changed since it was opened",
                fix="load the model again",
            )


def open_safetensors(path: Path | str) -> dict[str, Entry]:
    """The file's tensors by name, lazy."""
    mapped, spans, start = _open(Path(path))
    return {
        span.name: Entry(
            span.name, span.shape, span.dtype, partial(_read_tensor, mapped, span, start)
        )
        for span in spans
    }


def _open(path: Path) -> tuple[Mapped, list[Span], int]:
    with open_checkpoint_file(path) as file:
        try:
            stat = os.fstat(file.fileno())
            data = _header_bytes(path, file.fileno(), stat.st_size)
            memory = mmap.mmap(file.fileno(), stat.st_size, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise _bad(path, f"cannot be read: {error.strerror}") from None
    header = parse_json(data, f"{printable_name(path)}: the header (byte 8 on)")
    start = 8 + len(data)
    _check_metadata(path, header.get("__metadata__", {}))
    spans = [_span(path, name, entry) for name, entry in header.items() if name != "__metadata__"]
    _check_layout(path, spans, stat.st_size - start)
    return Mapped(path, _identity(stat), memory), spans, start


def _read_tensor(mapped: Mapped, span: Span, start: int) -> Tensor:
    """The tensor over the mapped bytes. A copy is made only if they are not aligned to the
    dtype."""
    mapped.check()
    if span.begin == span.end:
        return torch.empty(span.shape, dtype=span.dtype)
    count = math.prod(span.shape)
    offset = start + span.begin
    if offset % span.dtype.itemsize:
        data = bytearray(mapped.memory[offset : start + span.end])
        return torch.frombuffer(data, dtype=span.dtype, count=count).view(span.shape)
    return torch.frombuffer(mapped.memory, dtype=span.dtype, count=count, offset=offset).view(
        span.shape
    )


def _header_bytes(path: Path, descriptor: int, size: int) -> bytes:
    """The header's JSON, after the checks on its length."""
    first = os.pread(descriptor, PREFIX_BYTES, 0)
    length = int.from_bytes(first[:8], "little")
    what = kind_from_bytes(first)
    if what not in ("safetensors", ""):
        raise CheckpointError(
            f"{printable_name(path)} is {what}, not safetensors",
            expected="a safetensors file",
            fix=_fix_for(what),
        )
    if size < 8:
        raise _bad(path, f"the file is {size} bytes long, shorter than a header's length")
    if not 2 <= length <= MOST_HEADER:
        raise _bad(path, f"byte 0 declares a header of {length:,} bytes", f"2 to {MOST_HEADER:,}")
    if length > size - 8:
        raise _bad(
            path,
            f"the file is cut short: its header ends at byte {8 + length:,}, the file at {size:,}",
        )
    if first[8:9] != b"{":
        raise _bad(path, "the header does not start with '{' at byte 8")
    data = os.pread(descriptor, length, 8)
    if len(data) != length:
        raise _bad(
            path, f"the file changed while its header was read ({len(data):,} of {length:,} bytes)"
        )
    return data


def _fix_for(what: str) -> str:
    if "pickle" in what:
        return (
            "name it pytorch_model.bin and convert it: sightline convert FOLDER NEW --from-pickle"
        )
    return (
        "give the .gguf file itself to sightline"
        if what == "a GGUF file"
        else "download the model's safetensors files"
    )


def _check_metadata(path: Path, metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise _bad(path, "__metadata__ is not text", 'strings, as in {"format": "pt"}')


def _span(path: Path, name: str, entry: Any) -> Span:
    """One entry of the header, each value of the right type and in range."""
    if not 0 < len(name) <= MOST_NAME or not name.isprintable() or ".." in name:
        raise _bad(
            path,
            f"tensor name {printable_name(name)!r} is unusable",
            f"1 to {MOST_NAME} printable characters without '..'",
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(
            path, f"tensor {name}: entry is not complete", "exactly dtype, shape and data_offsets"
        )
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if (
        not _are_sizes(shape)
        or len(shape) > MOST_DIMENSIONS
        or math.prod(size or 1 for size in shape) >= 2**63
    ):
        raise _bad(
            path,
            f"tensor {name}: shape {printable_name(shape)} is impossible",
            f"up to {MOST_DIMENSIONS} sizes ≥ 0",
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _bad(
            path,
            f"tensor {name}: data_offsets {printable_name(offsets)} are impossible",
            "[begin, end], both ≥ 0",
        )
    span = Span(name, _dtype(path, name, entry["dtype"]), tuple(shape), *offsets)
    needs = math.prod(shape) * span.dtype.itemsize
    if span.end - span.begin != needs:
        seen = (
            f"tensor {name}: data_offsets {printable_name(offsets)} hold"
            f" {span.end - span.begin:,} bytes"
        )
        raise _bad(path, seen, f"{needs:,} for {entry['dtype']} {printable_name(shape)}")
    return span


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 2**63 for item in value
    )


def _dtype(path: Path, name: str, dtype: Any) -> torch.dtype:
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    fix = (
        "use the model's BF16, F16 or F32 files"
        if isinstance(dtype, str) and dtype[:2] in ("F8", "F4", "F6", "U4", "I4")
        else AGAIN
    )
    seen = f"{printable_name(path)}: tensor {name}: dtype {printable_name(dtype)} is not supported"
    raise CheckpointError(seen, expected=f"one of {' '.join(DTYPES)}", fix=fix)


def _check_layout(path: Path, spans: list[Span], size: int) -> None:
    """The tensors lie end to end: they start at 0, neither overlap nor leave holes, and end where
    the file ends."""
    at = 0
    before = ""
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        if span.end > size:
            raise _bad(
                path,
                f"the file is cut short: tensor {span.name} ends at offset {span.end:,}, the data"
                f" at {size:,}",
            )
        if span.begin < at:
            raise _bad(
                path,
                f"tensor {span.name} at offset {span.begin:,} overlaps {before}, which ends at"
                f" {at:,}",
            )
        if span.begin > at:
            raise _bad(
                path,
                f"there is a hole before tensor {span.name}: offsets {at:,} to {span.begin:,}"
                " belong to nothing",
            )
        at = span.end
        before = span.name
    if at != size:
        raise _bad(path, f"there are {size - at:,} bytes after the last tensor (offset {at:,})")


def open_shards(
    folder: Path | str,
    index_path: Path | str,
    *,
    open_shard: Open = open_safetensors,
    exact: bool = True,
) -> dict[str, Entry]:
    """The tensors of all shards that an index names; the index and the shards must agree tensor by
    tensor.

    `exact` also checks the index's total_size and the shards present in the folder.
    """
    folder = Path(folder)
    index_path = Path(index_path)
    homes, metadata = read_index(index_path)
    tensors: dict[str, Entry] = {}
    for shard, first in {home: name for name, home in reversed(homes.items())}.items():
        tensors |= _agreeing(
            index_path, shard, open_shard(_shard_file(folder, shard, first)), homes
        )
    if exact:
        _check_extra(folder, index_path, set(homes.values()))
        _check_total(index_path, metadata, tensors)
    return {name: tensors[name] for name in homes}


def read_index(index_path: Path) -> tuple[dict[str, str], Any]:
    """Which shard each tensor is in, and the index's metadata."""
    index = read_json(index_path, max_bytes=MOST_HEADER)
    homes = index.get("weight_map")
    if (
        not isinstance(homes, dict)
        or not homes
        or not all(isinstance(home, str) for home in homes.values())
    ):
        raise CheckpointError(
            f"{printable_name(index_path)} has no weight_map",
            expected='{"weight_map": {tensor: file}}',
            fix=AGAIN,
        )
    return homes, index.get("metadata")


def _agreeing(
    index_path: Path, shard: str, entries: dict[str, Entry], homes: dict[str, str]
) -> dict[str, Entry]:
    for name in entries:
        if name not in homes:
            raise CheckpointError(
                f"{printable_name(index_path)} does not name tensor {name}, which {shard} holds",
                fix=AGAIN,
            )
        if homes[name] != shard:
            seen = (
                f"{printable_name(index_path)} puts tensor {name} into"
                f" {printable_name(homes[name])}, but {shard}"
                " holds it as well"
            )
            raise CheckpointError(seen, expected="each tensor in one shard", fix=AGAIN)
    for name, home in homes.items():
        if home == shard and name not in entries:
            raise CheckpointError(
                f"{printable_name(index_path)} puts tensor {printable_name(name)} into"
                f" {shard}, which lacks it",
                fix=AGAIN,
            )
    return entries


def _shard_file(folder: Path, shard: str, tensor: str) -> Path:
    try:
        return file_inside(folder, shard)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error.seen} (the shard of tensor {printable_name(tensor)})",
            expected=error.expected,
            fix=error.fix,
        ) from None


def file_inside(folder: Path, name: str) -> Path:
    """The regular file of that plain name in the folder. A link may lead only into the folder, or
    to the hub cache's `blobs`."""
    if (
        not name
        or name != os.path.basename(name)
        or name in (".", "..")
        or "\\" in name
        or not name.isprintable()
    ):
        raise CheckpointError(
            f"the index of {printable_name(folder)} names {printable_name(name)!r}",
            expected="the plain name of a file in it",
            fix=AGAIN,
        )
    path = folder / name
    try:
        real = path.resolve(strict=True)
        home = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "a loop of symbolic links"
        raise CheckpointError(
            f"{printable_name(path)} is missing: {why}", fix="download the missing file"
        ) from None
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not real.is_relative_to(home) and not real.is_relative_to(blobs):
        raise CheckpointError(
            f"{printable_name(path)} is a link out of the folder",
            expected="a file inside it",
            fix="copy the file into the folder",
        )
    if not real.is_file():
        raise CheckpointError(
            f"{printable_name(path)} is not a regular file",
            expected="a file",
            fix="put the file itself there",
        )
    return path


def _check_extra(folder: Path, index_path: Path, used: set[str]) -> None:
    """Refuse a shard in the folder that the index does not name."""
    numbered = re.compile(r"(.+)-\d+-of-\d+\.safetensors")
    series = {match[1] for shard in used if (match := numbered.fullmatch(shard))}
    for name in _listing(folder):
        match = numbered.fullmatch(name)
        if match and match[1] in series and name not in used:
            tensor = next(iter(open_safetensors(file_inside(folder, name))), "none")
            raise CheckpointError(
                f"{printable_name(index_path)} does not name {printable_name(name)} (first"
                f" tensor: {tensor})",
                fix="remove it, or " + AGAIN,
            )


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(
            f"{printable_name(folder)} cannot be listed: {error.strerror}",
            fix="check its permissions",
        ) from None


def _check_total(index_path: Path, metadata: Any, tensors: dict[str, Entry]) -> None:
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return
    sizes = {name: entry.numbers * entry.dtype.itemsize for name, entry in tensors.items()}
    if total != sum(sizes.values()):
        largest = max(sizes, key=lambda name: sizes[name])
        seen = (
            f"{printable_name(index_path)} has total_size {printable_name(total)}, the shards hold"
            f" {sum(sizes.values()):,} bytes (most: {largest})"
        )
        raise CheckpointError(seen, fix=AGAIN)


def _identity(stat: os.stat_result) -> Identity:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _bad(path: Path, seen: str, expected: str = "") -> CheckpointError:
    return CheckpointError(f"{printable_name(path)}: {seen}", expected=expected, fix=AGAIN)
