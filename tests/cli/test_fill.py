"""`sightline fill` as a user meets it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import sightline as sl
from sightline.cli.main import main
from sightline.text.tokenizer import Tokenizer
from tests.tasks.tiny_folders import LETTERS, SIGNS, SPECIAL, WORDS, bert, word_pieces


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("bert")
    bert(place, "BertForMaskedLM")
    return str(place)


def mistake(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["fill", *line]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in output.err
    return output.err.splitlines()[-1]


def test_json_is_what_python_gives(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fill", folder, "the [MASK] sat on ___", "--top-k", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == [
        {**asdict(filling), "runner": "torch"}
        for filling in sl.load(folder).fill("the [MASK] sat on ___", top_k=3)
    ]
    assert [(row["start"], row["end"], len(row["candidates"])) for row in result] == [
        (4, 10, 3),
        (18, 21, 3),
    ]


def test_a_folder_with_vocab_txt_alone_fills(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(folder) / name).read_bytes())
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*SPECIAL, *WORDS, *SIGNS, *LETTERS]) + "\n", encoding="utf-8"
    )
    result = [
        main(["fill", place, "the [MASK] sat on ___", "--json"]) or capsys.readouterr().out
        for place in (folder, str(tmp_path))
    ]
    assert result[0] == result[1]


def test_the_screen_has_the_text_and_bars(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fill", folder, "the capital of [MASK] is paris."]) == 0
    lines = capsys.readouterr().out.splitlines()
    filling = sl.load(folder).fill("the capital of [MASK] is paris.")[0]
    assert lines[0] == filling.text
    assert [line.split()[-1] for line in lines[2:]] == [
        repr(one.text) for one in filling.candidates
    ]
    assert [line.split()[0] for line in lines[2:]] == [
        f"{one.probability:.1%}" for one in filling.candidates
    ]
    assert main(["fill", folder, "[MASK] and [MASK]"]) == 0
    assert "mask 2, characters 11 to 17" in capsys.readouterr().out


def test_standard_input_and_files(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("the ___ sat\n", encoding="utf-8")
    assert main(["fill", folder, "--file", str(tmp_path / "text.txt"), "--json"]) == 0
    by_file = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("the ___ sat\n"))
    assert main(["fill", folder, "-", "--json"]) == 0
    assert capsys.readouterr().out == by_file
    assert json.loads(by_file)[0]["text"] == sl.load(folder).fill("the ___ sat")[0].text


def test_mistakes(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no text; expected a text, --file FILE" in mistake(capsys, folder)
    assert "no mask in 'the cat'" in mistake(capsys, folder, "the cat")
    for count in ("0", "-2", "100000"):
        assert f"top_k is {count}; expected 1 to" in mistake(
            capsys, folder, "a [MASK]", "--top-k", count
        )
    assert "'1.5' is not an integer" in mistake(capsys, folder, "a [MASK]", "--top-k", "1.5")
    assert "no option is called '--tpk'" in mistake(capsys, folder, "--tpk")


def test_a_model_that_cannot_fill_is_refused_by_its_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word_pieces(tmp_path / "tokenizer")
    transformer = sl.build(
        sl.gpt(width=16, layers=1, heads=2, vocab_size=100, max_positions=16)
    ).eval()
    folder = sl.Model(transformer, Tokenizer.from_folder(tmp_path / "tokenizer")).save(
        tmp_path / "gpt"
    )
    save_file(
        {"other": torch.zeros(1)}, folder / "model.safetensors"
    )  # weights that no one could load
    capsys.readouterr()
    seen = "filling in masks with a model that continues text; expected a masked language model, such as BERT"
    fix = f'Fix: sightline fill bert-tiny …; this model answers sightline generate {folder} "The capital of France is"'
    assert mistake(capsys, str(folder), "a [MASK]") == f"error: {seen}. {fix}"
