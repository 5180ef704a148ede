"""Experiment trackers: TensorBoard, wandb and trackio, each chosen by name, if installed.

A tracker that fails is dropped: its network or disk is no reason to stop training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sightline.errors import InputError, nearest, short_reason
from sightline.training.loop import StepEvent
from sightline.training.run import Evaluated, Event

PROJECT = "sightline"


@dataclass(frozen=True, slots=True)
class Sink:
    """An open tracker. `write` takes metrics by name, and the step."""

    name: str
    write: Callable[[dict[str, float], int], None]
    close: Callable[[], None]


def tensorboard(folder: Path, settings: dict[str, Any]) -> Sink:
    """Event files in `tensorboard/` of the run."""
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(
        str(folder / "tensorboard")
    )
    writer.add_text(
        "settings", "\n".join(f"    {name} = {value}" for name, value in settings.items())
    )

    def write(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return Sink("tensorboard", write, writer.close)


def wandb(folder: Path, settings: dict[str, Any]) -> Sink:
    """A run of wandb under the folder's name, its files in the run."""
    run: Any = import_module("wandb").init(
        project=PROJECT, name=folder.name, dir=str(folder), config=settings
    )
    return Sink("wandb", lambda figures, step: run.log(figures, step=step), run.finish)


def trackio(folder: Path, settings: dict[str, Any]) -> Sink:
    """A run of trackio under the folder's name."""
    module: Any = import_module("trackio")
    module.init(project=PROJECT, name=folder.name, config=settings)
    return Sink("trackio", lambda figures, step: module.log(figures, step=step), module.finish)


SINKS: dict[str, Callable[[Path, dict[str, Any]], Sink]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
}


@dataclass(slots=True)
class Sinks:
    """The trackers that still work."""

    open: list[Sink]

    def write(self, event: Event) -> list[str]:
        """Pass an event to every tracker; returns notes on those that failed."""
        if not isinstance(event, (StepEvent, Evaluated)):
            return []
        figures = figures_of(event)
        notes = list[str]()
        for sink in list(self.open):
            try:
                sink.write(figures, event.step)
            except Exception as error:  # a tracker may raise anything
                self.open.remove(sink)
                notes.append(
                    f"{sink.name} is disabled: {type(error).__name__}:"
                    f" {' '.join(str(error).split())[:200]}"
                )
        return notes

    def close(self) -> None:
        while self.open:
            try:
                self.open.pop().close()
            except Exception:  # the run is over and saved
                continue


def open_sinks(names: Iterable[str], folder: Path, settings: dict[str, Any]) -> Sinks:
    """Open the trackers with these names."""
    sinks: list[Sink] = []
    for name in dict.fromkeys(names):
        if name not in SINKS:
            raise InputError(f"no tracker is called {name[:60]!r}", fix=nearest(name[:60], SINKS))
        try:
            sinks.append(SINKS[name](folder, settings))
        except ImportError:
            raise InputError(
                f"{name} is not installed", fix=f"pip install {name}, or leave --track {name} out"
            ) from None
        except Exception as error:  # a login that is missing, a server that does not answer
            raise InputError(
                f"{name} does not start: {short_reason(error)}",
                fix=f"set it up, or leave --track {name} out",
            ) from None
    return Sinks(sinks)


def figures_of(event: StepEvent | Evaluated) -> dict[str, float]:
    """The finite metrics of an event, under the trackers' names."""
    if isinstance(event, Evaluated):
        figures = {"validation/loss": event.loss}
    else:
        speed = {"train/tokens_per_second": event.tokens_per_second, "train/seconds": event.seconds}
        figures = {
            "train/loss": event.loss,
            "train/lr": event.lr,
            "train/grad_norm": event.grad_norm,
            **speed,
        }
        figures |= {} if event.mfu is None else {"train/mfu": event.mfu}
    return {name: value for name, value in figures.items() if math.isfinite(value)}
