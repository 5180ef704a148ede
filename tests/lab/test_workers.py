"""A part that fails, a worker that is killed: one line, and finished parts are reused."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest

from sightline.cli.main import main
from sightline.lab import workers
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import steps
from sightline.lab.experiment import FIRST_SEED, Experiment, ExperimentPart, Plan, TunedRate
from sightline.lab.results import Result, read_result, result_path, write_result
from sightline.lab.tuning import PILOT_SEED
from sightline.lab.workers import PartError

SATURATION = EXPERIMENTS["softmax-saturation"]


def test_a_run_that_lacks_its_data_offline_ends_in_one_line_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "empty"))
    workers.stop_workers()  # the next ones see these variables
    rates = {arm: TunedRate(arm, 1e-2, False, ()) for arm in SATURATION.arms}
    path = result_path(tmp_path, SATURATION.name, "quick", FIRST_SEED)
    before = {
        part.name: {"value": 1}
        for part in SATURATION.parts(Plan("quick", rates=rates))
        if part.name.startswith("width")
    }
    write_result(path, Result(SATURATION.name, "quick", FIRST_SEED, parts=dict(before)))
    assert main(["lab", "run", SATURATION.name, "--quick", "--out", str(tmp_path)]) == 2
    workers.stop_workers()
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert line.startswith("error: softmax-saturation, part pilot.scaled.rate-")
    assert "HF_HUB_OFFLINE disables the network. Fix: unset HF_HUB_OFFLINE" in line
    assert read_result(path).parts == before


@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
def test_a_worker_killed_by_sigkill_ends_the_run_in_one_line_and_keeps_what_was_measured(
    tmp_path: Path,
) -> None:
    running = steps(SATURATION, tmp_path, tier="quick")
    done = [next(running).part]
    children = multiprocessing.active_children()
    assert children
    for child in children:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(
        PartError,
        match=r"softmax-saturation: the process that measured pilot\.\S+ was killed by SIGKILL",
    ) as refusal:
        done.extend(step.part for step in running)  # keeps what came before the error
    assert "finished parts are reused" in str(refusal.value)
    assert (
        list(read_result(result_path(tmp_path, SATURATION.name, "quick", PILOT_SEED)).parts) == done
    )
    assert not multiprocessing.active_children()


def broken(error: Exception) -> Experiment:
    def fail() -> None:
        raise error

    fields = {
        name: getattr(SATURATION, name)
        for name in ("title", "claim", "source", "equation", "look_for", "judge", "draw")
    }
    return Experiment(
        name="broken",
        parts=lambda plan: [ExperimentPart("one", lambda: 1), ExperimentPart("two", fail)],
        **fields,
    )


@pytest.mark.parametrize(
    ("error", "output"), [(MemoryError(), "MemoryError: "), (TypeError("a\nb"), "TypeError: a b")]
)
def test_an_exception_of_a_part_is_one_line_that_names_the_part(
    error: Exception, output: str, tmp_path: Path
) -> None:
    with pytest.raises(PartError, match="broken, part two failed with " + output) as refusal:
        list(steps(broken(error), tmp_path))
    assert "\n" not in str(refusal.value)
    assert "Traceback" in refusal.value.__notes__[0]
    assert read_result(result_path(tmp_path, "broken", "default", FIRST_SEED)).parts == {"one": 1}
