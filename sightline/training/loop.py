"""The training loop: batch → loss → gradient → update, and an event for each step.

    for event in steps(trainee, task): …

What step n does is decided by the state after step n − 1, the configuration and n. The random
numbers of dropout belong to (seed, step, process): nothing has to be saved for them. A loss or
gradient that is not finite is caught before it reaches a weight, and whatever else goes wrong in a
step (data that cannot be read, memory that is not there) leaves the state before it, good to be
saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sightline.core.block import Block
from sightline.core.hypersphere import SphereBlock
from sightline.core.model import Transformer
from sightline.errors import SightlineError
from sightline.training.config import TrainingConfig
from sightline.training.data.batch import Batch, Task
from sightline.training.data.order import random
from sightline.training.distributed.process_group import ALONE, Crew, whole
from sightline.training.flops import step_flops
from sightline.training.loss import Objective
from sightline.training.optimizers import Optimizers, make_optimizers
from sightline.training.schedules import factor, factor_by_clock

MOST_SKIPPED = 10  # steps in a row; a run that breaks more often has another fault


class NotFiniteError(SightlineError, ArithmeticError):
    """A loss, gradient or weight that is NaN or infinite; `step` is the number of the batch that
    showed it."""

    step = -1

    def at(self, step: int) -> NotFiniteError:
        self.step = step
        return self


class BatchError(SightlineError, RuntimeError):
    """Data that could not be read or made into a batch. The cause is chained."""


class MemoryFullError(SightlineError, MemoryError):
    """A step that needs more memory than there is."""


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One update: the loss in nats for each target, before the update; seconds left, if known;
    whether the update was left out; seconds of training so far, without evaluations and saves."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float
    eta: float
    mfu: float | None = None
    skipped: bool = False
    seconds: float = 0.0


@dataclass(slots=True)
class Trainee:
    """Everything that changes while training."""

    transformer: Transformer
    config: TrainingConfig
    objective: nn.Module
    optimizers: Optimizers
    ema: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0
    crew: Crew = ALONE
    skip: set[int] = field(default_factory=set)
    """Steps whose batch is left out, because the loss or gradient was not finite there."""
    bad_in_a_row: int = 0


def trainee(transformer: Transformer, config: TrainingConfig, crew: Crew = ALONE) -> Trainee:
    """A model that is about to learn."""
    transformer.train()
    if config.checkpoint_activations:
        recompute_blocks(transformer)
    objective = crew.wrap(
        Objective(transformer, label_smoothing=config.label_smoothing, z_loss=config.z_loss)
    )
    objective = cast(nn.Module, torch.compile(objective)) if config.compile else objective
    ema = (
        {name: p.detach().clone() for name, p in transformer.named_parameters()}
        if config.ema
        else {}
    )
    return Trainee(
        transformer,
        config,
        objective,
        make_optimizers(transformer, config.optimizer),
        ema,
        crew=crew,
    )


def recompute_blocks(transformer: Transformer) -> None:
    """Each block keeps its input alone, and computes the rest once more in the backward pass, with
    the same dropout."""
    for part in transformer.modules():
        if isinstance(part, (Block, SphereBlock)) and "forward" not in vars(part):
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)


def steps(
    self: Trainee,
    task: Task,
    *,
    stop: Callable[[], bool] = lambda: False,
    peak_flops: float | None = None,
) -> Iterator[StepEvent]:
    """One event for each step, until there are enough, the time is over, or `stop` says so.
    `peak_flops` are those that all processes together could do in a second."""
    while self.step < self.config.steps and not out_of_time(self):
        started = time.perf_counter()
        batch = batch_of(task, self.step)
        ended = self.crew.agree(stop() or isinstance(batch, BatchError))
        if isinstance(batch, BatchError):
            raise batch
        if ended:
            return
        torch.manual_seed(
            int(random(self.config.seed, 1, self.step, self.crew.rank).integers(2**63))
        )
        rate = self.optimizers.set_factor(rate_factor(self))
        found = (math.nan, math.nan) if self.step in self.skip else attempt(self, batch, stop)
        if found is None:
            return
        good = update_if_good(self, *found)
        self.step += 1
        took = time.perf_counter() - started
        self.seconds += took
        mfu = step_flops(self.transformer, batch) / took / peak_flops if peak_flops else None
        yield StepEvent(
            self.step,
            found[0],
            rate,
            found[1],
            batch.read / took,
            seconds_left(self),
            mfu,
            not good,
            self.seconds,
        )


def batch_of(task: Task, step: int) -> Batch | BatchError:
    """The batch, or why there is none."""
    try:
        return task.batch(step)
    except Exception as error:
        failed = BatchError(
            f"step {step}: its batch could not be made: {short_error(error)}",
            fix="mend the data, then --resume auto",
        )
        failed.__cause__ = error
        return failed


def short_error(error: Exception) -> str:
    """On one line."""
    return " ".join(
        f"{'' if isinstance(error, SightlineError) else type(error).__name__ + ': '}{error}".split()
    )[:400]


def attempt(self: Trainee, batch: Batch, stop: Callable[[], bool]) -> tuple[float, float] | None:
    """`backward`, without gradients left over where memory is short."""
    try:
        return backward(self, batch, stop)
    except (MemoryError, RuntimeError) as error:
        self.optimizers.zero()
        if not is_memory(error):
            raise
    rows = batch.rows
    parts = self.config.accumulate
    raise MemoryFullError(
        f"step {self.step}: not enough memory for a batch of {rows} × {batch.tokens.shape[1]}"
        f" tokens in {parts} part{'s' * (parts > 1)}",
        expected="room for the activations of one part; no weight was changed",
        fix=(
            f"accumulate={2 * parts} (the same batch in smaller parts), then --resume auto; or"
            " checkpoint_activations=true"
        ),
    )


def is_memory(error: BaseException) -> bool:
    """Whether torch, CUDA or Python ran out of memory."""
    words = str(error).lower()
    return (
        isinstance(error, (MemoryError, torch.OutOfMemoryError))
        or "allocate memory" in words
        or "out of memory" in words
    )


def backward(
    self: Trainee, batch: Batch, stop: Callable[[], bool] = lambda: False
) -> tuple[float, float] | None:
    """Gradients of the mean loss over the whole batch, clipped; the loss and the norm before
    clipping. Nothing if stopped on the way."""
    config = self.config
    crew = self.crew
    total = torch.zeros((), dtype=torch.float64)
    count = max(1, batch.count)
    mine = batch.share(crew.rank, crew.world).to(self.transformer.device)
    parts = list(
        mine.parts(min(config.accumulate, max(1, batch.rows // crew.world)))
    )  # as many for everyone
    for n, part in enumerate(parts):
        if n and crew.world == 1 and stop():
            self.optimizers.zero()
            return None
        with crew.syncing(self.objective, last=n == len(parts) - 1):
            with autocast(config, self.transformer.device):
                minimised, nll = self.objective(part)
            (minimised * (crew.world / count)).backward()
        total += nll.double().cpu() / count
    return crew.total(float(total)), clipped(self.transformer, config.clip)


def clipped(transformer: Transformer, most: float) -> float:
    """The norm of all gradients together. Where it is larger than `most` (0: nothing is), they are
    made shorter; else they are left alone, which multiplying by 1 would do as well, but not as
    fast."""
    gradients = [p.grad for p in transformer.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    found = float(whole(norm))
    if most and found + 1e-6 > most:  # as torch's own factor: most / (norm + 1e-6), at most 1
        nn.utils.clip_grads_with_norm_(transformer.parameters(), most, norm)
    return found


def update_if_good(self: Trainee, loss: float, norm: float) -> bool:
    """The update, unless the loss or the gradient is not finite."""
    good = math.isfinite(loss) and math.isfinite(norm)
    left_out = self.step in self.skip
    self.bad_in_a_row = 0 if good or left_out else self.bad_in_a_row + 1
    if good:
        update(self)
    self.optimizers.zero()
    if (
        not good
        and not left_out
        and (self.config.on_bad != "skip" or self.bad_in_a_row > MOST_SKIPPED)
    ):
        often = f", after {MOST_SKIPPED} others in a row" if self.config.on_bad == "skip" else ""
        raise NotFiniteError(
            f"step {self.step}: loss {loss:g}, gradient norm {norm:g}{often}",
            expected="finite numbers; no weight was changed",
            fix="a smaller lr or a longer warmup"
            + ("" if often else ", or on_bad=skip to leave such batches out"),
        ).at(self.step)
    return good


def update(self: Trainee) -> None:
    """The optimiser's step, and the average that follows the weights."""
    self.optimizers.step()
    self.transformer.normalize_weights()
    if self.ema:
        keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, parameter in self.transformer.named_parameters():
                self.ema[name].lerp_(parameter, 1 - keep)


def autocast(config: TrainingConfig, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 products, if asked for."""
    return (
        torch.autocast(device.type, torch.bfloat16)
        if config.precision == "bfloat16"
        else nullcontext()
    )


def rate_factor(self: Trainee) -> float:
    """By steps, or by the clock where the clock ends the run."""
    config = self.config
    if config.minutes is None:
        return factor(config.schedule, self.step, config.steps)
    return factor_by_clock(
        config.schedule, self.step, self.crew.first(self.seconds / (60 * config.minutes))
    )


def out_of_time(self: Trainee) -> bool:
    return (
        self.config.minutes is not None
        and self.crew.first(self.seconds) >= 60 * self.config.minutes
    )


def seconds_left(self: Trainee) -> float:
    """At the average speed so far."""
    by_steps = (self.config.steps - self.step) * self.seconds / max(1, self.step)
    return (
        by_steps
        if self.config.minutes is None
        else min(by_steps, max(0.0, 60 * self.config.minutes - self.seconds))
    )
