"""The loss on held-out data, with the averaged (EMA) weights if there are any."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import torch

from sightline.training.data.batch import Batch, Task
from sightline.training.loop import BatchError, TrainState, short_error


@contextmanager
def averaged_weights(state: TrainState) -> Generator[None]:
    """Within the block, the averaged weights replace the last ones, and dropout is off."""
    own = dict(state.transformer.named_parameters())
    last = {name: own[name].detach().clone() for name in state.ema}
    state.transformer.eval()
    try:
        with torch.no_grad():
            for name, average in state.ema.items():
                own[name].copy_(average)
        yield
    finally:
        with torch.no_grad():
            for name, value in last.items():
                own[name].copy_(value)
        state.transformer.train()


@torch.no_grad()
def validate(state: TrainState, task: Task, *, stop: Callable[[], bool] = lambda: False) -> float:
    """Nats per target; NaN if nothing is held out, or if `stop` ended it early."""
    total = 0.0
    count = 0
    with averaged_weights(state):
        for batch in held_out_batches(state, task):
            if state.group.any(stop()):
                return math.nan
            own_rows = batch.shard(state.group.rank, state.group.world_size).to(
                state.transformer.device
            )
            _, nll = state.objective(own_rows)
            total = total + float(nll)
            count = count + batch.count
    return state.group.sum(total) / count if count else math.nan


def held_out_batches(state: TrainState, task: Task) -> Iterator[Batch]:
    """The task's held-out batches; an error names the step."""
    try:
        yield from task.validation()
    except Exception as error:
        seen = f"step {state.step}: the held-out data could not be read: {short_error(error)}"
        raise BatchError(seen, fix="repair the data, then --resume auto") from error
