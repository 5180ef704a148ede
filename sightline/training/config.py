"""Training settings: everything that determines the weights, except the data and the model.

The same TrainingConfig, data, model and number of threads give the same weights, bit for bit,
however often the run was interrupted; only `minutes` makes the result depend on the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from sightline.config.values import check_fields
from sightline.errors import ConfigError, short_repr

Shape = Literal["cosine", "linear", "wsd", "inverse_sqrt", "constant"]
OnBad = Literal["stop", "skip", "rewind"]
Precision = Literal["float32", "bfloat16"]


LEAST_RATE = 1e-12
MOST_RATE = 1e3
BELOW_ONE = 0.9999999


def number(
    name: str, value: float, *, low: float, high: float = math.inf, whole: bool = False
) -> None:
    """Refuse a setting outside its bounds; NaN is always outside."""
    kinds = int if whole else (int, float)
    if (
        isinstance(value, bool)
        or not isinstance(value, kinds)
        or not low <= value <= high
        or value == math.inf
    ):
        kind = "an integer" if whole else "a finite number"
        bounds = f"{kind} from {low:g}" + ("" if high == math.inf else f" to {high:g}")
        raise ConfigError(
            f"{name} is {short_repr(value)}",
            expected=bounds,
            fix=f"{name}={max(low, 1) if whole else max(low, 0.001):g}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The learning rate schedule: linear warm-up for `warmup` steps, then decay to the fraction
    `final` in the given shape.

    wsd stays at the peak and decays in the last `decay` fraction of the steps; inverse_sqrt is the
    2017 paper's.
    """

    shape: Shape = "cosine"
    warmup: int = 100
    final: float = 0.1
    decay: float = 0.2

    def __post_init__(self) -> None:
        check_fields(self)
        number("warmup", self.warmup, low=0, whole=True)
        number("final", self.final, low=0, high=1)
        number("decay", self.decay, low=0.001, high=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay. Only matrices decay: no norm, no bias, no embedding."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        number("lr", self.lr, low=LEAST_RATE, high=MOST_RATE)
        number("eps", self.eps, low=1e-30, high=1)
        number("weight_decay", self.weight_decay, low=0, high=10)
        if len(self.betas) != 2:
            raise ConfigError(
                f"betas are {short_repr(self.betas)}",
                expected="two numbers",
                fix="betas=(0.9, 0.99)",
            )
        for beta in self.betas:
            number("beta", beta, low=0, high=BELOW_ONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Muon:
    """Orthogonalized momentum for the blocks' matrices; AdamW (`rest`) for embeddings, heads, norms
    and biases."""

    lr: float = 0.02
    momentum: float = 0.95
    iterations: int = 5
    weight_decay: float = 0.0
    rest: AdamW = field(default_factory=AdamW)

    def __post_init__(self) -> None:
        number("lr", self.lr, low=LEAST_RATE, high=MOST_RATE)
        number("momentum", self.momentum, low=0, high=BELOW_ONE)
        number("iterations", self.iterations, low=1, high=20, whole=True)
        number("weight_decay", self.weight_decay, low=0, high=10)


Optimizer = AdamW | Muon


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """`minutes` ends the run by the clock: the schedule then follows the training time instead of
    the number of steps.

    `on_bad` applies to a loss or gradient that is not finite. stop: end the run. skip: skip the
    batch. rewind: go back to the last checkpoint and skip all batches since, which led there. In
    all three cases the batch changes no weight."""

    steps: int
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    accumulate: int = 1
    clip: float = 1.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    ema: float = 0.0
    precision: Precision = "float32"
    checkpoint_activations: bool = False
    compile: bool = False
    save_every: int = 250
    eval_every: int = 250
    keep: int = 2
    on_bad: OnBad = "stop"
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "save_every", "eval_every"):
            number(name, getattr(self, name), low=1, high=1e12, whole=True)
        number("keep", self.keep, low=2, high=1000, whole=True)
        number("seed", self.seed, low=0, high=2**63 - 1, whole=True)
        number("clip", self.clip, low=0)
        number("label_smoothing", self.label_smoothing, low=0, high=0.999)
        number("z_loss", self.z_loss, low=0, high=1)
        number("ema", self.ema, low=0, high=0.999999)
        if self.minutes is not None:
            number("minutes", self.minutes, low=0.001, high=1e6)
        check_fields(self)
