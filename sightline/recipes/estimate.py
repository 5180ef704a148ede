"""Estimate the cost of a run from its first few steps on this machine. Nothing is written."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.training.evaluation import validate
from sightline.training.loop import make_train_state
from sightline.training.run import Job

TIMED = 3  # steps, after one that warms up


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes, and seconds of a run of `steps` steps and some evaluations. `rows`, `time` and
    `source` are a batch's mean sizes; it is computed in `accumulate` parts."""

    config: ModelConfig
    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    steps: int
    rows: int
    accumulate: int
    time: int
    source: int | None
    tokens: int
    step_seconds: float
    evaluations: int
    evaluation_seconds: float
    checkpoint: int
    model: int

    @property
    def seconds(self) -> float:
        """Seconds of steps and evaluations, without disk writes."""
        return self.steps * self.step_seconds + self.evaluations * self.evaluation_seconds


def estimate(job: Job, *, timed: int = TIMED) -> Estimate:
    """Take a few real steps, and one evaluation."""
    torch.manual_seed(job.config.seed)
    state = make_train_state(job.make(), replace(job.config, steps=timed + 1, minutes=None))
    parameters = list(state.transformer.parameters())
    trained = [p for p in parameters if p.requires_grad]
    batches = [job.task.batch(n) for n in range(timed + 1)]
    last = [event.seconds for event in state.steps(job.task)]
    each = [after - before for before, after in itertools.pairwise(last)]
    evaluation = time_once(lambda: validate(state, job.task))
    weights = size(parameters)
    moments = size(state.optimizers.tensors().values())
    average = size(state.ema.values())
    config = job.config
    step_seconds = sum(each) / len(each)
    count = (
        config.steps
        if config.minutes is None
        else min(config.steps, int(60 * config.minutes / step_seconds))
    )
    return Estimate(
        config=state.transformer.config,
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in trained),
        weights=weights,
        gradients=size(trained),
        optimizer=moments,
        average=average,
        steps=count,
        rows=mean([batch.rows for batch in batches]),
        accumulate=config.accumulate,
        time=mean([batch.tokens.shape[1] for batch in batches]),
        source=None
        if batches[0].source is None
        else mean([batch.source.shape[1] for batch in batches if batch.source is not None]),
        tokens=mean([batch.input_tokens for batch in batches]),
        step_seconds=step_seconds,
        evaluations=count // config.eval_every + bool(count % config.eval_every),
        evaluation_seconds=evaluation,
        checkpoint=weights + moments + average,
        model=sum(p.numel() for p in parameters)
        * torch.empty((), dtype=job.export.dtype).element_size(),
    )


def time_once(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def mean(counts: Sequence[int]) -> int:
    return round(sum(counts) / len(counts))


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
