"""`sightline score` as a user meets it."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

import sightline as sl
from sightline.cli.commands.run.score import show_tokens
from sightline.cli.main import main
from sightline.cli.ui.output import progress_bar
from tests.support.scored_folder import SIZE, TEXT, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("score"), sl.gpt(**SIZE))


def test_the_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(folder), TEXT]) == 0
    captured = capsys.readouterr()
    result = sl.load(folder).score(TEXT)
    lines = captured.out.splitlines()
    assert (
        lines[0]
        == f"log-likelihood  {result.total:.4f} nats, {result.scored} of {result.scored + 1} tokens"
    )
    assert lines[1] == f"perplexity      {result.perplexity:.4f}"
    assert lines[2] == f"bits per byte   {result.bits_per_byte:.4f}, {result.bytes} bytes"
    assert "tokens/s" in captured.err


def test_json_from_a_file_and_from_standard_input(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = TEXT * 4 + "\r\n"
    (tmp_path / "long.txt").write_bytes(text.encode())
    assert (
        main(
            ["score", str(folder), "--file", str(tmp_path / "long.txt"), "--stride", "9", "--json"]
        )
        == 0
    )
    result, expected = json.loads(capsys.readouterr().out), sl.load(folder).score(text, stride=9)
    assert result["tokens"] == expected.tokens
    assert len(expected.tokens) > 64
    assert result["logprobs"] == expected.logprobs
    assert result["logprobs"][0] is None
    assert (result["perplexity"], result["bytes"]) == (
        expected.perplexity,
        len(text.encode()) - len("the"),
    )
    assert math.isclose(result["bits_per_byte"], -result["total"] / math.log(2) / result["bytes"])
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["score", str(folder), "-", "--stride", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["logprobs"] == result["logprobs"]


def test_without_colours_each_token_has_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(folder), "the dog", "--show", "tokens"]) == 0
    model = sl.load(folder)
    expected = [
        f"{'–' if p is None else f'{p:.4f}':>10}  {model.tokenizer.token(id)!r}"
        for id, p in zip(*scores(model), strict=True)
    ]
    assert capsys.readouterr().out.splitlines()[:-3] == expected


def scores(model: sl.Model) -> tuple[list[int], list[float | None]]:
    result = model.score("the dog")
    return result.tokens, result.logprobs


def test_with_colours_it_is_the_text(folder: Path) -> None:
    model, text = sl.load(folder), "the 猫🙂 é, dog"
    colours, screen = io.StringIO(), io.StringIO()
    show_tokens(
        Console(file=colours, force_terminal=True, color_system="truecolor", width=80),
        model.tokenizer,
        text,
        model.score(text),
    )
    assert "\x1b[38;2;" in colours.getvalue()
    Console(file=screen, width=80, highlight=False).print(
        __import__("rich").text.Text.from_ansi(colours.getvalue())
    )
    assert screen.getvalue().strip() == text


def test_a_bar_takes_nothing_from_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as shown:
        shown.add_task("scoring", total=3)
        print("a result")
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert "0/3" in captured.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "no text; expected a text, --file FILE, or -"),
        (["the", "--file", "x.txt"], "a text and a file"),
        (["--file", "none.txt"], "none.txt cannot be read as text: No such file"),
        ([""], "an empty text"),
        (["the cat", "--stride", "64"], "stride is 64; expected 1 to 63"),
        (["the", "--stride", "x"], "not an integer"),
        (["--strid", "3"], "no option is called --strid"),
        (["the", "--source", "le"], "a source for a model with one stack"),
    ],
)
def test_mistakes(
    line: list[str],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    as_users_run_it: None,
) -> None:
    assert main(["score", str(folder), *line]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert captured.out == ""


def test_a_text_may_begin_with_a_hyphen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(folder), "- the cat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == sl.load(folder).tokenizer.encode(
        "- the cat"
    )


def test_a_target_given_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path, sl.encoder_decoder(**SIZE), decoder_start_token_id=5)
    assert main(["score", str(folder), "the dog", "--source", "the cat", "--json"]) == 0
    result, model = json.loads(capsys.readouterr().out), sl.load(folder)
    source, target = (model.tokenizer.encode(text) for text in ("the cat", "the dog"))
    with torch.no_grad():
        logs = model.transformer(torch.tensor([[5, *target[:-1]]]), source=torch.tensor([source]))[
            0
        ].log_softmax(-1)
    assert result["tokens"] == target
    assert result["logprobs"] == pytest.approx(
        [float(logs[n, id]) for n, id in enumerate(target)], abs=1e-5
    )
