"""`sightline translate` as a user meets it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

import sightline as sl
from sightline.cli.commands.run.translate import (
    alignment_lines,
    column_blocks,
    column_heading,
    weight_shade,
)
from sightline.cli.main import main
from sightline.cli.ui.input import split_lines
from sightline.engine.engine import NativeEngine
from sightline.kernels import library as kernels
from sightline.tasks.translate import Translation
from tests.support.scored_folder import SIZE, saved

LINES = ["the cat sat", "", "the dog, 猫"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(
        tmp_path_factory.mktemp("translate"),
        sl.encoder_decoder(**SIZE),
        decoder_start_token_id=5,
        eos_token_id=2,
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> sl.Model:
    return sl.load(folder)


def test_a_text_as_one(folder: Path, model: sl.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", str(folder), "the cat\nthe dog", "--max-tokens", "5"]) == 0
    captured = capsys.readouterr()
    result = model.translate("the cat\nthe dog", max_tokens=5)
    assert captured.out == result.text + "\n"
    assert ("cut after 5 tokens" in captured.err) == (not result.finished)


@pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
def test_the_native_engine_says_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[int]()
    call = NativeEngine.call
    monkeypatch.setattr(
        NativeEngine,
        "call",
        lambda self, *given, **named: (ran.append(1), call(self, *given, **named))[1],
    )
    output = [
        (main(["translate", str(folder), "the cat", *more]), capsys.readouterr().out)
        for more in ([], ["--engine", "native"])
    ]
    assert output[0] == output[1]
    assert ran
    assert main(["translate", str(folder), "the cat", "--engine", "native", "--dtype", "int9"]) != 0
    assert "int9" in capsys.readouterr().err


def test_json(folder: Path, model: sl.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "translate",
                str(folder),
                "the cat",
                "--max-tokens",
                "5",
                "--beams",
                "2",
                "--length-penalty",
                "0.5",
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    expected = model.translate("the cat", max_tokens=5, beams=2, length_penalty=0.5)
    assert (result["text"], result["tokens"], result["score"]) == (
        expected.text,
        expected.tokens,
        expected.score,
    )
    assert [(other["text"], other["score"]) for other in result["others"]] == expected.others
    assert (result["source_tokens"], result["target_tokens"]) == (
        expected.source_tokens,
        expected.target_tokens,
    )
    torch.testing.assert_close(
        torch.tensor(result["alignment"]), expected.alignment, atol=1e-6, rtol=0
    )


def test_a_file_is_translated_line_by_line(
    folder: Path, model: sl.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_bytes("\r\n".join([*LINES, ""]).encode())
    assert (
        main(
            [
                "translate",
                str(folder),
                "--file",
                str(tmp_path / "lines.txt"),
                "--max-tokens",
                "4",
                "--beams",
                "1",
            ]
        )
        == 0
    )
    expected = [model.translate(line, max_tokens=4, beams=1).text if line else "" for line in LINES]
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in expected)


def test_standard_input_too_and_json_has_a_line_each(
    folder: Path,
    model: sl.Model,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(LINES)))
    assert main(["translate", str(folder), "-", "--max-tokens", "4", "--json"]) == 0
    result = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one and one["text"] for one in result] == [
        model.translate(line, max_tokens=4).text if line else None for line in LINES
    ]


def test_the_models_own_beams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path, sl.encoder_decoder(**SIZE), decoder_start_token_id=5, num_beams=2)
    assert main(["translate", str(folder), "the cat", "--max-tokens", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["others"]) == 1


def translation(source: list[str], target: list[str], alignment: list[list[float]]) -> Translation:
    return Translation("", [], source, target, torch.tensor(alignment), 0.0, [], True)


def test_the_table_of_shades() -> None:
    result = translation(
        ["The", " cat", "</s>"],
        ["猫", "が", "</s>"],
        [[0.2, 0.79, 0.01], [0.3, 0.5, 0.2], [0.05, 0.05, 0.9]],
    )
    assert list(alignment_lines(result, width=80))[:-2] == [
        "     The cat </s>",
        "猫   ░░  ██  ·",
        "が   ▒▒  ▓▓  ░░",
        "</s> ·   ·   ██",
    ]


def test_wide_letters_stay_in_their_columns() -> None:
    source = ["猫", "が", "マット", "の", "a", "上", "</s>"]
    weights = [[1.0 if n == m else 0.0 for m in range(7)] for n in range(7)]
    lines = list(alignment_lines(translation(source, source, weights), width=80))[:8]
    starts = [cell_len(line[: line.index("██")]) for line in lines[1:]]
    heads = [cell_len(lines[0][: lines[0].index(name)]) for name in source]
    assert starts == heads


def test_a_source_that_is_too_wide_goes_on_below() -> None:
    source = [f"word{n}" for n in range(30)]
    lines = list(alignment_lines(translation(source, ["a", "b"], [[1 / 30] * 30] * 2), width=40))
    assert max(map(cell_len, lines[:-1])) <= 40
    assert " ".join(line.strip() for line in lines[:-1] if "word" in line).split() == source
    assert list(column_blocks([9, 3, 3], 5)) == [(0, 1), (1, 2), (2, 3)]


def test_nothing_invisible_in_a_heading() -> None:
    assert [column_heading(token) for token in (" cat", " ", "", "\x1b[31m", "\n")] == [
        "cat",
        "␣",
        "∅",
        "�[31m",
        "␣",
    ]
    assert [weight_shade(weight) for weight in (1.0, 0.75, 0.6, 0.3, 0.1, 0.0, float("nan"))] == [
        "██",
        "██",
        "▓▓",
        "▒▒",
        "░░",
        "· ",
        "? ",
    ]


def test_lines_end_at_a_line_feed_only() -> None:
    assert split_lines("a\r\nb\u2028c\x0bd\n\ne") == ["a", "b\u2028c\x0bd", "", "e"]
    assert split_lines("") == []
    assert split_lines("a\n") == ["a"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "no text; expected one of them"),
        (["the", "--file", "x.txt"], "a text and a file"),
        (["the", "--beams", "0"], "beams is 0"),
        (["the", "--max-tokens", "64"], "max_tokens is 64; expected 1 to 63"),
        (["the cat; " * 40], "for an encoder of 64"),
        ([" "], "an empty text"),
        (["--bems", "2", "the"], "no option is called --bems"),
    ],
)
def test_mistakes(
    line: list[str],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    as_users_run_it: None,
) -> None:
    assert main(["translate", str(folder), *line]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_a_mistake_in_a_file_is_said_with_its_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_text("the cat\n" + "the dog; " * 40)
    assert (
        main(["translate", str(folder), "--file", str(tmp_path / "lines.txt"), "--max-tokens", "3"])
        == 2
    )
    assert "error: line 2: a text of" in capsys.readouterr().err


def test_a_decoder_is_referred_to_generate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(saved(tmp_path, sl.gpt(**SIZE))), "the cat"]) == 2
    assert "use generate with this model" in capsys.readouterr().err
