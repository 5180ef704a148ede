"""The kind of a file, from its first bytes and never from its name; only regular files are
opened."""

from __future__ import annotations

import re
from pathlib import Path

from sightline.errors import CheckpointError
from sightline.files.checkpoint_files import open_checkpoint_file, printable_name

MOST_HEADER = (
    25_000_000  # 200,000 tensors; the format's own limit of 100 MB could need 1 GB once parsed
)
PREFIX_BYTES = 4096

MAGIC = (
    (b"GGUF", "a GGUF file"),
    (b"ggml", "an old GGML file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"%PDF", "a PDF"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a git-lfs pointer (the weights themselves were not downloaded)"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"#!", "a script"),
)
CTRANSLATE2 = "a CTranslate2 model"
PICKLE = re.compile(
    rb"\x80[\x00-\x05]|c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\((?:[dl]p?\d*\n?|i|c)|[\]}](?:q|\()"
)


def file_kind(path: Path) -> str:
    """`"safetensors"`, or a description such as `"a pickle"`, `"a zip archive"`; `""` if
    unknown."""
    try:
        with open_checkpoint_file(path) as file:
            return kind_from_bytes(file.read(PREFIX_BYTES))
    except OSError as error:
        raise CheckpointError(
            f"{printable_name(path)} cannot be read: {error.strerror}", fix="check the disk"
        ) from None


def kind_from_bytes(first: bytes) -> str:
    """The kind of a file that starts with these bytes."""
    if first[8:9] == b"{" and 2 <= int.from_bytes(first[:8], "little") <= MOST_HEADER:
        return "safetensors"
    for magic, name in MAGIC:
        if first.startswith(magic):
            return name
    if first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(first)
    if first[257:262] == b"ustar":
        return "a tar archive"
    if _is_ctranslate2(first):
        return CTRANSLATE2
    return "a pickle" if PICKLE.match(first) else ""


def _is_ctranslate2(first: bytes) -> bool:
    """Whether this is a version, then a zero-terminated specification name ("TransformerSpec")."""
    version = int.from_bytes(first[:4], "little")
    length = int.from_bytes(first[4:6], "little")
    return 1 <= version < 100 and 5 <= length <= 100 and first[6 : 6 + length].endswith(b"Spec\0")


def _zip_kind(first: bytes) -> str:
    name = first[30 : 30 + int.from_bytes(first[26:28], "little")]
    if b"archive_format" in name or b"models/" in name:
        return "a torch.export archive (.pt2)"
    if b"/code/" in first or b"constants.pkl" in first:
        return "a TorchScript archive"
    return "a torch archive (a pickle in a zip)" if name.endswith(b"data.pkl") else "a zip archive"
