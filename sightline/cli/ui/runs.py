"""Runs of `sightline train` on disk: their settings and their loss curves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import InputError
from sightline.files.regular import read_text_file

if TYPE_CHECKING:
    from sightline.config import ModelConfig
    from sightline.recipes import Recipe

RUN = "run.json"
METRICS = "metrics.jsonl"
MOST_METRICS = 1 << 30  # bytes
SMOOTHED = 0.95  # decay of the smoothed training loss per step


@dataclass(frozen=True)
class Point:
    """A loss, with its step and its training time in seconds."""

    step: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class PastRun:
    """A run's folder: `description` is its run.json, `lines` its metrics.jsonl."""

    folder: Path
    description: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def recipe(self) -> str:
        return str(self.description.get("recipe", "?"))

    @property
    def steps(self) -> int:
        return max((point.step for point in self.training), default=0)

    @property
    def seconds(self) -> float:
        return max((point.seconds for point in self.training), default=0.0)

    @property
    def best(self) -> Point | None:
        """The lowest validation loss."""
        return min(self.validation, key=lambda point: point.loss, default=None)

    @cached_property
    def training(self) -> list[Point]:
        """Every step."""
        return [Point(line["step"], seconds_of(line), line["loss"]) for line in self._lines("step")]

    @cached_property
    def smoothed(self) -> list[Point]:
        """Exponential moving average of the training loss, with bias correction."""
        points = list[Point]()
        mean = 0.0
        weight = 0.0
        for point in self.training:
            mean = mean * SMOOTHED + point.loss
            weight = weight * SMOOTHED + 1
            points.append(Point(point.step, point.seconds, mean / weight))
        return points

    @cached_property
    def validation(self) -> list[Point]:
        """Every evaluation once, at the time of its step."""
        times = {point.step: point.seconds for point in self.training}
        losses = {line["step"]: line["loss"] for line in self._lines("validation")}
        return [Point(step, times.get(step, 0.0), losses[step]) for step in sorted(losses)]

    def _lines(self, kind: str) -> list[dict[str, Any]]:
        """Lines of a kind that have a step and a finite loss."""
        lines = [line for line in self.lines if line.get("kind") == kind]
        return [line for line in lines if is_step(line.get("step")) and is_finite(line.get("loss"))]

    @property
    def config(self) -> ModelConfig | None:
        """The model, if this version can read its description."""
        from sightline.config import ModelConfig
        from sightline.config.values import from_plain
        from sightline.errors import ConfigError

        try:
            return from_plain(ModelConfig, self.description["model"])
        except (ConfigError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError):
            return None

    def settings(self) -> Recipe:
        """The recipe with the settings of this run."""
        from sightline.errors import nearest
        from sightline.recipes import RECIPES

        if self.recipe not in RECIPES:
            raise InputError(
                f"{self.folder}: a run of the recipe {self.recipe[:60]!r}",
                fix=nearest(self.recipe[:60], RECIPES),
            )
        settings = self.description.get("settings")
        if not isinstance(settings, dict):
            raise InputError(
                f"{self.folder / RUN}: has no settings",
                expected="the description of a run",
                fix="train it again",
            )
        return RECIPES[self.recipe].from_settings(settings)


def is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def is_finite(value: Any) -> bool:
    """A finite number; an integer with hundreds of digits is not."""
    return type(value) in (int, float) and -1e300 < value < 1e300


def seconds_of(line: dict[str, Any]) -> float:
    """Training time before a step; 0 where a damaged line has none."""
    value: Any = line.get("seconds", 0.0)
    return float(value) if is_finite(value) and 0 <= value < 1e12 else 0.0


def is_run(folder: str | Path) -> bool:
    return (Path(folder) / RUN).is_file()


def read_run(folder: Path) -> PastRun:
    """A run; of truncated metrics, the readable lines."""
    try:
        description = json.loads(read_text_file(folder / RUN))
    except FileNotFoundError:
        raise InputError(
            f"{folder}: has no {RUN}",
            expected="the folder of a run",
            fix="sightline train NAME --out FOLDER",
        ) from None
    except (OSError, ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise InputError(
            f"{folder / RUN}: cannot be read",
            expected="the description of a run",
            fix="check the folder",
        )
    return PastRun(folder, description, read_metrics(folder / METRICS))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines that are complete JSON objects."""
    try:
        lines = read_text_file(path, max_bytes=MOST_METRICS, errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror})",
            expected="the metrics of a run",
            fix=f"move {path} away",
        ) from None
    objects = list[dict[str, Any]]()
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects
