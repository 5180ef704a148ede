"""A run: a folder in which a model learns, and from which it can go on after anything.

    run.json          what decides the weights: recipe, settings, model, training, data
    metrics.jsonl     one line for each step and evaluation
    checkpoints/      see `state.py`
    model/            the best so far by validation, as `load` opens it and, where its family exists
                      there, Hugging Face too

    for event in train(job, folder): …          StepEvent, Evaluated, Saved, Note

Nothing is printed here. Ctrl-C and SIGTERM end the step, save and stop; a second trainer in the
same folder is refused.
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
from sightline.training.distributed.process_group import ALONE, Crew, CrewError, checksum
from sightline.training.evaluation import validate
from sightline.training.loop import (
    BatchError,
    MemoryFullError,
    NotFiniteError,
    StepEvent,
    Trainee,
    out_of_time,
    steps,
    trainee,
)
from sightline.training.lora import adapters
from sightline.training.state import checkpoint as state
from sightline.training.state.export import Export, export
from sightline.training.state.metrics import Metrics
from sightline.training.state.resume import (
    METRICS,
    MODEL,
    RUN,
    changes,
    clear,
    compare,
    describe,
    locked,
)

FREE = {"save_every", "eval_every", "keep", "on_bad"}  # settings that do not decide what is learned
MOST_REWINDS = 10
Resume = Literal["auto", "never"]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Nats for each target of the held-out data."""

    step: int
    loss: float
    best: bool


@dataclass(frozen=True, slots=True)
class Saved:
    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader should know."""

    text: str


Event = StepEvent | Evaluated | Saved | Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything that a run needs. `make` gives the model as it is before the first step, `told` is
    what the user asked for."""

    name: str
    make: Callable[[], Transformer]
    task: Task
    config: TrainingConfig
    export: Export
    told: dict[str, Any] = field(default_factory=dict[str, Any])

    def described(self, transformer: Transformer) -> dict[str, Any]:
        """What decides the weights, in plain values."""
        said = {"recipe": self.name, "settings": self.told, "model": to_plain(transformer.config)}
        training = {
            name: value for name, value in to_plain(self.config).items() if name not in FREE
        }
        said["adapters"] = {
            path: f"rank {part.rank}, alpha {part.alpha:g}"
            for path, part in adapters(transformer).items()
        }
        return {
            **said,
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
    stop: Callable[[], bool] = lambda: False,
    crew: Crew = ALONE,
    peak_flops: float | None = None,
) -> Iterator[Event]:
    """Train until done or told to stop. `accept` names what may differ from the run that is
    resumed: "data", "settings"."""
    with locked(folder, crew):
        torch.manual_seed(job.config.seed)
        learner = trainee(job.make(), job.config, crew)
        run = Run(
            learner,
            job,
            folder,
            job.described(learner.transformer),
            Metrics(folder / METRICS if crew.leads else None),
            stop,
        )
        yield from run.begin(resume=resume, overwrite=overwrite, accept=accept)
        while True:
            try:
                yield from run.learn(peak_flops)
                break
            except NotFiniteError as error:
                yield from run.rewind(error)
            except (BatchError, MemoryFullError):
                if crew.world == 1 and learner.step > max(0, run.saved):
                    yield from run.save()
                raise
        yield from run.finish()


@dataclass(slots=True)
class Run:
    """What happens around the steps: evaluations, checkpoints, the model that is handed out.

    `best` is the least validation loss that `model/` was handed out for; `validation` is the last
    one, and its step."""

    learner: Trainee
    job: Job
    folder: Path
    described: dict[str, Any]
    metrics: Metrics
    stop: Callable[[], bool]
    best: float = math.inf
    saved: int = -1
    validation: tuple[int, float] = (-1, math.nan)
    rewinds: int = 0

    def begin(self, *, resume: Resume, overwrite: bool, accept: frozenset[str]) -> Iterator[Event]:
        """A new run, or the old one from its newest whole checkpoint."""
        crew = self.learner.crew
        there = bool(
            crew.first((self.folder / RUN).exists())
        )  # the first may write it before the others look
        if there and resume == "never" and not overwrite:
            raise InputError(
                f"{self.folder}: holds a run already",
                expected="a new folder",
                fix="--resume auto to go on, or --overwrite to begin again",
            )
        if there and not overwrite:
            yield from self.go_on(accept)
        elif crew.leads:
            clear(self.folder)
        if crew.leads:
            describe(self.folder, self.described)
        crew.meet()
        yield from said(self.metrics.cut(self.learner.step))
        if self.learner.step == 0 and self.job.config.on_bad == "rewind":
            yield from self.save()
        if self.learner.step and self.evaluation_due() and self.validation[0] != self.learner.step:
            yield from self.evaluate()

    def go_on(self, accept: frozenset[str]) -> Iterator[Event]:
        """The state of the newest whole checkpoint."""
        for text in compare(self.folder, self.described, accept):
            yield Note(text)
        path, notes = state.newest(self.folder)
        for text in notes:
            yield Note(text)
        manifest = None if path is None else state.restore(self.learner, path)
        check_together(self.learner)
        if manifest is None:
            yield Note("no checkpoint yet: the run begins at step 0")
            return
        for text in changes(manifest.versions, state.versions()):
            yield Note(f"changed: {text}; sums may round otherwise")
        self.best = math.inf if manifest.best is None else manifest.best
        self.saved = manifest.step
        if manifest.validation is not None:
            self.validation = manifest.step, manifest.validation
        yield Note(f"resumed at step {manifest.step}")

    def learn(self, peak_flops: float | None) -> Iterator[Event]:
        """The steps, and what is due after each."""
        for event in steps(self.learner, self.job.task, stop=self.stop, peak_flops=peak_flops):
            yield from said(self.metrics.write("step", event))
            yield event
            if self.evaluation_due():
                yield from self.evaluate()
            if self.learner.step % self.job.config.save_every == 0:
                yield from self.save()

    def evaluation_due(self) -> bool:
        return (
            self.learner.step % self.job.config.eval_every == 0
            or self.learner.step == self.job.config.steps
        )

    def evaluate(self) -> Iterator[Event]:
        """The loss on what is held out, if anything is; the best model is handed out."""
        loss = validate(self.learner, self.job.task, stop=self.stop)
        if math.isnan(loss):
            return
        result = Evaluated(self.learner.step, loss, loss < self.best)
        self.validation = result.step, loss
        yield from said(self.metrics.write("validation", result))
        yield result
        if result.best and (yield from self.hand_out()):
            self.best = loss

    def hand_out(self) -> Generator[Event, None, bool]:
        """`model/`, as it is now. A disk that is full costs this copy, not the run."""
        failed = None
        try:
            export(self.learner, self.job.export, self.folder / MODEL)
        except CheckpointError as error:
            failed = error
            yield Note(str(error))
        return not self.learner.crew.agree(failed is not None)

    def save(self, *, last: bool = False) -> Iterator[Event]:
        """A checkpoint. If it cannot be written, training goes on, and the next one may; after the
        last step there is none."""
        learner = self.learner
        check_together(learner)
        self.check_finite()
        at, loss = self.validation
        validation = loss if at == learner.step else None
        path = Path()
        failed = None
        try:
            path = state.save(
                learner,
                self.folder,
                self.described,
                validation=validation,
                best=self.best,
                keep=self.job.config.keep,
            )
        except CheckpointError as error:
            failed = error
        if not learner.crew.agree(failed is not None):
            self.saved = learner.step
            yield Saved(learner.step, path)
        elif failed is not None:
            if last:
                raise failed
            yield Note(str(failed))

    def check_finite(self) -> None:
        """What has been learned is worth keeping."""
        bad = state.not_finite(self.learner)
        if self.learner.crew.agree(bool(bad)):
            raise NotFiniteError(
                f"step {self.learner.step}: {bad or 'a weight of another process'} is not finite",
                expected="finite weights and moments; the checkpoints before are untouched",
                fix="a smaller lr, or on_bad=rewind to go back and leave these batches out",
            ).at(self.learner.step - 1)

    def rewind(self, error: NotFiniteError) -> Iterator[Event]:
        """Back to the last checkpoint at a multiple of `save_every`, and without the batches since,
        for they led there (Chowdhery et al. 2022); or the error, where that is not wanted. What is
        left out does not depend on when the run was interrupted."""
        learner = self.learner
        config = self.job.config
        bad = error.step
        first = bad // config.save_every * config.save_every
        path = rewind_to(self.folder, first)
        if config.on_bad != "rewind" or path is None or self.rewinds >= MOST_REWINDS:
            raise error
        self.rewinds += 1
        skip = learner.skip | set(range(first, bad + 1))
        state.restore(learner, path)
        check_together(learner)
        learner.skip |= skip
        self.saved = learner.step
        self.validation = (-1, math.nan)
        yield from said(self.metrics.cut(learner.step))
        yield Note(
            f"{error.seen}: back to step {learner.step}, and the batches of steps {first} to {bad}"
            " are left out"
        )

    def finish(self) -> Iterator[Event]:
        """The last evaluation where the run is over, and a checkpoint of what was learned since the
        last one."""
        over = self.learner.step >= self.job.config.steps or out_of_time(self.learner)
        if over and self.validation[0] != self.learner.step:
            yield from self.evaluate()
        if self.saved != self.learner.step:
            yield from self.save(last=True)
        if math.isinf(self.best):
            yield from self.hand_out()


def said(text: str) -> Iterator[Event]:
    """A note, if there is anything to say."""
    if text:
        yield Note(text)


def rewind_to(folder: Path, step: int) -> Path | None:
    """The newest whole checkpoint at or before a step; the oldest whole one, if all are later."""
    whole = [path for path in state.checkpoints(folder) if not state.verify(path)]
    before = [path for path in whole if int(path.name[5:]) <= step]
    return before[-1] if before else whole[0] if whole else None


def check_together(learner: Trainee) -> None:
    """All processes stand at one step with the same weights; else nothing is learned or saved."""
    crew = learner.crew
    if not crew.same(learner.step):
        raise CrewError(
            f"process {crew.rank} is at step {learner.step}, others are not",
            expected="one run folder for all",
            fix="--out a folder that all machines share",
        )
    if not crew.same(checksum(learner.transformer.parameters())):
        raise CrewError(
            f"the processes no longer have the same weights at step {learner.step}; nothing was"
            " saved",
            expected="the same everywhere",
            fix=(
                "--resume auto goes on from the last checkpoint; if it happens again, suspect a"
                " machine's memory"
            ),
        )
