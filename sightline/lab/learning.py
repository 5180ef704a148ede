"""Training inside an experiment: a small model, generated batches or real text, one event per step.

for learner, event in training_steps(config, GeneratedTask(make), steps=400): …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.model import Transformer, build
from sightline.training.config import AdamW, Optimizer, Schedule, TrainingConfig
from sightline.training.data import order
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.data.packed import PackedText
from sightline.training.evaluation import validate
from sightline.training.loop import StepEvent, TrainState, make_train_state


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A task whose batches are a function of the step number, with held-out batches."""

    make: Callable[[int], Batch]
    held_out: Sequence[Batch] = field(default_factory=tuple[Batch, ...])
    fingerprint: str = "generated"

    def batch(self, step: int) -> Batch:
        return self.make(step)

    def validation(self) -> Iterator[Batch]:
        yield from self.held_out


def labelled_batch(tokens: Tensor, targets: Tensor) -> Batch:
    """A batch of tokens and targets; −100 marks positions without a target."""
    return Batch(tokens=tokens, targets=targets, count=int((targets != IGNORED).sum()))


def seeded_generator(seed: int, *path: int) -> torch.Generator:
    """A generator seeded by a seed and a path of integers: seeded_generator(seed, step)."""
    return torch.Generator().manual_seed(int(order.random(seed, *path).integers(2**63)))


def build_seeded(config: ModelConfig, seed: int) -> Transformer:
    """A model whose initial weights are determined by the seed."""
    torch.manual_seed(seed)
    return build(config)


def training_steps(
    start: ModelConfig | Transformer,
    task: GeneratedTask | PackedText,
    *,
    steps: int,
    lr: float = 1e-3,
    warmup: int | None = None,
    optimizer: Optimizer | None = None,
    shape: Schedule | None = None,
    clip: float = 1.0,
    seed: int = 0,
) -> Iterator[tuple[TrainState, StepEvent]]:
    """Train step by step; by default AdamW with a short warm-up and a cosine decay to a tenth.
    A non-finite loss raises NotFiniteError."""
    schedule = shape or Schedule(warmup=steps // 20 if warmup is None else warmup)
    config = TrainingConfig(
        steps=steps, optimizer=optimizer or AdamW(lr=lr), schedule=schedule, clip=clip, seed=seed
    )
    learner = make_train_state(
        start if isinstance(start, Transformer) else build_seeded(start, seed), config
    )
    for event in learner.steps(task):
        yield learner, event


def train_model(
    start: ModelConfig | Transformer,
    task: GeneratedTask | PackedText,
    *,
    steps: int,
    lr: float = 1e-3,
    seed: int = 0,
) -> TrainState:
    """Train for all steps and return the final state."""
    return list(training_steps(start, task, steps=steps, lr=lr, seed=seed))[-1][0]


def held_out_loss(learner: TrainState, task: GeneratedTask | PackedText) -> float:
    """Validation loss in nats per target."""
    return validate(learner, task)


def shakespeare(context: int, batch: int, seed: int) -> tuple[PackedText, int]:
    """Shakespeare's works as characters, with four plays held out, and the vocabulary size.
    Downloaded once."""
    from sightline.recipes.corpora import prepared_characters

    data = prepared_characters(None)
    return PackedText(
        data.train, data.validation, context, batch, seed, end=data.end
    ), data.vocab_size
