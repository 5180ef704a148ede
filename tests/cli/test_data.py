"""`sightline data` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sightline.cli.main import main
from sightline.text.training.subwords import save_tokenizer, train_tokenizer


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    Path("book.txt").write_text(
        "the cat sat on the mat\n\n\nthe dog lay by the door " * 30, encoding="utf-8"
    )
    return tmp_path


def mistake(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["data", *line]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert output.err.splitlines()[-1].startswith("error: ")
    return output.err.splitlines()[-1].removeprefix("error: ")


def prepared(*line: str) -> Path:
    assert main(["data", "prepare", "book.txt", "--out", "made", *line]) == 0
    return Path("made")


def test_prepare_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    prepared("--tokenizer", "characters")
    output = capsys.readouterr()
    assert "tokenizing" not in output.out
    assert output.err
    lines = dict(line.split(maxsplit=1) for line in output.out.splitlines())
    assert lines["folder"] == "made"
    assert lines["files"].startswith("1 (1.5 kB): book.txt")
    assert lines["tokens"] == "1,397 for training, 74 held out (the last 5 % of the tokens)"
    assert lines["tokenizer"].startswith("characters, 19 tokens, uint16")
    assert main(["data", "show", "made"]) == 0
    again = capsys.readouterr()
    assert again.out == output.out
    assert again.err == ""


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    prepared("--vocab", "270", "--json", "--document-separator", r"\n\n\n", "--validation", "0.2")
    sheet = json.loads(capsys.readouterr().out)
    assert sheet["folder"] == "made"
    assert sheet["separator"] == "\n\n\n"
    assert sheet["documents"] == 31
    assert sheet["vocab_size"] == 270
    assert sheet["sample"]["text"] == "the cat sat on the mat"
    tokens = np.fromfile("made/train.tokens", dtype="uint16")
    assert len(tokens) == sheet["tokens"]["train"]
    assert tokens[: len(sheet["sample"]["tokens"])].tolist() == sheet["sample"]["tokens"]
    assert main(["data", "show", "made", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sheet


def test_another_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    save_tokenizer(train_tokenizer(["book.txt"], vocab_size=265), "tokenizer")
    prepared("--tokenizer", "tokenizer")
    assert "given, 265 tokens" in capsys.readouterr().out
    assert Path("made/tokenizer.json").read_bytes() == Path("tokenizer/tokenizer.json").read_bytes()


def test_files_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("held.txt").write_text("a mat", encoding="utf-8")
    prepared("--tokenizer", "characters", "--validation-file", "held.txt")
    assert "6 held out (whole files)" in capsys.readouterr().out


def test_overwriting(capsys: pytest.CaptureFixture[str]) -> None:
    prepared("--tokenizer", "characters")
    capsys.readouterr()
    assert "made: already exists" in mistake(
        capsys, "prepare", "book.txt", "--out", "made", "--tokenizer", "characters"
    )
    prepared("--tokenizer", "characters", "--overwrite")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ((), "nothing to do; expected prepare or show"),
        (("prepar",), "no command 'prepar'. Fix: did you mean 'prepare'?"),
        (("prepare", "--out", "x"), "no text to prepare"),
        (("prepare", "nowhere.txt", "--out", "x"), "nowhere.txt: cannot be read"),
        (("prepare", "empty.txt", "--out", "x"), "empty.txt: is empty"),
        (("prepare", "wide.txt", "--out", "x"), "wide.txt: is UTF-16"),
        (("prepare", "picture.png", "--out", "x"), "picture.png: byte 4 is zero"),
        (("prepare", "book.txt", "--out", "x", "--vocab", "90000"), "Fix: --vocab"),
        (("prepare", "book.txt", "--out", "x", "--vocab", "1e3"), "'1e3' is not an integer"),
        (("prepare", "book.txt", "--out", "x", "--validation", "nan"), "validation is nan"),
        (
            ("prepare", "book.txt", "--out", "x", "--validation", "2"),
            "expected a share from 0 to 0.5",
        ),
        (
            (
                "prepare",
                "book.txt",
                "--out",
                "x",
                "--validation",
                "0.1",
                "--validation-file",
                "book.txt",
            ),
            "both --validation and",
        ),
        (
            ("prepare", "book.txt", "--out", "x", "--tokenizer", "characters", "--vocab", "300"),
            "leave --vocab out",
        ),
        (("prepare", "book.txt", "--out", "x", "--tokenizer", "."), "has no tokenizer"),
        (("prepare", "book.txt", "--out", "x", "--tokenizer", "nosuchmodel"), "nosuchmodel"),
        (("prepare", "book.txt", "--out", "book.txt"), "book.txt: already exists"),
        (
            ("prepare", "book.txt", "--out", "book.txt/x", "--tokenizer", "characters"),
            "cannot be written",
        ),
        (("show", "nowhere"), "has no data.json"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], line: tuple[str, ...], message: str) -> None:
    Path("empty.txt").touch()
    Path("wide.txt").write_text("wide", encoding="utf-16")
    Path("picture.png").write_bytes(b"\x89PNG\0\0")
    before = sorted(path.name for path in Path().iterdir())
    assert message in mistake(capsys, *line)
    assert sorted(path.name for path in Path().iterdir() if path.name != "home") == before


def test_a_harmed_folder(capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepared("--tokenizer", "characters")
    capsys.readouterr()
    (folder / "validation.tokens").write_bytes(b"")
    assert "validation.tokens was changed or truncated" in mistake(capsys, "show", "made")
