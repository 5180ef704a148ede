"""`sightline embed` as a user meets it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from tests.tasks.tiny_folders import bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("bert")
    bert(place, "BertModel")
    return str(place)


def mistake(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["embed", *line]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in output.err
    return output.err.splitlines()[-1]


def test_json_is_what_python_gives_bit_for_bit(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["the cat sat", "the [MASK]", ""]
    assert main(["embed", folder, *texts, "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert [row["text"] for row in result] == texts
    assert torch.equal(
        torch.tensor([row["vector"] for row in result]), sl.load(folder).embed(texts)
    )
    assert "3 texts, " in output.err


def test_texts_from_a_file_and_from_standard_input(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "the cat\r\n\nthe dog sat\n"
    (tmp_path / "texts.txt").write_bytes(lines.encode())
    assert main(["embed", folder, "--file", str(tmp_path / "texts.txt"), "--json"]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert [row["text"] for row in by_file] == ["the cat", "", "the dog sat"]
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["embed", folder, "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == by_file


def test_vectors_as_a_file(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "vectors.npy"
    assert main(["embed", folder, "the cat", "a dog", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    result = np.load(out)
    assert result.dtype == np.float32
    assert np.array_equal(result, sl.load(folder).embed(["the cat", "a dog"]).numpy())
    assert main(["embed", folder, "the cat", "--out", str(out), "--json"]) == 0
    expected = {"path": str(out), "texts": 1, "width": 32, "runner": "torch"}
    assert json.loads(capsys.readouterr().out) == expected
    assert np.load(out).shape == (1, 32)
    assert list(tmp_path.iterdir()) == [out]


def test_the_screen_compares_texts(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", folder, "the cat", "the cat", "a bad film"]) == 0
    lines = capsys.readouterr().out.splitlines()
    vectors = torch.nn.functional.normalize(sl.load(folder).embed(["the cat", "a bad film"]), dim=1)
    assert "3 vectors of 32 dimensions" in lines[0]
    assert lines[-1].split()[:4] == [
        "3",
        f"{float(vectors[0] @ vectors[1]):.2f}",
        f"{float(vectors[0] @ vectors[1]):.2f}",
        "1.00",
    ]
    assert lines[-1].endswith("a bad film")
    assert main(["embed", folder, "the cat"]) == 0
    shown = capsys.readouterr().out.splitlines()[1].split()
    assert shown == [
        *(f"{number:.4f}" for number in sl.load(folder).embed("the cat")[0, :8].tolist()),
        "…",
    ]
    assert main(["embed", folder, *["a"] * 21]) == 0
    assert "cosine" not in capsys.readouterr().out


def test_a_cut_is_said(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", folder, "the cat", "the dog " * 90]) == 0
    assert "note: 1 of 2 texts were cut to 64 tokens" in capsys.readouterr().err


def test_mistakes(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no text; expected texts, --file FILE, or -" in mistake(capsys, folder)
    assert "texts and a file" in mistake(capsys, folder, "a", "--file", "x.txt")
    assert "no option is called '--jsn'" in mistake(capsys, folder, "a", "--jsn")
    assert "nowhere.txt cannot be read" in mistake(capsys, folder, "--file", "nowhere.txt")
    assert "ends in .npy" in mistake(capsys, folder, "a", "--out", "vectors.txt")
    assert "cannot be written" in mistake(
        capsys, folder, "a", "--out", str(tmp_path / "no" / "v.npy")
    )
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in mistake(capsys, folder, "--file", str(tmp_path / "bytes.txt"))
    (tmp_path / "empty.txt").write_text("")
    assert "no text in" in mistake(capsys, folder, "--file", str(tmp_path / "empty.txt"))
