"""The learning rate as a function of the run's progress: a factor between 0 and 1."""

from __future__ import annotations

import math

from sightline.training.config import Schedule


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """The fraction of the peak learning rate for the update from `step` to `step` + 1."""
    if step < schedule.warmup:
        return rise(schedule, step)
    if schedule.shape == "inverse_sqrt":
        return inverse_sqrt(schedule, step)
    return fall(schedule, (step - schedule.warmup) / max(1, steps - schedule.warmup))


def factor_by_clock(schedule: Schedule, step: int, done: float) -> float:
    """The same for a run with a time limit: `done` is the elapsed fraction."""
    falling = (
        inverse_sqrt(schedule, step) if schedule.shape == "inverse_sqrt" else fall(schedule, done)
    )
    return rise(schedule, step) * falling


def rise(schedule: Schedule, step: int) -> float:
    """Linear, reaching 1 at step `warmup`."""
    return min(1.0, (step + 1) / (schedule.warmup + 1))


def inverse_sqrt(schedule: Schedule, step: int) -> float:
    """√(warmup / step), from the end of the warm-up on."""
    first = max(1, schedule.warmup)
    return math.sqrt(first / max(first, step))


def fall(schedule: Schedule, done: float) -> float:
    """The factor after the warm-up, at the fraction `done` of the remaining steps."""
    done = min(1.0, done)
    final = schedule.final
    if schedule.shape == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
    if schedule.shape == "linear":
        return final + (1 - final) * (1 - done)
    if schedule.shape == "wsd":
        return final + (1 - final) * min(1.0, (1 - done) / schedule.decay)
    return 1.0
