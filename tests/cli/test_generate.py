"""`sightline generate`: what it says beside the text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.cells import cell_len

import sightline as sl
from sightline.cli.main import main
from tests.cli import terminal
from tests.support.scored_folder import SIZE, TEXT, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("generate"), sl.gpt(**SIZE))


def test_a_prompt_that_was_cut_is_noted_with_how_much(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = len(sl.load(folder).ids(TEXT * 3))
    assert main(["generate", str(folder), TEXT * 3, "--truncate", "left", "--max-tokens", "4"]) == 0
    assert (
        f"the first {tokens - 60} tokens of the prompt did not fit and were cut"
        in capsys.readouterr().err
    )
    assert (
        main(["generate", str(folder), "the cat", "--truncate", "left", "--max-tokens", "4"]) == 0
    )
    assert "cut" not in capsys.readouterr().err


def test_options_that_greedy_decoding_ignores_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "generate",
                str(folder),
                "the cat",
                "--top-p",
                "0.9",
                "--seed",
                "3",
                "--max-tokens",
                "2",
            ]
        )
        == 0
    )
    assert "decoding is greedy, so --top-p has no effect" in capsys.readouterr().err
    assert (
        main(
            [
                "generate",
                str(folder),
                "the cat",
                "--top-p",
                "0.9",
                "--temperature",
                "1",
                "--max-tokens",
                "2",
            ]
        )
        == 0
    )
    assert "note" not in capsys.readouterr().err


def test_a_fix_is_written_as_it_is_typed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "the cat", "--max-tokens", "500"]) == 2
    tokens = len(sl.load(folder).ids("the cat"))
    assert f"Fix: --max-tokens {64 - tokens}" in capsys.readouterr().err


def test_the_other_beams_have_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["generate", str(folder), "the cat", "--beams", "3", "--max-tokens", "3", "--json"])
        == 0
    )
    others = json.loads(capsys.readouterr().out)["others"]
    assert len(others) == 2
    assert all(set(other) == {"text", "score"} for other in others)


def test_alternatives_are_listed_on_a_terminal_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("generate", str(folder), "the cat", "--max-tokens", "3", "--show", "alternatives")
    result = sl.load(folder).generate("the cat", max_tokens=3, alternatives=5)
    assert main([*line]) == 0
    rows = capsys.readouterr().out.splitlines()[-3:]
    _, raw = terminal.run(*line, columns=120)
    *_, first, second, third, _ = terminal.visible(raw).splitlines()
    tokenizer = sl.load(folder).tokenizer
    assert tokenizer is not None
    for shown, piped, token, others in zip(
        (first, second, third), rows, result.tokens, result.alternatives, strict=True
    ):
        assert repr(tokenizer.token(token)) in shown
        assert [id for id, _ in others if repr(tokenizer.token(id)) not in shown] == []
        assert [
            id
            for id, log in others
            if f"{math.exp(log):.1%} {tokenizer.token(id)!r}" not in piped and id != token
        ] == []
    _, narrow = terminal.run(*line, columns=40)
    assert all(cell_len(line) <= 40 for line in terminal.visible(narrow).splitlines()[-4:-1])
