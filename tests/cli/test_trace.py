"""`sightline trace`: pictures and numbers of real passes, and one line for every mistake."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import sightline as sl
from sightline.cli.main import main
from tests.support.scored_folder import saved
from tests.support.tiny import SIZE as TINY

SIZE = TINY | {"vocab_size": 300}
TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("decoder"), sl.llama(**SIZE))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(
        tmp_path_factory.mktemp("both"), sl.encoder_decoder(**SIZE), decoder_start_token_id=5
    )


def test_json_is_the_trace(decoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(decoder), TEXT, "--layer", "1", "--head", "-1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    trace = sl.load(decoder).trace(TEXT)
    np.testing.assert_allclose(
        np.nan_to_num(np.array(result["weights"], dtype=float)),
        trace.weights(1, 3).numpy(),
        atol=1e-6,
    )
    assert result["tokens"] == [token.text for token in trace.tokens]
    assert (result["layer"], result["head"], result["text"]) == (1, 3, TEXT)


def test_without_a_head_one_is_chosen_and_said(
    decoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(decoder), TEXT]) == 0
    out, output = capsys.readouterr()
    layer, head = output.split()[1].rstrip(","), output.split()[3]
    assert f"Attention weights: layer {layer}, head {head}\n" in out
    assert "--layer N --head N" in output
    assert main(["trace", str(decoder), TEXT, "--layer", "0", "--view", "lines"]) == 0
    out, output = capsys.readouterr()
    assert "layer 0, mean of all heads" in out
    assert output == ""
    assert main(["trace", str(decoder), TEXT, "--layer", "0", "--view", "sphere"]) == 0
    assert "layer 0, head " in capsys.readouterr().err


def test_standard_input_and_a_file_are_read(
    decoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "text").write_text(TEXT + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT + "\n"))
    result = []
    for line in (["-"], ["--file", str(tmp_path / "text")], [TEXT]):
        assert main(["trace", str(decoder), *line, "--layer", "0", "--json"]) == 0
        result.append(json.loads(capsys.readouterr().out))
    assert result[0] == result[1] == result[2]


def test_an_encoder_decoder_shows_its_alignment(
    both: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(both), "a dog", "--source", TEXT, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    trace = sl.load(both).trace("a dog", source=TEXT)
    assert result["view"] == "alignment"
    np.testing.assert_allclose(result["weights"], trace.cross_weights(0).mean(0).numpy(), atol=1e-6)
    assert result["columns"] == [token.text.strip() for token in trace.source or ()]
    assert main(["trace", str(both), TEXT]) == 0
    assert "Cross-attention: decoder layer 0" in capsys.readouterr().out
    assert (
        main(
            [
                "trace",
                str(both),
                TEXT,
                "--view",
                "map",
                "--stack",
                "encoder",
                "--layer",
                "1",
                "--head",
                "0",
            ]
        )
        == 0
    )
    assert "encoder layer 1, head 0" in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".html", ".svg", ".png", ".pdf", ".json", ".safetensors"])
def test_a_file_is_written_and_named(
    ending: str, decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"x{ending}"
    assert main(["trace", str(decoder), TEXT, "--layer", "1", "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert file.stat().st_size > 500
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_only_some_layers_are_kept(
    decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "trace",
                str(decoder),
                TEXT,
                "--view",
                "heads",
                "--layers",
                "-1",
                "--json",
                "--out",
                str(tmp_path / "x.safetensors"),
            ]
        )
        == 0
    )
    out, output = capsys.readouterr()
    assert json.loads(out)["layers"] == [1]
    assert output == f"{tmp_path / 'x.safetensors'}\n"
    assert [site[1] for site in sl.Trace.open(tmp_path / "x.safetensors").looks] == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([TEXT, "--layer", "2"], "layer 2; expected 0 to 1. Fix: --layer 1 is the last"),
        (
            [TEXT, "--layer", "0", "--head", "4"],
            "head 4; expected 0 to 3. Fix: --head 3 is the last",
        ),
        ([TEXT, "--head", "-5"], "head -5; expected 0 to 3"),
        ([TEXT, "--layer", "x"], "integer"),
        ([TEXT, "--view", "spere"], 'did you mean "sphere"?'),
        ([TEXT, "--view", "alignment"], "expected an encoder–decoder. Fix: --view map"),
        ([TEXT, "--stack", "encoder"], "Fix: --stack decoder"),
        ([TEXT, "--source", "a"], "Fix: leave --source out"),
        (
            [TEXT, "--out", "x.gif"],
            "expected .html, .svg, .png, .pdf, .json, .safetensors. Fix: x.html",
        ),
        ([TEXT, "--out", "/nowhere/x.svg"], "cannot be written"),
        ([TEXT, "--layers", "0;1"], "Fix: --layers 0,5,11"),
        ([TEXT, "--layers", "7"], "layer 7; expected 0 to 1"),
        ([TEXT, "--layers", "0", "--layer", "1"], "which is not among --layers"),
        ([TEXT, "--layers", "0", "--view", "rollout"], "was not traced"),
        (["the cat " * 40], "tokens for a context of 48"),
        ([""], "empty text"),
        ([], "no text"),
    ],
)
def test_mistakes_are_one_line(
    line: list[str], message: str, decoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(decoder), *line]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error
    assert error.count("\n") == (2 if "has the most structure" in error else 1)
