"""A hub's cache made of files, for tests that must not ask the hub."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from sightline.checkpoints.sources.reference import resolve
from sightline.errors import CheckpointError
from sightline.terminal.progress import silent

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}


def prepare(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, empty caches, no network."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("SIGHTLINE_HOME", str(place / "home"))
    monkeypatch.delenv("SIGHTLINE_ARCHIVES", raising=False)
    monkeypatch.delenv("SIGHTLINE_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "hub"))
    return place


def cache(
    place: Path,
    repository: str = "owner/name",
    files: dict[str, bytes] = FILES,
    *,
    ref: str = "main",
    commit: str = COMMIT,
) -> Path:
    """A model in the hub's cache, as the library lays it out: blobs, links to them, and refs."""
    storage = place / "hub" / f"models--{repository.replace('/', '--')}"
    for number, (name, data) in enumerate(files.items()):
        blob, link = storage / "blobs" / f"{number:040x}", storage / "snapshots" / commit / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (storage / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (storage / "refs" / ref).write_text(commit)
    return storage / "snapshots" / commit


def fails(reference: str | Path, *words: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve(reference, progress=silent)
    line = str(caught.value)
    assert "\n" not in line
    assert "Fix: " in line
    assert len(line) < 800
    assert all(word in line for word in words), line
    return line
