"""Text files as documents, a part at a time: the memory does not grow with a file, nor with its
longest line.

Files are UTF-8, with or without a byte-order mark. The line ends of Windows and of old Macs become
\\n. Whatever else a file is (empty, UTF-16, binary) is said in one line that names it.
"""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sightline.checkpoints.formats.magic import kind_from_bytes
from sightline.errors import InputError
from sightline.files.checkpoint_files import printable_name
from sightline.terminal.progress import Report, silent
from sightline.text.training.subwords import check_text_file
from sightline.training.data.chunk_encoders import cut

READ = 1 << 20  # bytes at once
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Source:
    """A text file that was looked through."""

    path: Path
    size: int
    sha256: str


def examine(path: Path, report: Report = silent) -> Source:
    """Look through a file: is it text in UTF-8, and which?"""
    total = check_text_file(path).stat().st_size
    digest = hashlib.sha256()
    at = 0
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    letters = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(READ):
                letters += len(_decoded(path, decoder, chunk, at))
                digest.update(chunk)
                at += len(chunk)
                report(f"reading {path.name}", at, total)
        _decoded(path, decoder, b"", at, final=True)
    except OSError as error:
        raise InputError(
            f"{printable_name(path)}: cannot be read ({error.strerror})", expected="a text file"
        ) from None
    if not letters:
        raise InputError(f"{printable_name(path)}: is empty", expected="a text file")
    return Source(path, at, digest.hexdigest())


def _decoded(
    path: Path, decoder: codecs.IncrementalDecoder, chunk: bytes, at: int, *, final: bool = False
) -> str:
    """The text of a chunk that begins at byte `at`; what is no text is refused."""
    if at == 0 and chunk.startswith(UTF16):
        raise InputError(
            f"{printable_name(path)}: is UTF-16",
            expected="text in UTF-8",
            fix=f"iconv -f utf-16 -t utf-8 {printable_name(path.name)}",
        )
    zero = chunk.find(b"\0")
    if zero >= 0:
        what = (
            kind_from_bytes(chunk[:4096]) if at == 0 else ""
        ) or "binary, or text in UTF-16 or UTF-32"
        raise InputError(
            f"{printable_name(path)}: byte {at + zero:,} is zero: this is {what}",
            expected="text in UTF-8",
            fix="leave it out",
        )
    held = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        place = at - held + error.start
        fix = f"iconv -f latin1 -t utf-8 {printable_name(path.name)}, if that is what it is"
        raise InputError(
            f"{printable_name(path)}: byte {place:,} is no UTF-8", expected="text in UTF-8", fix=fix
        ) from None


def chunks(source: Source) -> Iterator[bytes]:
    """The bytes of a file that is still what it was when it was looked through, then nothing."""
    digest = hashlib.sha256()
    try:
        with source.path.open("rb") as file:
            while chunk := file.read(READ):
                digest.update(chunk)
                yield chunk
    except OSError as error:
        raise InputError(
            f"{printable_name(source.path)}: cannot be read ({error.strerror})",
            expected="a text file",
        ) from None
    if digest.hexdigest() != source.sha256:
        raise InputError(
            f"{printable_name(source.path)}: changed while it was read",
            expected="one text",
            fix="once more, when nobody writes to it",
        )
    yield b""


def parts(
    source: Source, separator: str, tick: Callable[[int], None] = lambda size: None
) -> Iterator[str | None]:
    """The text in parts, and None at the end of each document. A separator belongs to no
    document."""
    utf8 = codecs.getincrementaldecoder("utf-8-sig")(
        "replace"
    )  # it was looked through; what is no UTF-8 now has changed
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    rest = ""
    for chunk in chunks(source):
        rest += decoder.decode(chunk, final=not chunk)
        *ended, rest = rest.split(separator) if separator else [rest]
        for document in ended:
            yield from (document, None)
        if chunk:
            part, rest = cut(rest, keep=len(separator))
            yield part
        tick(len(chunk))
    yield from (rest, None)


def documents(
    source: Source, separator: str, tick: Callable[[int], None] = lambda size: None
) -> Iterator[str | None]:
    """The same without parts and documents that are empty."""
    begun = False
    for part in parts(source, separator, tick):
        if part is None and begun:
            yield None
        elif part:
            yield part
        begun = part is not None and (begun or bool(part))
