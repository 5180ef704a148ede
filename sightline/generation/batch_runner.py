"""What the scheduler needs of a model that runs many sequences side by side. Torch gives it, and
the native engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from sightline.core.runner import Runner
from sightline.generation.prefixes import Prefixes
from sightline.generation.scheduler import Scheduler, Sequence

Found = tuple[Sequence, Tensor | Exception]
"""A sequence with the logits of its next token, [vocab], or with the error that ends it."""


class BatchRunner(Protocol):
    """All that is remembered of a sequence belongs to the runner, until it is told to forget it."""

    runner: Runner
    prefixes: Prefixes

    def step(self, scheduler: Scheduler, chunk: int) -> Iterator[Found]:
        """One more token for everyone who writes, `chunk` tokens of prompts: the logits of all who
        write now. Who ends with an error must be dropped before the next is asked for."""
        ...

    def remember(self, sequence: Sequence, row: int) -> None:
        """Keep what a finished sequence has computed: the next turn of a conversation begins with
        it."""
        ...

    def forget(self, sequence: Sequence, row: int | None) -> None:
        """A sequence that was dropped, and the row that it had."""
        ...

    def shrink(self, budget: int, active: list[Sequence]) -> None:
        """Prefixes have what the requests may never need."""
        ...

    def needed(self, sequences: Iterable[Sequence]) -> int:
        """Memory at the worst moment."""
        ...

    def bytes_of(self, sequence: Sequence) -> int:
        """Memory of one sequence's keys and values."""
        ...

    def bytes(self, scheduler: Scheduler) -> int:
        """All keys and values: of rows, of prompts that are being read, of prefixes that are
        kept."""
        ...
