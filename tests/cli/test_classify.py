"""`sightline classify` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sightline as sl
from sightline.cli.main import main
from tests.tasks.tiny_folders import bert

LABELS: dict[str, Any] = {
    "id2label": {0: "bad", 1: "good", 2: "neither"},
    "label2id": {"bad": 0, "good": 1, "neither": 2},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in ("Sequence", "Token")}
    for name, place in made.items():
        bert(place, f"BertFor{name}Classification", **LABELS)
    return made


def test_json_is_what_python_gives(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", str(folders["Sequence"]), "a good film", "the cat", "--json"]) == 0
    output = capsys.readouterr()
    expected = sl.load(folders["Sequence"]).classify(["a good film", "the cat"])
    assert [(row["label"], row["probabilities"]) for row in json.loads(output.out)] == [
        (one.label, one.probabilities) for one in expected
    ]
    assert "2 texts, " in output.err


def test_bars_start_with_the_most_likely_label(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", str(folders["Sequence"]), "a good film"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    result = sl.load(folders["Sequence"]).classify(["a good film"])[0].probabilities
    assert [(line[0], line[-1]) for line in lines] == [
        (f"{value:.1%}", label)
        for label, value in sorted(result.items(), key=lambda pair: -pair[1])
    ]
    assert all(line[1].count("█") == round(24 * result[line[-1]]) for line in lines)


def test_a_tagger_shows_its_tokens(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("the cat sat\na dog\n", encoding="utf-8")
    assert main(["classify", str(folders["Token"]), "--file", str(tmp_path / "texts.txt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "–" in line] == [
        "'the'",
        "'cat'",
        "'sat'",
        "'a'",
        "'dog'",
    ]
    assert main(["classify", str(folders["Token"]), "the cat", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)[0]
    assert result.keys() == {"text", "tokens", "runner"}
    assert [(token["start"], token["end"]) for token in result["tokens"]] == [(0, 3), (4, 7)]


@pytest.mark.parametrize(
    ("class_name", "words"),
    [
        ("BertModel", "Fix: sightline embed"),
        ("BertForMaskedLM", "Fix: sightline fill"),
        ("BertForQuestionAnswering", "finds answers"),
    ],
)
def test_other_models_are_referred_to_the_right_command(
    class_name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert(tmp_path, class_name)
    capsys.readouterr()
    assert main(["classify", str(tmp_path), "the cat"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err.splitlines()[-1]
    assert "Traceback" not in output.err
