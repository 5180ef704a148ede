"""The training loop: batch → loss → gradient → update, and an event for each step.

    for event in state.steps(task): …

What step n does is decided by the state after step n − 1, the configuration and n. The random
numbers of dropout depend on (seed, step, process): no generator state is saved. A loss or gradient
that is not finite is caught before the update, and any other failure in a step (unreadable data,
not enough memory) leaves the state of the step before, ready to be saved.
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
from sightline.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup, full_tensor
from sightline.training.flops import step_flops
from sightline.training.loss import Objective
from sightline.training.optimizers import Optimizers, make_optimizers
from sightline.training.schedules import factor, factor_by_clock

MOST_SKIPPED = 10  # consecutive steps; more than that is not an occasional bad batch


class NotFiniteError(SightlineError, ArithmeticError):
    """A loss, gradient or weight that is NaN or infinite; `step` is the number of that batch."""

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
    """One update. `loss` is in nats per target, before the update; `eta` is in seconds; `skipped`:
    the update was left out; `seconds` of training so far exclude evaluations and saves."""

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
class TrainState:
    """Everything that changes while training, and the steps that change it."""

    transformer: Transformer
    config: TrainingConfig
    objective: nn.Module
    optimizers: Optimizers
    ema: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0
    group: ProcessGroup = SINGLE_PROCESS
    skip: set[int] = field(default_factory=set)
    """Steps whose batch is skipped, because the loss or gradient was not finite there."""
    bad_in_a_row: int = 0

    def steps(
        self,
        task: Task,
        *,
        stop: Callable[[], bool] = lambda: False,
        peak_flops: float | None = None,
    ) -> Iterator[StepEvent]:
        """One event per step, until all steps are done, the time limit is reached, or `stop()` is
        true. `peak_flops` is what all processes together could do per second."""
        while self.step < self.config.steps and not self.out_of_time():
            started = time.perf_counter()
            batch = try_batch(task, self.step)
            ended = self.group.any(stop() or isinstance(batch, BatchError))
            if isinstance(batch, BatchError):
                raise batch
            if ended:
                return
            torch.manual_seed(
                int(random(self.config.seed, 1, self.step, self.group.rank).integers(2**63))
            )
            lr = self.optimizers.set_factor(self._lr_factor())
            loss_and_norm = (
                (math.nan, math.nan) if self.step in self.skip else self._try_backward(batch, stop)
            )
            if loss_and_norm is None:
                return
            is_finite = self._update_if_finite(*loss_and_norm)
            self.step += 1
            took = time.perf_counter() - started
            self.seconds += took
            mfu = step_flops(self.transformer, batch) / took / peak_flops if peak_flops else None
            yield StepEvent(
                self.step,
                loss_and_norm[0],
                lr,
                loss_and_norm[1],
                batch.input_tokens / took,
                self._seconds_left(),
                mfu,
                not is_finite,
                self.seconds,
            )

    def _try_backward(self, batch: Batch, stop: Callable[[], bool]) -> tuple[float, float] | None:
        """`backward`; on an out-of-memory error, gradients are freed and the fix is named."""
        try:
            return self.backward(batch, stop)
        except (MemoryError, RuntimeError) as error:
            self.optimizers.zero()
            if not is_out_of_memory(error):
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

    def backward(
        self, batch: Batch, stop: Callable[[], bool] = lambda: False
    ) -> tuple[float, float] | None:
        """Gradients of the mean loss over the whole batch, clipped; the loss and the norm before
        clipping. Nothing if stopped on the way."""
        config = self.config
        group = self.group
        total = torch.zeros((), dtype=torch.float64)
        count = max(1, batch.count)
        own_rows = batch.shard(group.rank, group.world_size).to(self.transformer.device)
        parts = list(
            own_rows.microbatches(min(config.accumulate, max(1, batch.rows // group.world_size)))
        )  # the same number on every process
        for n, part in enumerate(parts):
            if n and group.world_size == 1 and stop():
                self.optimizers.zero()
                return None
            with group.gradient_sync(self.objective, last=n == len(parts) - 1):
                with autocast(config, self.transformer.device):
                    objective, nll = self.objective(part)
                (objective * (group.world_size / count)).backward()
            total += nll.double().cpu() / count
        return group.sum(float(total)), clip_gradients(self.transformer, config.clip)

    def _update_if_finite(self, loss: float, norm: float) -> bool:
        """The update, unless the loss or the gradient is not finite."""
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        is_skipped = self.step in self.skip
        self.bad_in_a_row = 0 if is_finite or is_skipped else self.bad_in_a_row + 1
        if is_finite:
            self.update()
        self.optimizers.zero()
        if (
            not is_finite
            and not is_skipped
            and (self.config.on_bad != "skip" or self.bad_in_a_row > MOST_SKIPPED)
        ):
            repeated = (
                f", after {MOST_SKIPPED} others in a row" if self.config.on_bad == "skip" else ""
            )
            raise NotFiniteError(
                f"step {self.step}: loss {loss:g}, gradient norm {norm:g}{repeated}",
                expected="finite numbers; no weight was changed",
                fix="a smaller lr or a longer warmup"
                + ("" if repeated else ", or on_bad=skip to leave such batches out"),
            ).at(self.step)
        return is_finite

    def update(self) -> None:
        """The optimizer's step, and the exponential moving average of the weights."""
        self.optimizers.step()
        self.transformer.normalize_weights()
        if self.ema:
            keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
            with torch.no_grad():
                for name, parameter in self.transformer.named_parameters():
                    self.ema[name].lerp_(parameter, 1 - keep)

    def _lr_factor(self) -> float:
        """The learning rate factor by steps, or by time if `minutes` is set."""
        config = self.config
        if config.minutes is None:
            return factor(config.schedule, self.step, config.steps)
        return factor_by_clock(
            config.schedule, self.step, self.group.broadcast(self.seconds / (60 * config.minutes))
        )

    def out_of_time(self) -> bool:
        return (
            self.config.minutes is not None
            and self.group.broadcast(self.seconds) >= 60 * self.config.minutes
        )

    def _seconds_left(self) -> float:
        """The remaining seconds at the average speed so far."""
        by_steps = (self.config.steps - self.step) * self.seconds / max(1, self.step)
        return (
            by_steps
            if self.config.minutes is None
            else min(by_steps, max(0.0, 60 * self.config.minutes - self.seconds))
        )


def make_train_state(
    transformer: Transformer, config: TrainingConfig, group: ProcessGroup = SINGLE_PROCESS
) -> TrainState:
    """The state before the first step: model, objective, optimizers and averaged weights."""
    transformer.train()
    if config.checkpoint_activations:
        recompute_blocks(transformer)
    objective = group.wrap(
        Objective(transformer, label_smoothing=config.label_smoothing, z_loss=config.z_loss)
    )
    objective = cast(nn.Module, torch.compile(objective)) if config.compile else objective
    ema = (
        {name: p.detach().clone() for name, p in transformer.named_parameters()}
        if config.ema
        else {}
    )
    return TrainState(
        transformer,
        config,
        objective,
        make_optimizers(transformer, config.optimizer),
        ema,
        group=group,
    )


def recompute_blocks(transformer: Transformer) -> None:
    """Activation checkpointing: each block stores only its input, and recomputes the rest in the
    backward pass with the same dropout."""
    for part in transformer.modules():
        if isinstance(part, (Block, SphereBlock)) and "forward" not in vars(part):
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)


def try_batch(task: Task, step: int) -> Batch | BatchError:
    """The batch, or the error with the reason why it could not be made."""
    try:
        return task.batch(step)
    except Exception as error:
        failed = BatchError(
            f"step {step}: the batch could not be made: {short_error(error)}",
            fix="repair the data, then --resume auto",
        )
        failed.__cause__ = error
        return failed


def short_error(error: Exception) -> str:
    """The error's message on one line."""
    return " ".join(
        f"{'' if isinstance(error, SightlineError) else type(error).__name__ + ': '}{error}".split()
    )[:400]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, CUDA or Python ran out of memory."""
    message = str(error).lower()
    return (
        isinstance(error, (MemoryError, torch.OutOfMemoryError))
        or "allocate memory" in message
        or "out of memory" in message
    )


def clip_gradients(transformer: Transformer, most: float) -> float:
    """Clip the gradients to a total norm of `most` (0: no clipping), and return the norm before.
    Gradients within the limit are not multiplied by 1, which saves time."""
    gradients = [p.grad for p in transformer.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    length = float(full_tensor(norm))
    if most and length + 1e-6 > most:  # torch's factor is min(1, most / (norm + 1e-6))
        nn.utils.clip_grads_with_norm_(transformer.parameters(), most, norm)
    return length


def autocast(config: TrainingConfig, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 matrix products, if set in the config."""
    return (
        torch.autocast(device.type, torch.bfloat16)
        if config.precision == "bfloat16"
        else nullcontext()
    )
