"""Trackers. None of them is installed with Sightline, so each is stood in for by a module that
remembers what it was told."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sightline.errors import InputError
from sightline.training.loop import StepEvent
from sightline.training.run import Evaluated, Note
from sightline.training.state.trackers import SINKS, figures_of, open_sinks

STEP = StepEvent(3, 2.5, 0.1, math.inf, 1000.0, 5.0, None, False, 7.0)


class Remembers:
    """A module, a run and a writer in one."""

    def __init__(self, *, broken: bool = False) -> None:
        self.told: list[Any] = []
        self.broken = broken

    def init(self, **options: Any) -> Remembers:
        self.told.append(options)
        return self

    def log(self, figures: dict[str, float], step: int) -> None:
        if self.broken:
            raise ConnectionError("the server\nis gone")
        self.told.append((figures, step))

    def finish(self) -> None:
        self.told.append("finished")

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told.append((name, value, step))

    def add_text(self, name: str, text: str) -> None:
        self.told.append((name, text))

    close = finish


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_figures_arrive(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Remembers()
    monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    sinks = open_sinks([name, name], tmp_path / "a", {"steps": 5})
    for event in (STEP, Evaluated(3, 2.25, True), Note("something")):
        assert sinks.write(event) == []
    sinks.close()
    begin, step, validation, end = module.told
    assert (begin["project"], begin["name"], begin["config"]) == ("sightline", "a", {"steps": 5})
    assert step == (
        {
            "train/loss": 2.5,
            "train/lr": 0.1,
            "train/tokens_per_second": 1000.0,
            "train/seconds": 7.0,
        },
        3,
    )
    assert validation == ({"validation/loss": 2.25}, 3)
    assert end == "finished"


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, places = Remembers(), list[str]()
    module = ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(
        module, "SummaryWriter", lambda place: places.append(place) or writer, raising=False
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    sinks = open_sinks(["tensorboard"], tmp_path, {"steps": 5})
    sinks.write(Evaluated(3, 2.25, True))
    sinks.close()
    assert places == [str(tmp_path / "tensorboard")]
    assert writer.told == [("settings", "    steps = 5"), ("validation/loss", 2.25, 3), "finished"]


def test_one_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Remembers(), Remembers(broken=True)
    monkeypatch.setitem(sys.modules, "wandb", bad)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "trackio", good)  # type: ignore[arg-type]
    sinks = open_sinks(["wandb", "trackio"], tmp_path, {})
    assert sinks.write(STEP) == ["wandb is disabled: ConnectionError: the server is gone"]
    assert sinks.write(STEP) == []
    assert len(good.told) == 3


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SINKS:
        monkeypatch.setitem(
            sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None
        )  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"{name} is not installed. Fix: pip install {name}"):
            open_sinks([name], tmp_path, {})
    with pytest.raises(InputError, match="did you mean 'wandb'"):
        open_sinks(["wandbb"], tmp_path, {})

    def refuses(**options: Any) -> None:
        raise RuntimeError("no login")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuses))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="wandb does not start: no login"):
        open_sinks(["wandb"], tmp_path, {})


def test_only_finite_figures() -> None:
    assert "train/grad_norm" not in figures_of(STEP)
