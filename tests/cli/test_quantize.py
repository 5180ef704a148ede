"""`sightline quantize` as a user meets it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.cli.ui.quantize_chart import error_bar, error_chart
from sightline.engine import quality
from sightline.engine.engine import NativeEngine
from sightline.engine.quality import MatrixError, Quality, report
from sightline.kernels import library as kernels
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
TEXT = "the cat sat on the mat and looked at the dog that sat by the door; "
SIZE = {"width": 32, "layers": 2, "heads": 4, "vocab_size": 280, "max_positions": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a trained tokenizer, and texts beside it."""
    at = tmp_path_factory.mktemp("quantize")
    (at / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    (at / "empty.txt").write_text("")
    tokens = save_tokenizer(train_tokenizer([at / "text.txt"], vocab_size=280), at / "tokenizer")
    torch.manual_seed(3)
    transformer = sl.build(sl.llama(**SIZE)).eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return sl.Model(transformer, Tokenizer.from_folder(tokens)).save(at / "model")


def test_sizes_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(folder), "--dtype", "int8,int4", "--json"]) == 0
    result, model = json.loads(capsys.readouterr().out), sl.load(folder).transformer
    assert result["bytes"] == {
        name: NativeEngine.of(model, name).bytes for name in ("float32", "int8", "int4")
    }
    assert main(["quantize", str(folder)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [
        "float32",
        "float16",
        "int8",
        "int8_groups",
        "int4",
        "int4_min",
    ]
    assert lines[1][-1] == "50.0%"


def test_the_report_equals_the_library(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = folder.parent / "text.txt", tmp_path / "new" / "out"
    assert (
        main(
            [
                "quantize",
                str(folder),
                "--dtype",
                "int8, int4",
                "--report",
                "--text",
                str(text),
                "--limit",
                "128",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    captured = capsys.readouterr()
    eight, four = report(sl.load(folder), text.read_text(), precisions=["int8", "int4"], limit=128)
    assert "128 tokens of text.txt, against float32" in captured.out
    lines = captured.out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["precision", "float32", "int8", "int4"]
    assert lines[3].split()[3] == f"{four.float32_perplexity:.4f}"
    assert lines[5].split()[3:] == [
        f"{four.perplexity:.4f}",
        f"{four.divergence:.6f}",
        f"{four.agreement:.2%}",
        f"{four.largest:.4f}",
    ]
    assert sum(line.split()[:1] == ["1"] for line in lines) == 2  # each chart has its layers
    assert f"{four.blocks[1]:.2%}" in captured.out
    output = json.loads((out / "report.json").read_text())
    assert output["precisions"][0]["perplexity"] == eight.perplexity
    assert output["precisions"][1]["matrices"][1] == {
        "name": four.matrices[1].name,
        "error": four.matrices[1].error,
    }
    assert (out / "errors.png").read_bytes().startswith(b"\x89PNG")
    drawn = (out / "errors.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "errors.svg" in captured.err


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = folder.parent / "text.txt"
    assert (
        main(
            [
                "quantize",
                str(folder),
                "--dtype",
                "int8_groups",
                "--report",
                "--text",
                str(text),
                "--limit",
                "64",
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert (result["tokens"], result["text"], len(result["precisions"])) == (64, "text.txt", 1)
    assert result["float32"]["perplexity"] == result["precisions"][0]["float32_perplexity"]
    assert len(result["precisions"][0]["blocks"]) == 2


def test_after_ctrl_c_what_was_measured_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quality.quality

    def interrupted(truth: quality.Truth, precision: str, tell: quality.Progress) -> Quality:
        if precision == "int4":
            signal.raise_signal(signal.SIGINT)
        return first(truth, precision, tell)  # type: ignore[arg-type]

    monkeypatch.setattr(quality, "quality", interrupted)
    line = [
        "quantize",
        str(folder),
        "--report",
        "--text",
        str(folder.parent / "text.txt"),
        "--limit",
        "64",
    ]
    with pytest.raises(SystemExit) as left:
        main([*line, "--dtype", "int8,int4"])
    captured = capsys.readouterr()
    assert left.value.code == 130
    assert "interrupted: int4 not measured" in captured.err
    assert "\nint8 " in captured.out
    with pytest.raises(SystemExit) as left:
        main([*line, "--dtype", "int4"])
    assert left.value.code == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            ["--dtype", "int5"],
            "precision 'int5'; expected float32, float16, int8, int8_groups, int4, int4_min. Fix:",
        ),
        (["--dtype", "int8,"], "precision ''"),
        (["--report", "--text", "none.txt"], "none.txt cannot be read as text: No such file"),
        (
            ["--report", "--text", "EMPTY"],
            "empty.txt is empty; expected some text to measure on. Fix: --text another file",
        ),
        (["--text", "EMPTY"], "--text without --report; expected both. Fix: add --report"),
        (["--report", "--limit", "0"], "--limit is 0; expected 1 or more"),
        (["--report", "--out", "EMPTY"], "empty.txt is a file; expected a folder"),
    ],
)
def test_mistakes(
    line: list[str],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    as_users_run_it: None,
) -> None:
    empty = str(folder.parent / "empty.txt")
    assert (
        main(["quantize", str(folder), *(empty if word == "EMPTY" else word for word in line)]) == 2
    )
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert captured.out == ""


def test_bars() -> None:
    assert error_bar(0.5, 1.0, 12) == "██ 50.00%   "
    assert error_bar(0.0, 0.0, 12) == " 0.00%      "
    made = Quality(
        "int4",
        1,
        1,
        1.0,
        1.0,
        0.0,
        1.0,
        0.0,
        (MatrixError("embedding", 0.1), MatrixError("0.up", 0.2)),
        (0.4,),
        1,
    )
    lines = error_chart(made, width=80)
    assert lines[1].split() == ["layer", "up", "after", "block"]
    assert lines[2].startswith("embedding  ███████ 10.00%")
    assert lines[3].count("█") == 28
    assert all(len(line) <= 80 for line in lines[1:])
