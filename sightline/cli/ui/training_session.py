"""A run of `sightline train`: builds the job, trains it, shows its events, and reports the end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from sightline.cli.ui.output import write
from sightline.cli.ui.signals import Stopping
from sightline.cli.ui.training_view import JsonView, TrainingView, choose_view, describe_start
from sightline.core.model import Transformer
from sightline.errors import InputError, SightlineError
from sightline.escapes import escape_line
from sightline.recipes import Recipe
from sightline.training.distributed.process_group import ProcessGroup
from sightline.training.loop import StepEvent, is_out_of_memory
from sightline.training.memory import keep_memory
from sightline.training.run import Job, Note
from sightline.training.run import train as train_job
from sightline.training.state.trackers import Sinks, open_sinks

if TYPE_CHECKING:
    from sightline.cli.commands.train.train import TrainOptions

MOST_THREADS = 4096


def run(recipe: Recipe, folder: Path, options: TrainOptions, *, again: str, json: bool) -> None:
    """Train, or estimate the cost of training. `again` is the command that resumes the run."""
    prepare_process(options.threads)
    if options.dry_run:
        from sightline.cli.ui.dry_run import show_plan

        with memory_errors_explained():
            show_plan(build_job(recipe), json=json)
        return
    with process_group(options.strategy) as group, memory_errors_explained():
        session = TrainingSession(
            job=build_job_once(recipe, group),
            folder=folder,
            view=choose_view(json=json, leads=group.is_main),
            group=group,
            again=again,
        )
        with Stopping() as stopping:
            session.follow(stopping, options)
        session.finish(stopping)


# ------------------------------------------------------------------------------------ preparation


def prepare_process(threads: int | None) -> None:
    """Settings that must precede torch's first computation and its large allocations."""
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise InputError(
                f"--threads is {threads}",
                expected="1 or more",
                fix=f"--threads {os.cpu_count() or 1}",
            )
        torch.set_num_threads(threads)
    keep_memory()


def process_group(strategy: Literal["ddp", "fsdp"]) -> AbstractContextManager[ProcessGroup]:
    """The processes started by torchrun, or only this one, on a GPU if there is one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return nullcontext(ProcessGroup(device=device))
    # the import takes a second that a single process need not wait
    from sightline.training.distributed import strategies

    return strategies.join_process_group(strategy)


def build_job_once(recipe: Recipe, group: ProcessGroup) -> Job:
    """The job. The first process prepares the data, the others find it prepared."""
    if group.is_main:
        job = build_job(recipe)
        group.barrier()
        return job
    group.barrier()
    return build_job(recipe)


def build_job(recipe: Recipe) -> Job:
    """The job; a fix for the tokenizer names the setting of `train`."""
    try:
        return recipe.job()
    except InputError as error:
        fix = re.sub(r"^--vocab (\d+)$", r"--set vocab=\1", error.fix)
        raise type(error)(error.seen, expected=error.expected, fix=fix) from None


@contextmanager
def memory_errors_explained() -> Generator[None]:
    """Turn an out-of-memory error into one line with a fix."""
    try:
        yield
    except SightlineError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"not enough memory for this model: {' '.join(str(error).split())[:160]}",
            expected="one that fits",
            fix="a smaller width, layers or vocab; --dry-run shows what a model needs",
        ) from None


# --------------------------------------------------------------------------------------- training


@dataclass(slots=True)
class TrainingSession:
    """A run and the view that shows it. `again` is the command that resumes it."""

    job: Job
    folder: Path
    view: TrainingView
    group: ProcessGroup
    again: str
    step: int = 0
    trackers: Sinks = field(default_factory=lambda: Sinks([]))

    def follow(self, stopping: Stopping, options: TrainOptions) -> None:
        """Train, and show every event."""
        try:
            for event in train_job(
                self.job,
                self.folder,
                resume=options.resume,
                overwrite=options.overwrite,
                accept=options.accepted,
                started=lambda transformer: self.begin(transformer, options),
                stop=lambda: stopping.requested or self.view.closed,
                group=self.group,
            ):
                if isinstance(event, StepEvent):
                    self.step = event.step
                self.view.show(event)
                for text in self.trackers.write(event):
                    self.view.show(Note(text))
        finally:
            self.view.end()
            self.trackers.close()

    def begin(self, transformer: Transformer, options: TrainOptions) -> None:
        """Open the trackers and show the start."""
        if self.group.is_main:
            self.trackers.open += open_sinks(options.track, self.folder, self.job.settings).open
        self.view.begin(describe_start(self.job, transformer, self.folder))

    def finish(self, stopping: Stopping) -> None:
        """The summary on stdout; or, if stopped, how to resume on stderr and the exit code of the
        signal."""
        if not self.group.is_main:
            return
        if stopping.requested:
            self.report_stop(stopping.reason)
            raise SystemExit(stopping.code)
        if self.view.closed:
            raise BrokenPipeError
        from sightline.cli.ui.training_summary import summarize_run

        summary = summarize_run(self.job, self.folder)
        if isinstance(self.view, JsonView):
            self.view.write({"kind": "end", **asdict(summary)})
        else:
            write(*summary.lines())

    def report_stop(self, reason: str) -> None:
        """The run was interrupted and is saved."""
        if isinstance(self.view, JsonView):
            self.view.write(
                {"kind": "stopped", "reason": reason, "step": self.step, "command": self.again}
            )
            return
        with suppress(OSError, ValueError):
            sys.stderr.write(
                f"stopped by {reason} at step {self.step:,}; the run is saved. Resume with:"
                f" {escape_line(self.again)}\n"
            )
            sys.stderr.flush()
