"""Training inside an experiment: a small model, batches made on the spot or cut from real text, an
event for each step.

for learner, event in learn(config, Drill(make), steps=400): …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.model import Transformer, build
from sightline.training import loop
from sightline.training.config import AdamW, Optimizer, Schedule, TrainingConfig
from sightline.training.data import order
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.data.packed import PackedText
from sightline.training.evaluation import validate
from sightline.training.loop import StepEvent, Trainee, trainee


@dataclass(frozen=True, slots=True)
class Drill:
    """A task made of a function of the step's number, and batches to be measured on."""

    make: Callable[[int], Batch]
    held_out: Sequence[Batch] = field(default_factory=tuple[Batch, ...])
    fingerprint: str = "made on the spot"

    def batch(self, step: int) -> Batch:
        return self.make(step)

    def validation(self) -> Iterator[Batch]:
        yield from self.held_out


def asked(tokens: Tensor, targets: Tensor) -> Batch:
    """Tokens and what should be said at each; −100 where nothing is asked."""
    return Batch(tokens=tokens, targets=targets, count=int((targets != IGNORED).sum()))


def random_of(seed: int, *path: int) -> torch.Generator:
    """Random numbers that belong to a seed and a place: random_of(seed, step)."""
    return torch.Generator().manual_seed(int(order.random(seed, *path).integers(2**63)))


def made(config: ModelConfig, seed: int) -> Transformer:
    """A model with the weights that belong to the seed."""
    torch.manual_seed(seed)
    return build(config)


def learn(
    start: ModelConfig | Transformer,
    task: Drill | PackedText,
    *,
    steps: int,
    lr: float = 1e-3,
    warmup: int | None = None,
    optimizer: Optimizer | None = None,
    shape: Schedule | None = None,
    clip: float = 1.0,
    seed: int = 0,
) -> Iterator[tuple[Trainee, StepEvent]]:
    """AdamW, a short warm-up, a cosine down to a tenth, unless said otherwise. A loss that is not
    finite raises NotFiniteError."""
    schedule = shape or Schedule(warmup=steps // 20 if warmup is None else warmup)
    config = TrainingConfig(
        steps=steps, optimizer=optimizer or AdamW(lr=lr), schedule=schedule, clip=clip, seed=seed
    )
    learner = trainee(start if isinstance(start, Transformer) else made(start, seed), config)
    for event in loop.steps(learner, task):
        yield learner, event


def learned(
    start: ModelConfig | Transformer,
    task: Drill | PackedText,
    *,
    steps: int,
    lr: float = 1e-3,
    seed: int = 0,
) -> Trainee:
    """After all steps."""
    return list(learn(start, task, steps=steps, lr=lr, seed=seed))[-1][0]


def loss_of(learner: Trainee, task: Drill | PackedText) -> float:
    """Nats for each target of what is held out."""
    return validate(learner, task)


def plays(context: int, batch: int, seed: int) -> tuple[PackedText, int]:
    """Shakespeare's works character by character, four plays held out, fetched once; and how many
    characters there are."""
    from sightline.recipes.corpora import prepared_characters

    data = prepared_characters(None)
    return PackedText(
        data.train, data.validation, context, batch, seed, end=data.end
    ), data.vocab_size
