"""The loss on what was held out, with the averaged weights where there are any."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import torch

from sightline.training.data.batch import Batch, Task
from sightline.training.loop import BatchError, Trainee, short_error


@contextmanager
def best_weights(learner: Trainee) -> Generator[None]:
    """The averaged weights in place of the last ones, and no dropout, for a while."""
    own = dict(learner.transformer.named_parameters())
    last = {name: own[name].detach().clone() for name in learner.ema}
    learner.transformer.eval()
    try:
        with torch.no_grad():
            for name, average in learner.ema.items():
                own[name].copy_(average)
        yield
    finally:
        with torch.no_grad():
            for name, value in last.items():
                own[name].copy_(value)
        learner.transformer.train()


@torch.no_grad()
def validate(learner: Trainee, task: Task, *, stop: Callable[[], bool] = lambda: False) -> float:
    """Nats for each target; NaN where nothing is held out, or where `stop` ended it early."""
    total = 0.0
    count = 0
    with best_weights(learner):
        for batch in held_out(learner, task):
            if learner.crew.agree(stop()):
                return math.nan
            mine = batch.share(learner.crew.rank, learner.crew.world).to(learner.transformer.device)
            _, nll = learner.objective(mine)
            total = total + float(nll)
            count = count + batch.count
    return learner.crew.total(total) / count if count else math.nan


def held_out(learner: Trainee, task: Task) -> Iterator[Batch]:
    """The task's batches; if they cannot be read, an error that says when."""
    try:
        yield from task.validation()
    except Exception as error:
        seen = f"step {learner.step}: the held-out data could not be read: {short_error(error)}"
        raise BatchError(seen, fix="mend the data, then --resume auto") from error
