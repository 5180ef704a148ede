"""What a terminal shows while a model is loaded and packed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import sightline as sl
from sightline.cli.main import main
from sightline.engine.engine import NativeEngine
from sightline.kernels import library as kernels
from tests.cli import terminal
from tests.support.scored_folder import SIZE, saved

LINE = "packing weights for the native engine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path, sl.gpt(**SIZE))


@pytest.fixture
def slow_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    quick: Any = NativeEngine.packing

    def slow(*arguments: Any, **options: Any) -> NativeEngine:
        time.sleep(0.8)
        return quick(*arguments, **options)

    monkeypatch.setattr(NativeEngine, "packing", slow)


@pytest.mark.skipif(not kernels.available(), reason="the native engine is not built")
@pytest.mark.usefixtures("slow_packing")
def test_packing_that_takes_long_is_shown_and_removed(folder: Path) -> None:
    code, raw = terminal.run("generate", str(folder), "the cat", "--max-tokens", "2")
    assert code == 0
    assert LINE in terminal.visible(raw)
    assert LINE not in terminal.visible(raw).splitlines()[-1]


@pytest.mark.usefixtures("slow_packing")
def test_a_pipe_and_torch_see_nothing_of_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(["generate", str(folder), "the cat", "--max-tokens", "2"])
    assert LINE not in capfd.readouterr().err
    _, raw = terminal.run(
        "generate", str(folder), "the cat", "--max-tokens", "2", "--engine", "torch"
    )
    assert LINE not in terminal.visible(raw)
