"""What continuous batching needs of a model that runs many sequences at once. torch and the native
engine each implement it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from sightline.core.runner import Runner
from sightline.generation.prefixes import Prefixes
from sightline.generation.scheduler import Scheduler, Sequence

StepResult = tuple[Sequence, Tensor | Exception]
"""A sequence with the logits of its next token, [vocab], or the error that ends it."""


class BatchRunner(Protocol):
    """Owns the KV cache of every sequence until it is released."""

    runner: Runner
    prefixes: Prefixes

    def step(self, scheduler: Scheduler, chunk: int) -> Iterator[StepResult]:
        """One token for every decoding sequence and up to `chunk` tokens of prefill. Yields the
        logits of each sequence that decodes now. A sequence that failed must be dropped before the
        next result is requested."""
        ...

    def cache_prefix(self, sequence: Sequence, row: int) -> None:
        """Keep the KV cache of a finished sequence: the next turn of a conversation begins with
        it."""
        ...

    def release(self, sequence: Sequence, row: int | None) -> None:
        """Free a dropped sequence and the row that it had."""
        ...

    def shrink(self, budget: int, active: list[Sequence]) -> None:
        """Evict cached prefixes until active sequences fit the budget at their maximum length."""
        ...

    def memory_needed(self, sequences: Iterable[Sequence]) -> int:
        """Largest memory of these sequences, in bytes."""
        ...

    def bytes_of(self, sequence: Sequence) -> int:
        """Memory of one sequence's KV cache."""
        ...

    def bytes(self, scheduler: Scheduler) -> int:
        """All KV cache memory: decoding rows, prompts in prefill, cached prefixes."""
        ...
