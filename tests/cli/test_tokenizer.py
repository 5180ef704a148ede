"""`sightline tokenizer` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

import sightline as sl
from sightline.cli.main import main
from sightline.text.tokenizer import Tokenizer
from tests.cli import terminal
from tests.support.tokenizer_files import spelling


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    words = [
        f"{first}{middle}{last}" for first in "bcdfg" for middle in "aeiou" for last in "lmnrst"
    ]
    Path("book.txt").write_text(
        "the cat sat on the mat " * 50 + " ".join(words * 5), encoding="utf-8"
    )
    return tmp_path


def mistake(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["tokenizer", *line]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in output.err
    return output.err.splitlines()[-1].removeprefix("error: ")


def test_train_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "train", "book.txt", "--vocab", "270", "--out", "made"]) == 0
    assert capsys.readouterr().out == "made\n"
    assert main(["tokenizer", "show", "made", "the cat 猫"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "position", "token", "characters"]
    assert "'the'" in lines[1]
    assert [line.split()[-1] for line in lines[-3:]] == ["'猫'"] * 3
    assert r"\\xe7" in lines[-3]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "tokenizer",
                "train",
                "book.txt",
                "book.txt",
                "--vocab",
                "265",
                "--kind",
                "unigram",
                "--out",
                "made",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"path": "made", "kind": "unigram", "tokens": 265}
    assert main(["tokenizer", "show", "made", "a 猫", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["begin"], row["end"], row["characters"]) for row in rows][-1] == (2, 3, "猫")
    assert rows[0].keys() == {"id", "begin", "end", "token", "characters"}


def test_an_empty_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "train", "book.txt", "--vocab", "270", "--out", "made"]) == 0
    capsys.readouterr()
    assert main(["tokenizer", "show", "made", "", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "train book.txt --vocab 100 --out made",
            "a vocabulary of 100; expected 260 (every byte and 4 more) to 1,000,000. Fix: --vocab 260",
        ),
        ("train book.txt --vocab 1e3 --out made", "1e3"),
        (
            "train missing.txt --out made",
            "missing.txt: cannot be read (No such file or directory); expected a text file",
        ),
        ("train --out made", "no text to learn from; expected at least one file"),
        ("train book.txt", "--out"),
        ("train book.txt --out book.txt", "book.txt: is a file; expected a folder"),
        ("train book.txt --out made", "the texts have only"),
        ("train book.txt --kind word --out made", "word"),
        ("show . text", ""),
        ("show missing text", "missing"),
        ("shwo . text", "sightline tokenizer has no command 'shwo'. Fix: did you mean 'show'?"),
        ("", "nothing to do; expected train or show. Fix: sightline tokenizer --help"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert message in mistake(capsys, *line.split())
    assert not Path("made").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "--help"]) == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert "show" in out


def test_a_panic_in_rust_is_one_line_on_a_terminal(tmp_path: Path) -> None:
    """A decoder that cuts more letters off than a piece has panics; Rust would print that, with a
    backtrace."""
    decoder = {"type": "Strip", "content": "a", "start": 5, "stop": 5}
    made = tokenizers.Tokenizer.from_str(json.dumps(spelling(decoder=decoder)))
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None
    model = sl.build(
        sl.gpt(width=8, layers=1, heads=2, vocab_size=tokenizer.vocab_size, max_positions=16)
    ).eval()
    for parameter in model.parameters():
        parameter.data.zero_()  # so that the token is always a
    folder = sl.Model(model, tokenizer).save(tmp_path / "model")
    code, raw = terminal.run(
        "generate", str(folder), "abab", "--max-tokens", "3", RUST_BACKTRACE="1"
    )
    assert code == 2
    assert [line[:7] for line in raw.splitlines() if line] == ["error: "]
