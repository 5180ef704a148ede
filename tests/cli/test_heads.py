"""`sightline heads` as a user meets it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.cli.commands.see.heads import COLOURS, FEW, LETTERS, heads_dict
from sightline.cli.main import main
from sightline.kernels import library as kernels
from sightline.lens.heads import profile, relations
from sightline.lens.heads.profile import heads_of
from sightline.lens.heads.relations import relations_of
from sightline.lens.heads.roles import ROLES
from sightline.text.tokenizer import Tokenizer
from tests.cli import terminal
from tests.tasks.tiny_folders import bert, word_pieces

TEXT = "the cat sat on the mat, and the dog sat on the log."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A decoder that reads words and letters, with a head that has something to say."""
    place = tmp_path_factory.mktemp("heads")
    word_pieces(place / "tokenizer")
    tokenizer = Tokenizer.from_folder(place / "tokenizer")
    assert tokenizer is not None
    torch.manual_seed(0)
    model = sl.build(
        sl.gpt(width=16, layers=3, heads=2, vocab_size=tokenizer.vocab_size, max_positions=128)
    ).eval()
    return str(sl.Model(model, tokenizer).save(place / "model"))


def output(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["heads", *line]) == 0
    return capsys.readouterr().out


def mistake(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["heads", *line]) == 2
    result = capsys.readouterr()
    assert result.out == ""
    assert "Traceback" not in result.err
    return result.err.splitlines()[-1]


def test_every_role_has_a_letter_and_a_colour_of_its_own() -> None:
    assert set(LETTERS) == set(COLOURS) == set(ROLES)
    assert len(set(LETTERS.values())) == len(set(COLOURS.values())) == len(ROLES)


def test_the_map_has_a_letter_for_each_head(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output(capsys, folder, TEXT)
    result = heads_of(sl.load(folder), TEXT)
    lines = out.splitlines()
    assert "decoder: layers down, heads across" in lines[0]
    for row, line in zip(result.grid("decoder"), lines[2:5], strict=True):
        sink = sum(head.sink for head in row) / 2
        assert line.split() == [
            str(row[0].layer),
            *(LETTERS[head.role] for head in row),
            f"{sink:.0%}",
        ]
    for head in {head.role for head in result.heads}:
        assert re.search(rf"^{re.escape(LETTERS[head])}  {head} +\d", out, re.MULTILINE)
    assert f"measured on: {TEXT!r} and random tokens, repeated (82 tokens, 60 tokens)" in out


def test_json_is_what_python_gives(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(output(capsys, folder, TEXT, "--json", "--seed", "3"))
    model = sl.load(folder)
    assert result.pop("runner") == model.runner.name
    assert result == json.loads(json.dumps(heads_of(model, TEXT, seed=3).to_dict()))
    assert result["seed"] == 3


def test_relations_stand_below(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, folder, TEXT, "--relations")
    result = relations_of(sl.load(folder))
    for one in result.relations:
        assert f"{one.title}: {one.links} links" in out
        best = one.top[0]
        assert one.links < FEW or re.search(
            rf"  {best.stack} {best.layer}\.{best.head} +{best.rate:.0%} ", out
        )
    assert "attention from the noun to its adjective" in out
    model = heads_of(sl.load(folder), TEXT)
    assert heads_dict(model, result)["relations"] == result.to_dict()["relations"]
    assert "relations" not in heads_dict(model, None)


def test_standard_input_and_our_text(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert output(capsys, folder, "-", "--json") == output(capsys, folder, TEXT, "--json")
    assert "lighthouse" in output(capsys, folder)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_picture(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    file = tmp_path / f"map.{ending}"
    assert f"drawn into {file}" in output(capsys, folder, TEXT, "--out", str(file))
    first = file.read_bytes()
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    output(capsys, folder, TEXT, "--out", str(file))
    assert file.read_bytes() == first


def test_mistakes(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "an empty text; expected some words, or no text at all. Fix: sightline heads MODEL"
        in mistake(capsys, folder, "  ")
    )
    assert "tokens; expected at most 128. Fix: give a part of it" in mistake(
        capsys, folder, "the cat " * 100
    )
    assert "not a figure format; expected .svg, .png or .pdf. Fix: --out map.svg" in mistake(
        capsys, folder, "--out", "map.txt"
    )
    assert "does not exist" in mistake(capsys, folder, "--out", str(tmp_path / "none" / "map.svg"))
    assert "'1.5' is not an integer" in mistake(capsys, folder, "--seed", "1.5")
    assert "no option is called --relation." in mistake(capsys, folder, "--relation")


@pytest.mark.skipif(not kernels.available(), reason="the native engine is not built")
def test_the_engine_that_generates_runs_the_passes(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_torch = json.loads(
        output(capsys, folder, TEXT, "--relations", "--json", "--engine", "torch")
    )
    for module in (profile, relations):
        monkeypatch.delattr(module, "trace_of")
    native = json.loads(output(capsys, folder, TEXT, "--relations", "--json"))
    assert by_torch["runner"] == "torch"
    assert native["runner"].startswith("native")
    assert [head["role"] for head in native["heads"]] == [
        head["role"] for head in by_torch["heads"]
    ]
    for ours, theirs in zip(native["heads"], by_torch["heads"], strict=True):
        assert ours["scores"]["previous"] == pytest.approx(theirs["scores"]["previous"], abs=1e-4)
    assert json.loads(output(capsys, folder, TEXT, "--json", "--dtype", "int8"))["heads"]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--relations", "--json", "--seed", "--out", "--engine", "--dtype"):
        assert option in out


def test_relations_on_a_terminal(tmp_path: Path) -> None:
    """The bar has no total before the first sentence."""
    bert(tmp_path, "BertModel", max_position_embeddings=128)
    code, raw = terminal.run("heads", str(tmp_path), "--relations")
    assert code == 0, raw
    assert "reading sentences" in raw
    assert "pronoun" in raw
