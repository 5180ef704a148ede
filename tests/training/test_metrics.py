"""metrics.jsonl: whole lines, cut where a run goes on, and never a reason to stop."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.training.state.metrics import Metrics
from tests.training.disk import watching


@dataclass
class Event:
    step: int
    loss: float = 1.0


def test_lines_are_json_and_nan_is_null(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "m")
    assert metrics.write("step", Event(1, math.nan)) == ""
    assert json.loads((tmp_path / "m").read_text()) == {"kind": "step", "step": 1, "loss": None}


def test_what_lies_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "m")
    for step in range(1, 6):
        metrics.write("step", Event(step))
    with open(tmp_path / "m", "a") as file:
        file.write('{"kind": "step", "st')
    assert metrics.cut(3) == ""
    assert [json.loads(line)["step"] for line in (tmp_path / "m").read_text().splitlines()] == [
        1,
        2,
        3,
    ]


def test_a_line_that_does_not_fit_leaves_no_half_of_it(tmp_path: Path) -> None:
    """Said once; with room again, the next line is written."""
    metrics, full = Metrics(tmp_path / "m"), [True]
    metrics.write("step", Event(1))

    def before(call: str, path: Path, half: Any) -> None:
        if call == "write" and full[0]:
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watching(before):
        assert "cannot be written (No space left on device); training continues" in metrics.write(
            "step", Event(2)
        )
        assert metrics.write("step", Event(3)) == ""
        full[0] = False
        assert metrics.write("step", Event(4)) == ""
    assert [json.loads(line)["step"] for line in (tmp_path / "m").read_text().splitlines()] == [
        1,
        4,
    ]


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    assert "Is a directory" in metrics.cut(1)
    assert metrics.write("step", Event(1)) == ""


def test_other_processes_write_nothing() -> None:
    assert Metrics(None).write("step", Event(1)) == Metrics(None).cut(1) == ""
