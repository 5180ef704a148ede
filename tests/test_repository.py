"""The repository: what the README shows is what is there."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sightline as sl
from tools import pages

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return [
        text
        for name, text in re.findall(
            r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE
        )
        if name == language
    ]


def test_the_readmes_python_runs() -> None:
    space: dict[str, object] = {}
    for code in blocks("python"):
        exec(code, space)
    assert space["y"].shape == (2, 5, 64)
    assert torch.allclose(space["step"], space["logits"][:, 15:], atol=1e-5)


def test_the_tree_in_the_docs_is_the_disks() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert pages.tree() in page, "run `make pages`"


def test_every_hop_of_the_walks_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"`([\w/]+\.py): ([\w.]+)`", page)
    assert len(hops) > 20
    for file, function in hops:
        module = importlib.import_module("sightline." + file.removesuffix(".py").replace("/", "."))
        place: object = module
        for name in function.split("."):
            place = getattr(place, name)


def test_importing_sightline_does_not_import_torch() -> None:
    code = "import sys, sightline as sl; sl.gpt(positions=sl.Rotary()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in sl.__all__:
        assert getattr(sl, name) is not None
    assert set(sl.__all__) <= set(dir(sl))
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        _ = sl.atention


def imported_modules(path: Path) -> set[str]:
    """Every module that a file names in an import, as far as it can be one."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_nothing_imports_from_a_test_file() -> None:
    """What tests share lives in tests/support, or beside them in a file without tests."""
    for folder in ("tests", "bench", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            modules = {name for name in imported_modules(path) if name.startswith("tests.")}
            assert not [name for name in modules if ".test_" in name], path


def test_nothing_loads_pickles_or_code() -> None:
    for path in (ROOT / "sightline").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "weights_only=False" not in text
        assert not re.search(r"^\s*(import pickle|from pickle)", text, flags=re.MULTILINE), path
