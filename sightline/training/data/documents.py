"""Read text files as documents, in chunks: memory grows neither with the file nor with its longest
line.

Files are UTF-8, with or without a byte-order mark. CRLF and CR become \\n. Any other file (empty,
UTF-16, binary) is an error that names the file and its kind.
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

READ = 1 << 20  # bytes per read
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Source:
    """A validated text file."""

    path: Path
    size: int
    sha256: str


def examine(path: Path, report: Report = silent) -> Source:
    """Check that a file is UTF-8 text, and compute its size and digest."""
    total = check_text_file(path).stat().st_size
    digest = hashlib.sha256()
    at = 0
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    characters = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(READ):
                characters += len(_decode(path, decoder, chunk, at))
                digest.update(chunk)
                at += len(chunk)
                report(f"reading {path.name}", at, total)
        _decode(path, decoder, b"", at, final=True)
    except OSError as error:
        raise InputError(
            f"{printable_name(path)}: cannot be read ({error.strerror})", expected="a text file"
        ) from None
    if not characters:
        raise InputError(f"{printable_name(path)}: is empty", expected="a text file")
    return Source(path, at, digest.hexdigest())


def _decode(
    path: Path, decoder: codecs.IncrementalDecoder, chunk: bytes, at: int, *, final: bool = False
) -> str:
    """The text of a chunk that begins at byte `at`; an InputError if it is not UTF-8 text."""
    if at == 0 and chunk.startswith(UTF16):
        raise InputError(
            f"{printable_name(path)}: is UTF-16",
            expected="text in UTF-8",
            fix=f"iconv -f utf-16 -t utf-8 {printable_name(path.name)}",
        )
    zero = chunk.find(b"\0")
    if zero >= 0:
        kind = kind_from_bytes(chunk[:4096]) if at == 0 else ""
        raise InputError(
            f"{printable_name(path)}: byte {at + zero:,} is zero: this is"
            f" {kind or 'binary, or text in UTF-16 or UTF-32'}",
            expected="text in UTF-8",
            fix="leave the file out",
        )
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        position = at - pending + error.start
        raise InputError(
            f"{printable_name(path)}: byte {position:,} is not UTF-8",
            expected="text in UTF-8",
            fix=f"iconv -f latin1 -t utf-8 {printable_name(path.name)}, if the file is Latin-1",
        ) from None


def chunks(source: Source) -> Iterator[bytes]:
    """The bytes of a file, then b"" once its digest has been verified."""
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
            expected="a file that does not change",
            fix="try again when no other program writes to it",
        )
    yield b""


def parts(
    source: Source, separator: str, tick: Callable[[int], None] = lambda size: None
) -> Iterator[str | None]:
    """The text in parts, and None at the end of each document. Separators are dropped."""
    # `examine` has checked the encoding. Invalid bytes now mean a changed file: `chunks` raises.
    utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
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
    """`parts`, without empty parts and empty documents."""
    started = False
    for part in parts(source, separator, tick):
        if part is None and started:
            yield None
        elif part:
            yield part
        started = part is not None and (started or bool(part))
