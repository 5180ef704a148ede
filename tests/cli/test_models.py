"""`sightline models` as a user meets it. Nothing is downloaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from rich.cells import cell_len

from sightline.checkpoints.sources.catalogue import CATALOGUE
from sightline.cli.commands.manage import models
from sightline.cli.main import main
from tests.checkpoints.tiny_archives import WHEEL, make_wheel
from tests.cli import terminal


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, no network, one tiny model more in the catalogue, with its package at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SIGHTLINE_ARCHIVES", str(tmp_path / "archives"))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    monkeypatch.delenv("COLUMNS", raising=False)  # a pipe gets lines of any width, by default
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(CATALOGUE, "wheel", WHEEL)
    (tmp_path / "archives").mkdir()
    make_wheel(tmp_path / "archives")
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert main(line.split()) == 0
    return capsys.readouterr().out


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "models").splitlines()
    assert lines[0].split() == [
        "name",
        "family",
        "parameters",
        "size",
        "licence",
        "on",
        "disk",
        "what",
    ]
    assert [line.split()[0] for line in lines[1:]] == list(CATALOGUE)
    assert lines[1].split()[:6] == [
        "smollm2-135m-instruct",
        "llama",
        "134,515,008",
        "98.4",
        "MB",
        "Apache-2.0",
    ]
    here = {line.split()[0] for line in lines[1:] if "   yes " in line}
    assert here == {"enja", "bert-tiny"}  # shipped with the package; the others are not downloaded
    assert (
        len({line.index("   yes " if line.split()[0] in here else "   no ") for line in lines[1:]})
        == 1
    )
    assert all(line.endswith(CATALOGUE[line.split()[0]].what) for line in lines[1:]), (
        "a pipe gets the whole description"
    )
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


@pytest.mark.parametrize("columns", [40, 80, 120, 160])
def test_a_terminal_shows_every_word_within_its_width(columns: int) -> None:
    code, raw = terminal.run("models", columns=columns)
    shown = terminal.visible(raw)
    assert code == 0
    assert max(map(cell_len, shown.splitlines())) <= columns
    assert "…" not in shown
    for entry in CATALOGUE.values():
        assert re.search(rf"^{re.escape(entry.name)}\b", shown, re.MULTILINE)
        assert all(word in shown for word in entry.what.split())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = {model["name"]: model for model in json.loads(output(capsys, "models --json"))}
    assert set(result) == set(CATALOGUE)
    assert result["minilm"]["hub"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert (result["wheel"]["on_disk"], result["wheel"]["path"], result["wheel"]["bytes"]) == (
        False,
        None,
        WHEEL.size,
    )


def test_get_where_remove(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = place / "home" / "models" / "wheel"
    assert output(capsys, "models get wheel") == f"{folder}\n"
    assert output(capsys, "models where wheel") == f"{folder}\n"
    assert next(
        model for model in json.loads(output(capsys, "models --json")) if model["name"] == "wheel"
    )["path"] == str(folder)
    assert " yes " in next(
        line for line in output(capsys, "models").splitlines() if line.startswith("wheel ")
    )
    assert main(["models", "remove", "wheel"]) == 2
    assert (
        capsys.readouterr().err
        == "error: wheel was not deleted. Fix: sightline models remove wheel --yes\n"
    )
    assert folder.exists()
    assert output(capsys, "models remove wheel --yes").startswith(f"deleted {folder}, ")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("YES\n", 0), ("\n", 2), ("no\n", 2), ("", 2)]
)
def test_a_terminal_is_asked(
    answer: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

    assert main(["models", "get", "wheel"]) == 0
    monkeypatch.setattr(models.sys, "stdin", Terminal())
    monkeypatch.setattr(models.sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["models", "remove", "wheel"]) == code
    assert "delete " in capsys.readouterr().err


def test_the_hubs_cache(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = place / "hub" / "models--owner--name" / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("a" * 40)
    assert (
        output(capsys, "models where owner/name")
        == output(capsys, "models get owner/name")
        == f"{folder}\n"
    )


MISTAKES = {
    "models gte": "sightline models has no command 'gte'. Fix: did you mean 'get'?",
    "models nonsense": "sightline models has no command 'nonsense'. Fix: use one of get, remove, where",
    "models get": 'Command "models get" parameter NAME requires an argument. Fix: see sightline models get --help',
    "models get wheel wheel": "too many arguments: wheel. Fix: see sightline models get --help",
    "models get whel": "no model in the catalogue is called 'whel'. Fix: did you mean 'wheel'?",
    "models get wheel --pickles": "--pickles for a model of the catalogue; expected OWNER/NAME of the hub. Fix: leave --pickles out",
    "models get ../x": "'../x' is not a hub id; expected OWNER/NAME or OWNER/NAME@REVISION. Fix: check the spelling",
    "models where wheel": "wheel is not on this disk. Fix: sightline models get wheel",
    "models where owner/name": "owner/name is not on this disk. Fix: sightline models get owner/name",
    "models remove wheel": "wheel is not on this disk. Fix: sightline models shows what is",
    "models remove owner/name": "owner/name is in the Hugging Face cache. Fix: hf cache rm model/owner/name",
    "models get owner/name": "owner/name is not in the hub cache and SIGHTLINE_OFFLINE disables the network."
    " Fix: unset SIGHTLINE_OFFLINE, or copy the model's folder to this machine and give its path",
    "models --jsn": "Unknown option: --jsn. Fix: did you mean --json?",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {MISTAKES[line]}\n")


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b/c", "x" * 100_000, "x/" * 50_000])
@pytest.mark.parametrize("action", ["get", "where", "remove"])
def test_strange_names_stay_on_one_line(
    action: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", action, name]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert len(err) < 1000


def test_help_and_list_do_not_import_torch() -> None:
    code = (
        "import sys; from sightline.cli import main as m; "
        "assert m.main(['models']) == 0 and m.main(['models', 'get', '--help']) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
