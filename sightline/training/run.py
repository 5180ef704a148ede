"""A training run: a folder that holds everything needed to resume it after any interruption.

run.json          everything that determines the weights: recipe, settings, model, training, data
metrics.jsonl     one line per step and evaluation checkpoints/      see `checkpoint.py` model/
the best so far by validation, for `load` and, if its family exists there, for Hugging Face

    for event in train(job, folder): …          StepEvent, Evaluated, Saved, Note

Nothing is printed here. Ctrl-C and SIGTERM finish the step, save and stop; a second trainer in
the same folder is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from sightline.config.values import to_plain
from sightline.core.model import Transformer
from sightline.errors import CheckpointError, InputError
from sightline.training.config import TrainingConfig
from sightline.training.data.batch import Task
from sightline.training.distributed.process_group import (
    SINGLE_PROCESS,
    ProcessGroup,
    ProcessGroupError,
    checksum,
)
from sightline.training.evaluation import validate
from sightline.training.loop import (
    BatchError,
    MemoryFullError,
    NotFiniteError,
    StepEvent,
    TrainState,
    make_train_state,
)
from sightline.training.lora import adapters
from sightline.training.state import checkpoint
from sightline.training.state.export import Export, export_model
from sightline.training.state.metrics import Metrics
from sightline.training.state.resume import (
    METRICS,
    MODEL,
    RUN,
    changes,
    check_description,
    clear_run,
    lock_run,
    write_description,
)

NEUTRAL_SETTINGS = {
    "save_every",
    "eval_every",
    "keep",
    "on_bad",
}  # settings that do not change the weights
MOST_REWINDS = 10
Resume = Literal["auto", "never"]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A validation loss, in nats per target of the held-out data."""

    step: int
    loss: float
    best: bool


@dataclass(frozen=True, slots=True)
class Saved:
    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Note:
    """A message for the user."""

    text: str


Event = StepEvent | Evaluated | Saved | Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything that a run needs. `make` builds the model before the first step; `settings` are
    the recipe's, as they are written to run.json."""

    name: str
    make: Callable[[], Transformer]
    task: Task
    config: TrainingConfig
    export: Export
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def description(self, transformer: Transformer) -> dict[str, Any]:
        """Everything that determines the weights, as JSON values."""
        parts = {
            "recipe": self.name,
            "settings": self.settings,
            "model": to_plain(transformer.config),
        }
        training = {
            name: value
            for name, value in to_plain(self.config).items()
            if name not in NEUTRAL_SETTINGS
        }
        parts["adapters"] = {
            path: f"rank {part.rank}, alpha {part.alpha:g}"
            for path, part in adapters(transformer).items()
        }
        return {
            **parts,
            "training": training,
            "data": self.task.fingerprint,
            "threads": torch.get_num_threads(),
        }


def train(
    job: Job,
    folder: Path,
    *,
    resume: Resume = "auto",
    overwrite: bool = False,
    accept: frozenset[str] = frozenset(),
    started: Callable[[Transformer], object] = lambda transformer: None,
    stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup = SINGLE_PROCESS,
    peak_flops: float | None = None,
) -> Iterator[Event]:
    """Train until all steps are done or `stop()` is true. `accept` names what may differ from the
    run that is resumed: "data", "settings". `started` is called once, when the folder is accepted:
    before the first event and before `stop`."""
    with lock_run(folder, group):
        torch.manual_seed(job.config.seed)
        state = make_train_state(job.make(), job.config, group)
        run = TrainingRun(
            state,
            job,
            folder,
            job.description(state.transformer),
            Metrics(folder / METRICS if group.is_main else None),
            stop,
        )
        notes = run.open_folder(resume=resume, overwrite=overwrite, accept=accept)
        started(state.transformer)
        yield from notes
        yield from run.begin()
        while True:
            try:
                yield from run.train(peak_flops)
                break
            except NotFiniteError as error:
                yield from run.rewind(error)
            except (BatchError, MemoryFullError):
                if group.world_size == 1 and state.step > max(0, run.saved):
                    yield from run.save()
                raise
        yield from run.finish()


@dataclass(slots=True)
class TrainingRun:
    """Evaluations, checkpoints and exports around the steps.

    `best` is the lowest validation loss for which `model/` was exported; `validation` is the last
    one, with its step."""

    state: TrainState
    job: Job
    folder: Path
    description: dict[str, Any]
    metrics: Metrics
    stop: Callable[[], bool]
    best: float = math.inf
    saved: int = -1
    validation: tuple[int, float] = (-1, math.nan)
    rewinds: int = 0

    def open_folder(
        self, *, resume: Resume, overwrite: bool, accept: frozenset[str]
    ) -> list[Event]:
        """Start a new run, or resume the old one from its newest complete checkpoint."""
        group = self.state.group
        exists = bool(
            group.broadcast((self.folder / RUN).exists())
        )  # the main process may write it before the others look
        if exists and resume == "never" and not overwrite:
            raise InputError(
                f"{self.folder}: holds a run already",
                expected="a new folder",
                fix="--resume auto to resume it, or --overwrite to start again",
            )
        notes: list[Event] = []
        if exists and not overwrite:
            notes += self.resume(accept)
        elif group.is_main:
            clear_run(self.folder)
        if group.is_main:
            write_description(self.folder, self.description)
        group.barrier()
        return [*notes, *notes_of(self.metrics.cut(self.state.step))]

    def begin(self) -> Iterator[Event]:
        """What is due before the first step."""
        if self.state.step == 0 and self.job.config.on_bad == "rewind":
            yield from self.save()
        if self.state.step and self.evaluation_due() and self.validation[0] != self.state.step:
            yield from self.evaluate()

    def resume(self, accept: frozenset[str]) -> Iterator[Event]:
        """Restore the newest complete checkpoint."""
        for text in check_description(self.folder, self.description, accept):
            yield Note(text)
        path, notes = checkpoint.newest_complete(self.folder)
        for text in notes:
            yield Note(text)
        manifest = None if path is None else checkpoint.restore_checkpoint(self.state, path)
        check_in_sync(self.state)
        if manifest is None:
            yield Note("no checkpoint yet: the run starts at step 0")
            return
        for text in changes(manifest.versions, checkpoint.library_versions()):
            yield Note(f"changed: {text}; results may differ in the last bits")
        self.best = math.inf if manifest.best is None else manifest.best
        self.saved = manifest.step
        if manifest.validation is not None:
            self.validation = manifest.step, manifest.validation
        yield Note(f"resumed at step {manifest.step}")

    def train(self, peak_flops: float | None) -> Iterator[Event]:
        """The steps, with evaluations and checkpoints when they are due."""
        for event in self.state.steps(self.job.task, stop=self.stop, peak_flops=peak_flops):
            yield from notes_of(self.metrics.write("step", event))
            yield event
            if self.evaluation_due():
                yield from self.evaluate()
            if self.state.step % self.job.config.save_every == 0:
                yield from self.save()

    def evaluation_due(self) -> bool:
        return (
            self.state.step % self.job.config.eval_every == 0
            or self.state.step == self.job.config.steps
        )

    def evaluate(self) -> Iterator[Event]:
        """The validation loss, if there is held-out data; the best model is exported."""
        loss = validate(self.state, self.job.task, stop=self.stop)
        if math.isnan(loss):
            return
        result = Evaluated(self.state.step, loss, loss < self.best)
        self.validation = result.step, loss
        yield from notes_of(self.metrics.write("validation", result))
        yield result
        if result.best and (yield from self.export_model()):
            self.best = loss

    def export_model(self) -> Generator[Event, None, bool]:
        """Write `model/`. A full disk is noted, and does not end the run."""
        failed = None
        try:
            export_model(self.state, self.job.export, self.folder / MODEL)
        except CheckpointError as error:
            failed = error
            yield Note(str(error))
        return not self.state.group.any(failed is not None)

    def save(self, *, last: bool = False) -> Iterator[Event]:
        """Write a checkpoint. If that fails, training continues until the next one; after the last
        step it is an error."""
        state = self.state
        check_in_sync(state)
        self.check_finite()
        at, loss = self.validation
        validation = loss if at == state.step else None
        path = Path()
        failed = None
        try:
            path = checkpoint.save_checkpoint(
                state,
                self.folder,
                self.description,
                validation=validation,
                best=self.best,
                keep=self.job.config.keep,
            )
        except CheckpointError as error:
            failed = error
        if not state.group.any(failed is not None):
            self.saved = state.step
            yield Saved(state.step, path)
        elif failed is not None:
            if last:
                raise failed
            yield Note(str(failed))

    def check_finite(self) -> None:
        """Refuse to save weights or moments that are not finite."""
        bad = checkpoint.find_not_finite(self.state)
        if self.state.group.any(bool(bad)):
            raise NotFiniteError(
                f"step {self.state.step}: {bad or 'a weight of another process'} is not finite",
                expected="finite weights and moments; the checkpoints before are untouched",
                fix="a smaller lr, or on_bad=rewind to go back and skip these batches",
            ).at(self.state.step - 1)

    def rewind(self, error: NotFiniteError) -> Iterator[Event]:
        """Go back to the last checkpoint at a multiple of `save_every` and skip the batches since
        (Chowdhery et al. 2022); raise the error if `on_bad` is not "rewind". Which batches are
        skipped does not depend on when the run was interrupted."""
        state = self.state
        config = self.job.config
        bad = error.step
        first = bad // config.save_every * config.save_every
        path = rewind_to(self.folder, first)
        if config.on_bad != "rewind" or path is None or self.rewinds >= MOST_REWINDS:
            raise error
        self.rewinds += 1
        skip = state.skip | set(range(first, bad + 1))
        checkpoint.restore_checkpoint(state, path)
        check_in_sync(state)
        state.skip |= skip
        self.saved = state.step
        self.validation = (-1, math.nan)
        yield from notes_of(self.metrics.cut(state.step))
        yield Note(
            f"{error.seen}: back to step {state.step}, and the batches of steps {first} to {bad}"
            " are skipped"
        )

    def finish(self) -> Iterator[Event]:
        """The last evaluation if the run is over, and a checkpoint of the steps since the last
        one."""
        over = self.state.step >= self.job.config.steps or self.state.out_of_time()
        if over and self.validation[0] != self.state.step:
            yield from self.evaluate()
        if self.saved != self.state.step:
            yield from self.save(last=True)
        if math.isinf(self.best):
            yield from self.export_model()


def notes_of(text: str) -> Iterator[Event]:
    """A note, if the text is not empty."""
    if text:
        yield Note(text)


def rewind_to(folder: Path, step: int) -> Path | None:
    """The newest complete checkpoint at or before a step; the oldest one, if all are later."""
    complete = [path for path in checkpoint.checkpoints(folder) if not checkpoint.find_damage(path)]
    before = [path for path in complete if int(path.name[5:]) <= step]
    return before[-1] if before else complete[0] if complete else None


def check_in_sync(state: TrainState) -> None:
    """Check that all processes are at the same step with the same weights."""
    group = state.group
    if not group.all_equal(state.step):
        raise ProcessGroupError(
            f"process {group.rank} is at step {state.step}, others are not",
            expected="one run folder for all",
            fix="--out a folder that all machines share",
        )
    if not group.all_equal(checksum(state.transformer.parameters())):
        raise ProcessGroupError(
            f"the processes no longer have the same weights at step {state.step}; nothing was"
            " saved",
            expected="the same everywhere",
            fix=(
                "--resume auto continues from the last checkpoint; if it happens again, test the"
                " machine's memory"
            ),
        )
