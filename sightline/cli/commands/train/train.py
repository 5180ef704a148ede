"""`sightline train`: a recipe with your settings, into a folder; interrupted, the same command goes
on."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import App, Parameter

from sightline.cli.ui.arguments import Count
from sightline.cli.ui.output import write
from sightline.cli.ui.signals import Stopping
from sightline.cli.ui.training_view import JsonLines, View, opening, view
from sightline.core.model import Transformer
from sightline.errors import InputError, SightlineError, nearest, short
from sightline.escapes import escape_line
from sightline.files.regular import read_text_file
from sightline.recipes import RECIPES, Recipe
from sightline.recipes.settings import key_values, spelled
from sightline.terminal.console import Console
from sightline.training.distributed.process_group import Crew
from sightline.training.loop import StepEvent, is_memory
from sightline.training.memory import keep_memory
from sightline.training.run import Job, Note, Resume
from sightline.training.run import train as train_job
from sightline.training.state.trackers import Sinks, open_sinks

LIST = "list"


def one_line(recipe: type[Recipe]) -> str:
    """What a recipe makes: the first line of its file."""
    return (inspect.getdoc(inspect.getmodule(recipe)) or "").splitlines()[0]


def recipes_text() -> str:
    """Every recipe, what it makes, and its settings where they are not what all have; as wide as
    the terminal."""
    width = Console().width
    usual = Recipe.defaults()
    lines = ["Recipes, with their settings:"]
    for name, recipe in RECIPES.items():
        own = {
            key: value
            for key, value in recipe.defaults().items()
            if key not in usual or usual[key] != value
        }
        lines += [
            "",
            *textwrap.wrap(f"{name}: {one_line(recipe)}", width, subsequent_indent="  "),
            *wrapped(own, width),
        ]
    common = "Settings that all recipes have, and what they are unless a recipe says otherwise:"
    return "\n".join([*lines, "", *textwrap.wrap(common, width), *wrapped(usual, width)])


def wrapped(settings: dict[str, Any], width: int) -> list[str]:
    """`name=value` side by side."""
    lines = [""]
    for name, value in settings.items():
        word = f"  {name}={'' if value is None else spelled(value)}"
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += word
    return lines


train = App(
    name="train",
    help="Train a model by a recipe; interrupted, the same command goes on.",
    help_epilogue=recipes_text(),
)


@train.default
def run(
    name: str | None = None,
    /,
    *,
    settings: Annotated[
        tuple[str, ...], Parameter(name="--set", consume_multiple=True, negative=())
    ] = (),
    out: Path | None = None,
    config: Path | None = None,
    resume: Resume = "auto",
    overwrite: bool = False,
    accept_data_change: bool = False,
    accept_changes: bool = False,
    dry_run: bool = False,
    track: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...], Parameter(negative=())
    ] = (),
    threads: Count = None,
    strategy: Literal["ddp", "fsdp"] = "ddp",
    json: bool = False,
) -> None:
    """Train a model by a recipe; interrupted, the same command goes on.

    Parameters
    ----------
    name
        A recipe; `sightline train list` shows them with their settings.
    settings
        Settings of the recipe: --set steps=500 width=256 text=my.txt …
    out
        The run's folder; by default runs/NAME. A run that is there is gone on with, if its settings
        are the same.
    config
        A .toml file of settings; --set wins over it.
    resume
        never refuses a folder that holds a run.
    overwrite
        Begin again: the run in the folder is lost.
    accept_data_change
        Go on although the data is no longer the same.
    accept_changes
        Go on although settings are no longer the same.
    dry_run
        Show parameters, FLOPs, memory, disk and time, and write nothing.
    track
        Send the figures to a tracker that is installed as well; may be given several times.
    threads
        Threads for the arithmetic. Another number rounds otherwise.
    strategy
        Under torchrun: ddp, the default, copies the model to every process; fsdp parts it among
        them.
    json
        Write every event as a line of JSON on stdout.
    """
    if name == LIST and not settings:
        write(recipes_text())
        return
    recipe = told(name, settings, config)
    prepare_process(threads)
    if dry_run:
        from sightline.cli.ui.dry_run import show

        with enough_memory():
            show(job_of(recipe), json=json)
        return
    accept = {
        word for word, yes in (("data", accept_data_change), ("settings", accept_changes)) if yes
    }
    with crew_here(strategy) as crew, enough_memory():
        session = Session(
            job=prepared(recipe, crew),
            folder=out or Path("runs") / str(name),
            shown=view(json=json, leads=crew.leads),
            crew=crew,
            again=command(
                str(name), settings, out=out, config=config, threads=threads, track=track
            ),
        )
        with Stopping() as stopping:
            session.follow(
                stopping, track=track, resume=resume, overwrite=overwrite, accept=frozenset(accept)
            )
        session.finish(stopping)


# ------------------------------------------------------------------------------------- beforehand


def told(name: str | None, words: tuple[str, ...], file: Path | None) -> Recipe:
    """The recipe with its settings: the file's, and over them those of the command line."""
    if name is None:
        raise InputError(
            "no recipe was named",
            expected=f"one of {', '.join(RECIPES)}",
            fix="sightline train list",
        )
    if name not in RECIPES:
        raise InputError(
            f"no recipe is called {short(name)}", fix=nearest(name[:60], [*RECIPES, LIST])
        )
    return RECIPES[name].told_by(
        {**(read_toml(file) if file is not None else {}), **key_values(words)}
    )


def read_toml(file: Path) -> dict[str, Any]:
    """Settings from a file."""
    try:
        return tomllib.loads(read_text_file(file, encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror})",
            expected="a .toml file",
            fix="check the path",
        ) from None
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(
            f"{file}: is not TOML ({why})",
            expected="lines like steps = 500",
            fix="correct the file",
        ) from None


def prepare_process(threads: int | None) -> None:
    """What must be settled before torch has allocated much or computed anything."""
    if threads is not None:
        if not 1 <= threads <= 4096:
            raise InputError(
                f"--threads is {threads}",
                expected="1 or more",
                fix=f"--threads {os.cpu_count() or 1}",
            )
        torch.set_num_threads(threads)
    keep_memory()


def crew_here(strategy: Literal["ddp", "fsdp"]) -> AbstractContextManager[Crew]:
    """The processes that torchrun started, or this one alone, on a GPU if there is one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return nullcontext(
            Crew(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        )
    from sightline.training.distributed import (
        strategies as distributed,
    )  # takes a second, and one process has no use for it

    return distributed.crew_here(strategy)


def prepared(recipe: Recipe, crew: Crew) -> Job:
    """The job. The first process prepares its data, the others find it prepared."""
    if crew.leads:
        job = job_of(recipe)
        crew.meet()
        return job
    crew.meet()
    return job_of(recipe)


def job_of(recipe: Recipe) -> Job:
    """The job; a fix for the tokenizer is written as the setting that it is here."""
    try:
        return recipe.job()
    except InputError as error:
        fix = re.sub(r"^--vocab (\d+)$", r"--set vocab=\1", error.fix)
        raise type(error)(error.seen, expected=error.expected, fix=fix) from None


def command(
    name: str,
    words: tuple[str, ...],
    *,
    out: Path | None,
    config: Path | None,
    threads: int | None,
    track: tuple[str, ...],
) -> str:
    """The line that goes on with a run."""
    line = ["sightline", "train", name]
    line += ["--set", *words] if words else []
    for option, value in (
        ("--out", out),
        ("--config", config),
        ("--threads", threads),
        *(("--track", one) for one in track),
    ):
        line += [] if value is None else [option, str(value)]
    return shlex.join(line)


@contextmanager
def enough_memory() -> Generator[None]:
    """Where there is not, one line says what helps."""
    try:
        yield
    except SightlineError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        raise InputError(
            f"not enough memory for this model: {' '.join(str(error).split())[:160]}",
            expected="one that fits",
            fix="a smaller width, layers or vocab; --dry-run shows what a model needs",
        ) from None


# ---------------------------------------------------------------------------------- while it runs


@dataclass(slots=True)
class Session:
    """A run and whoever watches it. `again` is the command that goes on with it."""

    job: Job
    folder: Path
    shown: View
    crew: Crew
    again: str
    step: int = 0
    begun: bool = False

    def follow(
        self,
        stopping: Stopping,
        *,
        track: tuple[str, ...],
        resume: Resume,
        overwrite: bool,
        accept: frozenset[str],
    ) -> None:
        """Train and show. The opening is said when the folder was found fit: before the first
        event, or the first step."""
        made: list[Transformer] = []
        sinks = Sinks([])

        def make() -> Transformer:
            made.append(self.job.make())
            return made[0]

        def begin() -> None:
            if not self.begun:
                self.begun = True
                sinks.open += (
                    open_sinks(track, self.folder, self.job.told).open if self.crew.leads else []
                )
                self.shown.begin(opening(self.job, made[0], self.folder))

        def stop() -> bool:
            begin()
            return stopping.asked or self.shown.closed

        job = replace(self.job, make=make)
        try:
            for event in train_job(
                job,
                self.folder,
                resume=resume,
                overwrite=overwrite,
                accept=accept,
                stop=stop,
                crew=self.crew,
            ):
                begin()
                self.step = event.step if isinstance(event, StepEvent) else self.step
                for said in (event, *map(Note, sinks.write(event))):
                    self.shown.show(said)
        finally:
            self.shown.end()
            sinks.close()

    def finish(self, stopping: Stopping) -> None:
        """How it went, on stdout; or how to go on, on stderr, and the exit code that tells it."""
        if not self.crew.leads:
            return
        if stopping.asked:
            self.stopped(stopping.reason)
            raise SystemExit(stopping.code)
        if self.shown.closed:
            raise BrokenPipeError
        from sightline.cli.ui.training_summary import ending

        found = ending(self.job, self.folder)
        if isinstance(self.shown, JsonLines):
            self.shown.write({"kind": "end", **asdict(found)})
        else:
            write(*found.lines())

    def stopped(self, reason: str) -> None:
        """The run was interrupted, and lost nothing."""
        if isinstance(self.shown, JsonLines):
            self.shown.write(
                {"kind": "stopped", "reason": reason, "step": self.step, "command": self.again}
            )
            return
        with suppress(OSError, ValueError):
            sys.stderr.write(
                f"stopped by {reason} at step {self.step:,}; it is saved. Go on with:"
                f" {escape_line(self.again)}\n"
            )
            sys.stderr.flush()
