"""`sightline doctor`: which path runs, and why."""

import json
import os
import shutil

import pytest

from sightline.cli.commands.manage.doctor import machine_facts
from sightline.cli.main import main
from sightline.kernels import library as kernels


def test_it_says_which_kernels_run(capsys) -> None:
    assert main(["doctor", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["native kernels"].startswith("yes" if kernels.available() else "no")
    assert main(["doctor"]) == 0
    assert "native kernels" in capsys.readouterr().out


@pytest.mark.skipif("SIGHTLINE_NATIVE" in os.environ, reason="another build was asked for")
def test_they_are_there_where_there_is_a_compiler() -> None:
    compilers = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    assert kernels.available() or not compilers, kernels.missing


def test_it_says_why_they_do_not(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "missing", "not compiled on this machine")
    result = machine_facts()
    assert "not compiled" in result["native kernels"]
    assert result["engine"] == "torch"
    assert "compiler" in result["fix"]
