"""The header of a GGUF file. The file is untrusted: every count, length and offset is checked
against its size before it is used.

magic "GGUF" · version · number of tensors · number of keys │ key, type, value … │ name, sizes,
type, offset … │ padding │ data
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from sightline.errors import CheckpointError
from sightline.files.mapped import MappedFile

STRING = 8
ARRAY = 9
LENGTH = struct.Struct("<Q")
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
MOST_KEYS = MOST_TENSORS = 100_000
MOST_STRINGS = 4_000_000
LONGEST_NAME = 65_535
LARGEST_ALIGNMENT = 65_536
READABLE = tuple(
    GGMLQuantizationType[name]
    for name in (
        "F32",
        "F16",
        "BF16",
        "Q8_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
    )
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in the file: shape in torch's order, ggml type, and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything before the data."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


class HeaderCursor:
    """Reads forward through the mapped file and never past its end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.at = 0
        self.bytes = file.part(0, len(file))

    def refuse(self, seen: str, expected: str = "") -> NoReturn:
        """Raise an error that names the file and the byte offset."""
        fix = "fetch the file again, or convert the model again"
        raise CheckpointError(
            f"{self.file.where}: {seen} (at byte {self.at})", expected=expected, fix=fix
        )

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes."""
        if length > len(self.bytes) - self.at:
            self.refuse(f"{what} needs {length} bytes, {len(self.bytes) - self.at} are left")
        self.at += length
        return self.bytes[self.at - length : self.at].tobytes()

    def number(self, format: str, what: str) -> int:
        """One little-endian integer."""
        return int(struct.unpack(format, self.take(struct.calcsize(format), what))[0])

    def text(self, what: str, longest: int | None = None) -> str:
        """A length, and that many bytes of UTF-8."""
        length = self.number("<Q", what)
        if longest is not None and length > longest:
            self.refuse(f"{what} is {length} bytes long", f"at most {longest}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{what} is not UTF-8")

    def value(self, key: str) -> Any:
        """A value of the type written before it."""
        kind = self.number("<I", f"the type of {key!r}")
        if kind == STRING:
            return self.text(f"the value of {key!r}")
        if kind == ARRAY:
            return self.array(key)
        return self.numbers(kind, 1, key)[0].item()

    def array(self, key: str) -> Any:
        """An array of strings (a list) or of numbers (NumPy); nested arrays are refused."""
        kind = self.number("<I", f"the type of {key!r}'s elements")
        count = self.number("<Q", f"the length of {key!r}")
        if kind != STRING:
            return self.numbers(kind, count, key)
        if count > min(MOST_STRINGS, (len(self.bytes) - self.at) // 8):
            self.refuse(
                f"{key!r} declares {count} strings",
                f"at most {MOST_STRINGS}, and no more than the file can hold",
            )
        return self.texts(key, count)

    def texts(self, key: str, count: int) -> list[str]:
        """`count` strings in sequence (fast: a vocabulary has 100,000). `text` reports the
        errors."""
        whole = self.bytes.data
        unpack = LENGTH.unpack_from
        strings = list[str]()
        last = len(whole) - LENGTH.size
        for place in range(count):
            start = self.at + LENGTH.size
            end = start + unpack(whole, self.at)[0] if self.at <= last else len(whole) + 1
            try:
                strings.append(
                    str(whole[start:end], "utf-8")
                    if end <= len(whole)
                    else self.text(f"{key}[{place}]")
                )
            except UnicodeDecodeError:
                strings.append(self.text(f"{key}[{place}]"))
            self.at = end
        return strings

    def numbers(self, kind: int, count: int, key: str) -> np.ndarray[Any, Any]:
        """`count` numbers of one of the scalar types."""
        if kind not in NUMBERS:
            self.refuse(
                f"{key!r} has the unknown type {kind}",
                f"{STRING}, {ARRAY} or one of {sorted(NUMBERS)}",
            )
        dtype = np.dtype(NUMBERS[kind])
        raw = self.take(count * dtype.itemsize, f"{key!r} with {count} values")
        return (
            np.frombuffer(raw, dtype=np.uint8).astype(bool)
            if dtype.kind == "b"
            else np.frombuffer(raw, dtype=dtype)
        )


def parse_gguf_header(file: MappedFile) -> GGUFHeader:
    """Read and check everything before the data."""
    cursor = HeaderCursor(file)
    version = _read_version(cursor)
    tensors = cursor.number("<Q", "the number of tensors")
    keys = cursor.number("<Q", "the number of keys")
    for count, most, what in ((tensors, MOST_TENSORS, "tensors"), (keys, MOST_KEYS, "keys")):
        if count > min(most, len(file) // 12):
            cursor.refuse(
                f"the file declares {count} {what}",
                f"at most {most}, and no more than the file can hold",
            )
    metadata = _read_metadata(cursor, keys)
    infos = [_read_tensor_info(cursor) for _ in range(tensors)]
    alignment = _data_alignment(cursor, metadata)
    start = -(-cursor.at // alignment) * alignment
    return GGUFHeader(version, metadata, _locate_tensors(cursor, infos, start, alignment))


def _read_version(cursor: HeaderCursor) -> int:
    """The magic and the version."""
    magic = cursor.take(4, "the magic")
    if magic != b"GGUF":
        cursor.refuse(f"begins with {magic!r}", "b'GGUF'")
    version = cursor.number("<I", "the version")
    if version in (0x02000000, 0x03000000):
        cursor.refuse("is a big-endian GGUF file", "a little-endian one")
    if version not in (2, 3):
        cursor.refuse(f"has GGUF version {version}", "version 2 or 3")
    return version


def _read_metadata(cursor: HeaderCursor, count: int) -> dict[str, Any]:
    """Keys and values; a repeated key is refused."""
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text("a key", LONGEST_NAME)
        if key in metadata:
            cursor.refuse(f"the key {key!r} comes twice")
        metadata[key] = cursor.value(key)
    return metadata


def _data_alignment(cursor: HeaderCursor, metadata: dict[str, Any]) -> int:
    """The alignment of tensor data."""
    alignment = metadata.get("general.alignment", 32)
    if (
        not isinstance(alignment, int)
        or not 0 < alignment <= LARGEST_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        cursor.refuse(
            f"general.alignment is {alignment!r}", f"a power of two up to {LARGEST_ALIGNMENT}"
        )
    return alignment


def _read_tensor_info(cursor: HeaderCursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, sizes (torch's order), type and offset of one tensor."""
    name = cursor.text("a tensor's name", 256)
    dimensions = cursor.number("<I", f"the dimensions of {name!r}")
    if not 1 <= dimensions <= 4:
        cursor.refuse(f"tensor {name!r} has {dimensions} dimensions", "1 to 4")
    sizes = [cursor.number("<Q", f"the sizes of {name!r}") for _ in range(dimensions)]
    kind = cursor.number("<I", f"the type of {name!r}")
    offset = cursor.number("<Q", f"the offset of {name!r}")
    return name, tuple(reversed(sizes)), kind, offset


def _locate_tensors(
    cursor: HeaderCursor,
    infos: list[tuple[str, tuple[int, ...], int, int]],
    start: int,
    alignment: int,
) -> dict[str, StoredTensor]:
    """Check types, sizes and offsets; no two tensors share a byte."""
    stored: dict[str, StoredTensor] = {}
    for name, shape, kind, offset in infos:
        if name in stored:
            cursor.refuse(f"tensor {name!r} comes twice")
        if offset % alignment:
            cursor.refuse(
                f"tensor {name!r} begins at offset {offset}", f"a multiple of {alignment}"
            )
        known = _tensor_type(cursor, name, kind)
        length = _tensor_bytes(cursor, name, shape, known)
        if start + offset + length > len(cursor.bytes):
            cursor.refuse(
                f"tensor {name!r} ends at byte {start + offset + length} of a file of"
                f" {len(cursor.bytes)}"
            )
        stored[name] = StoredTensor(name, shape, known, start + offset, length)
    ordered = sorted(
        (tensor for tensor in stored.values() if tensor.length), key=lambda tensor: tensor.start
    )
    for left, right in pairwise(ordered):
        if left.start + left.length > right.start:
            cursor.refuse(f"tensors {left.name!r} and {right.name!r} overlap")
    return stored


def _tensor_type(cursor: HeaderCursor, name: str, kind: int) -> GGMLQuantizationType:
    """A ggml type that can be decoded; others are refused."""
    if kind not in [known.value for known in READABLE]:
        known = {member.value: member.name for member in GGMLQuantizationType}
        cursor.refuse(
            f"tensor {name!r} has type {known.get(kind, kind)}",
            f"one of {', '.join(each.name for each in READABLE)}",
        )
    return GGMLQuantizationType(kind)


def _tensor_bytes(
    cursor: HeaderCursor, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> int:
    """Bytes of a tensor, from its sizes and its type's blocks."""
    block, size = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        cursor.refuse(
            f"tensor {name!r} has rows of {shape[-1]} numbers",
            f"a multiple of {kind.name}'s block of {block}",
        )
    length = size
    for count in (*shape[:-1], shape[-1] // block):
        length *= count
    if length > len(cursor.bytes):
        cursor.refuse(f"tensor {name!r} of shape {list(shape)} is larger than the file")
    return length


def gguf_header(path: Path) -> GGUFHeader:
    """The checked header of a GGUF file."""
    return parse_gguf_header(MappedFile(path))
