"""Extract known files from a wheel or a tarball.

Archives are untrusted: only the members listed in the catalogue are read, at most to the
catalogue's sizes. They are written to the catalogue's paths and kept only if their sha256 matches.
Links, devices and encrypted members are refused.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path
from typing import IO

from sightline.checkpoints.sources.catalogue import File
from sightline.errors import CheckpointError
from sightline.terminal.progress import Report

CHUNK = 1 << 20
MAX_SCANNED = 1 << 30  # bytes of a tarball to read before all members are found
ENCRYPTED = 0x1
ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    BadGzipFile,
    NotImplementedError,
)


class DamagedArchiveError(CheckpointError):
    """An archive that is damaged or lacks an expected file."""


def extract(archive: Path, files: Sequence[File], into: Path, *, report: Report) -> None:
    """Extract all files into a folder; raises unless every file is correct."""
    total = sum(file.size for file in files)
    done = 0
    missing = {file.member for file in files}
    with translate_errors(archive):
        for member, stream in open_members(archive, missing):
            missing = missing - {member}
            position = 0
            for file in sorted(
                (file for file in files if file.member == member), key=lambda file: file.offset
            ):
                skip(stream, file.offset - position)
                for size in extract_file(stream, file, into / file.path):
                    done += size
                    report(f"extracting {archive.name}", done, total)
                position = file.offset + file.size
    if missing:
        raise DamagedArchiveError(
            f"{archive} has no {min(missing)}", fix="delete it and download it again"
        )


@contextmanager
def translate_errors(archive: Path) -> Generator[None]:
    """Raise the readers' errors as a `DamagedArchiveError` that names the archive."""
    try:
        yield
    except ARCHIVE_ERRORS as error:
        raise DamagedArchiveError(
            f"{archive} is damaged: {error}", fix="delete it and download it again"
        ) from error


def open_members(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The members with these names, opened; missing ones are skipped."""
    return (
        tar_members(archive, names)
        if archive.name.endswith((".tgz", ".tar.gz"))
        else zip_members(archive, names)
    )


def zip_members(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        for name in sorted(set(names) & set(opened.namelist())):
            member = opened.getinfo(name)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG) or member.flag_bits & ENCRYPTED:
                raise DamagedArchiveError(
                    f"{name} in {archive} is a link or is encrypted",
                    expected="a regular file",
                    fix="delete the archive",
                )
            with opened.open(member) as stream:
                yield name, stream


def tar_members(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Read sequentially and stop when all members are found; the rest is never unpacked."""
    remaining = set(names)
    with tarfile.open(archive, "r|gz") as opened:
        for member in opened:
            if member.name in remaining:
                stream = opened.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise DamagedArchiveError(
                        f"{member.name} in {archive} is a link or a device",
                        expected="a regular file",
                        fix="delete the archive",
                    )
                yield member.name, stream
                remaining.remove(member.name)
            elif member.offset_data + member.size > MAX_SCANNED:
                raise DamagedArchiveError(
                    f"{archive} unpacks to more than {MAX_SCANNED:,} bytes",
                    fix="delete it and download it again",
                )
            if not remaining:
                return


def skip(stream: IO[bytes], count: int) -> None:
    """Skip bytes."""
    while count > 0 and (data := stream.read(min(CHUNK, count))):
        count -= len(data)


def extract_file(stream: IO[bytes], file: File, path: Path) -> Iterator[int]:
    """Copy one file, yielding the size of each chunk; the length and sha256 must match."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    left = file.size
    with path.open("xb") as out:
        while left and (data := stream.read(min(CHUNK, left))):
            out.write(data)
            digest.update(data)
            left -= len(data)
            yield len(data)
        out.flush()
        os.fsync(out.fileno())
    if left or digest.hexdigest() != file.sha256:
        seen = f"ends {left:,} bytes early" if left else f"has sha256 {digest.hexdigest()}"
        raise DamagedArchiveError(
            f"{file.member} {seen}",
            expected=file.sha256,
            fix="delete the archive and download it again",
        )


def sha256(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
