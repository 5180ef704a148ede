"""What `sightline train` shows while it trains: a live line on a terminal, a line every few seconds
elsewhere, or JSON.

A view never ends a run: where it can no longer write, it falls silent. Only whoever reads the JSON
and goes away is taken to want no more.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Iterable
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
from sightline.training.optimizers import said_groups
from sightline.training.run import Evaluated, Event, Job, Note, Saved

EVERY = 5.0  # seconds between two plain lines
REFRESH = 0.2  # seconds between two drawings of the live line
KINDS = {StepEvent: "step", Evaluated: "validation", Saved: "saved", Note: "note"}


@dataclass(frozen=True, slots=True)
class Opening:
    """What is said before the first step."""

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
        until = f"{self.steps:,} steps" + (
            f" or {self.minutes:g} minutes" if self.minutes is not None else ""
        )
        return [
            f"{self.recipe}, {until}, into {self.folder}",
            f"  parameters  {self.parameters:,}",
            f"  data        {self.data}, fingerprint {self.fingerprint}",
            f"  optimiser   {self.optimizer}",
            *(f"              {group}" for group in self.groups),
            f"  device      {self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}",
        ]


def opening(job: Job, transformer: Transformer, folder: Path) -> Opening:
    """The job as it is about to begin."""
    import torch

    return Opening(
        recipe=job.name,
        folder=str(folder),
        parameters=sum(p.numel() for p in transformer.parameters()),
        data=amount(job.task),
        fingerprint=hashlib.sha256(job.task.fingerprint.encode()).hexdigest()[:12],
        optimizer=named(job.config.optimizer),
        groups=said_groups(transformer, job.config.optimizer),
        device=str(transformer.device),
        threads=torch.get_num_threads(),
        steps=job.config.steps,
        minutes=job.config.minutes,
    )


def amount(task: Task) -> str:
    """How much there is to learn from."""
    if isinstance(task, PackedText):
        held = 0 if task.held_out is None else len(task.held_out.ids)
        return f"{len(task.train.ids):,} tokens, {held:,} held out"
    if isinstance(task, MaskedText):
        return amount(task.text)
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
        tokens = sum(len(one.ids) for one in task.conversations)
        return (
            f"{len(task.conversations):,} conversations with {tokens:,} tokens,"
            f" {len(task.held_out):,} held out"
        )
    return type(task).__name__


def named(config: Optimizer) -> str:
    if isinstance(config, AdamW):
        return f"AdamW, lr {config.lr:g}, weight decay {config.weight_decay:g}"
    return (
        f"Muon, lr {config.lr:g}, weight decay {config.weight_decay:g}, for hidden;"
        f" {named(config.rest)} for the rest"
    )


# ------------------------------------------------------------------------------------------ views


class View(Protocol):
    """`closed`: whoever was to read it is gone."""

    closed: bool

    def begin(self, said: Opening) -> None: ...

    def show(self, event: Event) -> None: ...

    def end(self) -> None: ...


def view(*, json: bool, leads: bool) -> View:
    """The one that suits where the output goes; of several processes only the first speaks."""
    if not leads:
        return Silent()
    if json:
        return JsonLines()
    screen = Console(stderr=True)
    return Live(screen) if screen.is_terminal else Plain()


class Silent:
    closed = False

    def begin(self, said: Opening) -> None: ...

    def show(self, event: Event) -> None: ...

    def end(self) -> None: ...


class JsonLines:
    """Every event as a line on stdout."""

    def __init__(self) -> None:
        self.closed = False

    def begin(self, said: Opening) -> None:
        self.write({"kind": "begin", **asdict(said)})

    def show(self, event: Event) -> None:
        fields = {name: getattr(event, name) for name in event.__slots__}
        self.write(
            {"kind": KINDS[type(event)], **{name: plain(value) for name, value in fields.items()}}
        )

    def write(self, said: dict[str, Any]) -> None:
        try:
            write_json(said, indent=None)
        except OSError:
            self.closed = True

    def end(self) -> None: ...


class Plain:
    """Lines on stderr, few enough for a log."""

    def __init__(self) -> None:
        self.closed = False
        self.steps = 0
        self.next = 0.0
        self.validation = ""
        self.silent = False

    def begin(self, said: Opening) -> None:
        self.steps = said.steps
        self.write(said.lines())

    def show(self, event: Event) -> None:
        if isinstance(event, Note):
            self.write([f"note: {event.text}"])
        elif isinstance(event, Evaluated):
            self.validation = f"  validation {event.loss:.4f}"
            self.write(
                [
                    f"step {event.step:,}  validation"
                    f" {event.loss:.4f}{', the best so far' if event.best else ''}"
                ]
            )
        elif isinstance(event, StepEvent) and time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            self.write(
                [f"step {event.step:,} of {self.steps:,}  {figures(event)}{self.validation}"]
            )

    def write(self, lines: Iterable[str]) -> None:
        if self.silent:
            return
        try:
            sys.stderr.write("".join(f"{escape_line(line)}\n" for line in lines))
            sys.stderr.flush()
        except (OSError, ValueError):
            self.silent = True

    def end(self) -> None: ...


class Live:
    """One line on the terminal, drawn anew; what stays is written above it."""

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

    def begin(self, said: Opening) -> None:
        self.bar.update(self.task, total=said.steps)
        self.draw(lambda: self.screen.print(*said.lines(), sep="\n"))
        self.draw(self.bar.start)

    def show(self, event: Event) -> None:
        if isinstance(event, Note):
            self.draw(lambda: self.screen.print(escape_line(f"note: {event.text}"), style="yellow"))
        elif isinstance(event, Evaluated):
            self.bar.update(
                self.task, validation=f"  val {event.loss:.4f}{'*' if event.best else ''}"
            )
        elif isinstance(event, StepEvent):
            self.bar.update(self.task, completed=event.step, figures=brief(event))
        if time.monotonic() >= self.next:
            self.draw(self.bar.refresh)
            self.next = time.monotonic() + REFRESH

    def draw(self, what: Any) -> None:
        """Unless the terminal is gone."""
        if not self.silent:
            try:
                what()
            except (OSError, ValueError):
                self.silent = True

    def end(self) -> None:
        self.draw(self.bar.refresh)
        self.draw(self.bar.stop)


def brief(event: StepEvent) -> str:
    """For a line of 80 columns."""
    return (
        f"loss {event.loss:.4f}  lr {event.lr:.1e}  {event.tokens_per_second:,.0f} tok/s "
        f" {clock(event.eta)} left"
    )


def figures(event: StepEvent) -> str:
    skipped = "  left out" if event.skipped else ""
    return (
        f"loss {event.loss:.4f}  lr {event.lr:.2e}  {event.tokens_per_second:,.0f} tokens/s  left"
        f" {clock(event.eta)}{skipped}"
    )


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
