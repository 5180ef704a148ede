"""What `sightline train` shows while it trains: a live line on a terminal, a line every few seconds
in a log, or JSON.

A view never ends a run: if it cannot write any more, it is silent. Only the reader of the JSON ends
the run by closing the pipe.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from sightline.cli.ui.output import write_json
from sightline.core.model import Transformer
from sightline.escapes import escape_line
from sightline.terminal.console import Console
from sightline.training.config import AdamW, Optimizer
from sightline.training.data.batch import Task
from sightline.training.data.chats import Chats
from sightline.training.data.labelled import Labelled
from sightline.training.data.masked import MaskedText
from sightline.training.data.packed import PackedText
from sightline.training.data.pairs import Pairs
from sightline.training.loop import StepEvent
from sightline.training.optimizers import describe_groups
from sightline.training.run import Evaluated, Event, Job, Note, Saved

EVERY = 5.0  # seconds between two plain lines
REFRESH = 0.2  # seconds between two updates of the live line
KINDS = {StepEvent: "step", Evaluated: "validation", Saved: "saved", Note: "note"}


@dataclass(frozen=True, slots=True)
class RunStart:
    """What is shown before the first step."""

    recipe: str
    folder: str
    parameters: int
    data: str
    fingerprint: str
    optimizer: str
    groups: list[str]
    device: str
    threads: int
    steps: int
    minutes: float | None

    def lines(self) -> list[str]:
        limit = f"{self.steps:,} steps"
        if self.minutes is not None:
            limit += f" or {self.minutes:g} minutes"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return [
            f"{self.recipe}, {limit}, into {self.folder}",
            f"  parameters  {self.parameters:,}",
            f"  data        {self.data}, fingerprint {self.fingerprint}",
            f"  optimizer   {self.optimizer}",
            *(f"              {group}" for group in self.groups),
            f"  device      {self.device}, {threads}",
        ]


def describe_start(job: Job, transformer: Transformer, folder: Path) -> RunStart:
    """The job, its model, its data and its optimizer."""
    import torch

    return RunStart(
        recipe=job.name,
        folder=str(folder),
        parameters=sum(p.numel() for p in transformer.parameters()),
        data=describe_data(job.task),
        fingerprint=hashlib.sha256(job.task.fingerprint.encode()).hexdigest()[:12],
        optimizer=describe_optimizer(job.config.optimizer),
        groups=describe_groups(transformer, job.config.optimizer),
        device=str(transformer.device),
        threads=torch.get_num_threads(),
        steps=job.config.steps,
        minutes=job.config.minutes,
    )


def describe_data(task: Task) -> str:
    """The amount of training and held-out data."""
    if isinstance(task, PackedText):
        held_out = 0 if task.held_out is None else len(task.held_out.ids)
        return f"{len(task.train.ids):,} tokens, {held_out:,} held out"
    if isinstance(task, MaskedText):
        return describe_data(task.text)
    if isinstance(task, Pairs):
        tokens = sum(map(len, task.sources)) + sum(map(len, task.targets))
        return (
            f"{len(task.sources):,} pairs with {tokens:,} tokens, {len(task.held_out[0]):,}"
            " held out"
        )
    if isinstance(task, Labelled):
        return (
            f"{len(task.rows):,} texts with {sum(map(len, task.rows)):,} tokens,"
            f" {len(task.held_out[0]):,} held out"
        )
    if isinstance(task, Chats):
        tokens = sum(len(conversation.ids) for conversation in task.conversations)
        return (
            f"{len(task.conversations):,} conversations with {tokens:,} tokens,"
            f" {len(task.held_out):,} held out"
        )
    return type(task).__name__


def describe_optimizer(config: Optimizer) -> str:
    if isinstance(config, AdamW):
        return f"AdamW, lr {config.lr:g}, weight decay {config.weight_decay:g}"
    return (
        f"Muon, lr {config.lr:g}, weight decay {config.weight_decay:g}, for hidden matrices;"
        f" {describe_optimizer(config.rest)} for the rest"
    )


# ------------------------------------------------------------------------------------------ views


class TrainingView(Protocol):
    """Shows the events of a run. `closed`: its reader has closed the pipe."""

    closed: bool

    def begin(self, start: RunStart) -> None: ...

    def show(self, event: Event) -> None: ...

    def end(self) -> None: ...


def choose_view(*, json: bool, leads: bool) -> TrainingView:
    """The view for this output; only the first of several processes shows anything."""
    if not leads:
        return SilentView()
    if json:
        return JsonView()
    screen = Console(stderr=True)
    return LiveView(screen) if screen.is_terminal else LogView()


class SilentView:
    closed = False

    def begin(self, start: RunStart) -> None: ...

    def show(self, event: Event) -> None: ...

    def end(self) -> None: ...


class JsonView:
    """Every event as a line of JSON on stdout."""

    def __init__(self) -> None:
        self.closed = False

    def begin(self, start: RunStart) -> None:
        self.write({"kind": "begin", **asdict(start)})

    def show(self, event: Event) -> None:
        fields = {name: json_value(getattr(event, name)) for name in event.__slots__}
        self.write({"kind": KINDS[type(event)], **fields})

    def write(self, values: dict[str, Any]) -> None:
        try:
            write_json(values, indent=None)
        except OSError:
            self.closed = True

    def end(self) -> None: ...


class LogView:
    """A line on stderr every few seconds, for a log."""

    def __init__(self) -> None:
        self.closed = False
        self.steps = 0
        self.next = 0.0
        self.validation = ""
        self.silent = False

    def begin(self, start: RunStart) -> None:
        self.steps = start.steps
        self.write(start.lines())

    def show(self, event: Event) -> None:
        if isinstance(event, Note):
            self.write([f"note: {event.text}"])
        elif isinstance(event, Evaluated):
            self.validation = f"  validation {event.loss:.4f}"
            best = ", the best so far" if event.best else ""
            self.write([f"step {event.step:,}  validation {event.loss:.4f}{best}"])
        elif isinstance(event, StepEvent) and time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            position = f"step {event.step:,} of {self.steps:,}"
            self.write([f"{position}  {log_figures(event)}{self.validation}"])

    def write(self, lines: Iterable[str]) -> None:
        if self.silent:
            return
        try:
            sys.stderr.write("".join(f"{escape_line(line)}\n" for line in lines))
            sys.stderr.flush()
        except (OSError, ValueError):
            self.silent = True

    def end(self) -> None: ...


class LiveView:
    """One line on the terminal that is updated; notes are written above it."""

    def __init__(self, screen: Console) -> None:
        self.closed = False
        self.screen = screen
        self.silent = False
        one_line = Column(no_wrap=True, overflow="ellipsis")
        columns = (
            TextColumn("{task.completed:,}/{task.total:,}", table_column=one_line),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            TextColumn(
                "{task.fields[figures]}{task.fields[validation]}",
                table_column=one_line,
                markup=False,
            ),
        )
        self.bar = Progress(
            *columns,
            console=screen,
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.task = self.bar.add_task("training", total=1, figures="", validation="")
        self.next = 0.0

    def begin(self, start: RunStart) -> None:
        self.bar.update(self.task, total=start.steps)
        self.draw(lambda: self.screen.print(*start.lines(), sep="\n"))
        self.draw(self.bar.start)

    def show(self, event: Event) -> None:
        if isinstance(event, Note):
            self.draw(lambda: self.screen.print(escape_line(f"note: {event.text}"), style="yellow"))
        elif isinstance(event, Evaluated):
            self.bar.update(
                self.task, validation=f"  val {event.loss:.4f}{'*' if event.best else ''}"
            )
        elif isinstance(event, StepEvent):
            self.bar.update(self.task, completed=event.step, figures=live_figures(event))
        if time.monotonic() >= self.next:
            self.draw(self.bar.refresh)
            self.next = time.monotonic() + REFRESH

    def draw(self, action: Callable[[], object]) -> None:
        """Draw, unless the terminal is gone."""
        if not self.silent:
            try:
                action()
            except (OSError, ValueError):
                self.silent = True

    def end(self) -> None:
        self.draw(self.bar.refresh)
        self.draw(self.bar.stop)


def live_figures(event: StepEvent) -> str:
    """The figures of a step, for a line of 80 columns."""
    return (
        f"loss {event.loss:.4f}  lr {event.lr:.1e}  {event.tokens_per_second:,.0f} tok/s "
        f" {clock(event.eta)} left"
    )


def log_figures(event: StepEvent) -> str:
    """The figures of a step, for a log."""
    skipped = "  skipped" if event.skipped else ""
    return (
        f"loss {event.loss:.4f}  lr {event.lr:.2e}  {event.tokens_per_second:,.0f} tokens/s "
        f" {clock(event.eta)} left{skipped}"
    )


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def json_value(value: Any) -> Any:
    """A value that JSON can hold: no infinity, no NaN, paths as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
