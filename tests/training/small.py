"""A run that takes milliseconds: a tiny model, random tokens, and what the tests of training look
at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sightline as sl
from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.core.model import Transformer
from sightline.training.config import AdamW, Schedule, TrainingConfig
from sightline.training.data.batch import Batch
from sightline.training.run import Event, Job, Note, Saved, train
from sightline.training.state import checkpoint as state
from sightline.training.state.export import Export

VOCAB = 13
SIZE: dict[str, Any] = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "vocab_size": VOCAB,
    "max_positions": 8,
}


@dataclass
class Numbers:
    """Next-token prediction on random tokens, three batches of them held out. `before` sees each
    step's batch and may change it."""

    rows: int = 3
    time: int = 6
    held_out: int = 3
    fingerprint: str = "numbers"
    before: Callable[[int, Batch], Batch] = lambda step, batch: batch
    before_validation: Callable[[int], None] = lambda number: None

    def made(self, *place: int) -> Batch:
        tokens = torch.from_numpy(
            np.random.default_rng([5, *place]).integers(0, VOCAB, (self.rows, self.time + 1))
        )
        return Batch(
            tokens=tokens[:, :-1].contiguous(),
            targets=tokens[:, 1:].contiguous(),
            count=self.rows * self.time,
        )

    def batch(self, step: int) -> Batch:
        return self.before(step, self.made(0, step))

    def validation(self) -> Iterator[Batch]:
        for number in range(self.held_out):
            self.before_validation(number)
            yield self.made(1, number)


def config(**changes: Any) -> TrainingConfig:
    schedule = Schedule(shape="cosine", warmup=2)
    values: dict[str, Any] = {
        "steps": 6,
        "save_every": 2,
        "eval_every": 3,
        "schedule": schedule,
        "optimizer": AdamW(lr=0.01),
    }
    return TrainingConfig(**(values | changes))


def model(**changes: Any) -> Transformer:
    """The same weights at each call."""
    torch.manual_seed(11)
    return sl.build(sl.llama(**(SIZE | changes)))


def job(
    task: Numbers | None = None,
    *,
    make: Callable[[], Transformer] = lambda: model(dropout=0.1),
    **changes: Any,
) -> Job:
    return Job(
        name="small", make=make, task=task or Numbers(), config=config(**changes), export=Export()
    )


def train_all(what: Job, folder: Path, **how: Any) -> list[Event]:
    return list(train(what, folder, **how))


def weights(folder: Path) -> dict[str, Tensor]:
    """All that the newest checkpoint holds: weights, moments, averages."""
    path, notes = state.newest_complete(folder)
    assert path is not None, notes
    return checkpoint(path)


def checkpoint(path: Path) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        result |= {
            f"{file.stem} {name}": entry.read() for name, entry in open_safetensors(file).items()
        }
    return result


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(
        a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a
    )


def files(folder: Path) -> dict[str, bytes]:
    """Every file below, hidden ones too, but for the lock."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


class Poison:
    """At some steps, the loss becomes `value` times what it was; or only its gradient does."""

    def __init__(self, *steps: int, value: float = float("nan"), gradient: bool = False) -> None:
        self.steps, self.value, self.gradient, self.now = steps, value, gradient, False

    def make(self) -> Transformer:
        made = model(dropout=0.1)
        made.last_stack.register_forward_hook(self.hook)
        return made

    def before(self, step: int, batch: Batch) -> Batch:
        self.now = step in self.steps
        return batch

    def hook(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if not self.now or not module.training:
            return None
        if not self.gradient:
            return output * self.value
        output.register_hook(lambda slope: slope * self.value)
        return None

    def job(self, **changes: Any) -> Job:
        return job(Numbers(before=self.before), make=self.make, **changes)


def notes(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


def saved(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, Saved)]


def stopping(what: Job, folder: Path, step: int) -> list[Event]:
    """Until an event of this step was seen."""
    seen: list[Event] = []
    for event in train(
        what, folder, stop=lambda: any(getattr(event, "step", 0) >= step for event in seen)
    ):
        seen.append(event)  # noqa: PERF402
    return seen
