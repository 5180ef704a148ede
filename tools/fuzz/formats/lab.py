"""Results of the laboratory: the saved numbers, or a refusal."""

from __future__ import annotations

import shutil
from pathlib import Path

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import finding
from sightline.lab.results import read_result
from tools.fuzz.outcome import require

NUMBERS = Path(__file__).parents[3] / "docs" / "laboratory" / "numbers"
NAMES = ("three-words", "kv-cache", "gpt-vs-bert", "why-attention")


def make(place: Path) -> None:
    for name in NAMES:
        (place / name).mkdir()
        shutil.copy(NUMBERS / f"{name}.default.seed-100.json", place / name)


def check(case: Path, sample: Path) -> None:
    [path] = case.iterdir()
    require(read_result(path) == read_result(sample / path.name), "other values")
    result = finding(EXPERIMENTS[path.name.split(".")[0]], case, tier="default", seed=100)
    assert result is not None
    assert result.verdict
