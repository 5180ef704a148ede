"""Shell completion: the installed script, run by bash itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.cli.main import main

BASH = shutil.which("bash")
PROGRAM = """
source "$1"; shift
complete -p sightline
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_sightline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "sightline.bash"
    assert main(["--install-completion", "--shell", "bash", "--output", str(path)]) == 0
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, a run, a .gguf file, and something else."""
    for name, file in (("tiny", "config.json"), ("runs/first", "run.json"), ("other", "x.txt")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_text("{}", encoding="utf-8")
    (tmp_path / "small.gguf").write_bytes(b"")
    return tmp_path


def complete(script: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(BASH), "--norc", "-c", PROGRAM, "bash", str(script), "sightline", *words],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    registered, *offered = done.stdout.split("\n")
    assert registered == "complete -F _sightline sightline"
    assert done.stderr == ""
    return [word for word in offered if word]


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(script: Path, folder: Path) -> None:
    assert complete(script, folder, "gen") == ["generate"]
    assert complete(script, folder, "generate", "tiny", "--top") == ["--top-k", "--top-p"]
    assert complete(script, folder, "generate", "tiny", "--engine", "") == [
        "auto",
        "native",
        "torch",
    ]
    assert complete(script, folder, "trace", "tiny", "--view", "l") == ["lines", "logit-lens"]
    assert complete(script, folder, "chat", "tiny", "--dtype", "int4") == ["int4", "int4_min"]


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_names_of_models_runs_and_recipes(script: Path, folder: Path) -> None:
    assert complete(script, folder, "generate", "smoll") == ["smollm2-135m-instruct"]
    offered = complete(script, folder, "generate", "")
    assert {"tiny", "small.gguf", "runs/first"} <= set(offered)
    assert "other" not in offered
    assert complete(script, folder, "compare", "") == ["runs/first"]
    assert complete(script, folder, "train", "sh") == ["shakespeare"]


def test_the_default_places_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ZSH_CUSTOM", raising=False)
    monkeypatch.delenv("ZSH", raising=False)
    assert main(["--install-completion", "--shell", "bash"]) == 0
    path = tmp_path / ".local/share/bash-completion/completions/sightline"
    assert capsys.readouterr().out == f"{path}\n"
    assert str(path) in (tmp_path / ".bashrc").read_text(encoding="utf-8")
    assert main(["--install-completion", "--shell", "fish"]) == 0
    assert (tmp_path / ".config/fish/completions/sightline.fish").is_file()
    assert main(["--install-completion", "--shell", "zsh"]) == 0
    assert (tmp_path / ".zshrc").is_file()


def test_an_unknown_shell_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cyclopts.completion.detect.detect_shell", lambda: "powershell")
    assert main(["--install-completion"]) == 2
    error = capsys.readouterr().err
    assert "the shell is powershell" in error
    assert "Fix: sightline --install-completion --shell bash" in error
