"""Many requests at once: they join and leave between two steps, and none can tell that the others
are there.

    batch = Batch(runner)
    first, second = batch.submit(request), batch.submit(another)
    while batch.busy:
        for sequence, event in batch.step(): …    # a TokenEvent, or the error that ended this
                                                  # sequence and no other

Sequence     a request, its tokens so far, and its state: waiting, reading its prompt, writing in a
             row
Scheduler    who waits, who reads, who writes; within a memory budget
Prefixes     prompts that were already read: what two requests begin with is computed once
Runner       one step of the model for all of them, on torch or on the native engine
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from sightline.core.runner import Runner
from sightline.engine.runner import NativeRunner
from sightline.errors import InputError
from sightline.generation.batch_runner import BatchRunner
from sightline.generation.decode import CHUNK, Request, TokenEvent, check_request
from sightline.generation.native_batch import NativeBatchRunner
from sightline.generation.prefixes import Prefixes
from sightline.generation.scheduler import Scheduler, Sequence
from sightline.generation.torch_batch import TorchBatchRunner, numbers_per_token

__all__ = ["Batch", "Scheduler", "Sequence", "numbers_per_token"]

ROWS = 16
SHARE = 0.5  # of the memory that is free when a batch is made

Told = tuple[Sequence, "TokenEvent | Exception"]


class Batch:
    """Continuous batching. `rows` sequences write at the same time, `chunk` tokens of prompts are
    read beside each of their steps.

    A batch belongs to one thread: others hand it their requests, and their wish to cancel, through
    a queue.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        rows: int = ROWS,
        chunk: int = CHUNK,
        budget: int | None = None,
    ) -> None:
        if rows < 1 or chunk < 1:
            raise InputError(
                f"a batch of {rows} rows and chunks of {chunk}",
                expected="1 or more",
                fix=f"rows={ROWS}, chunk={CHUNK}",
            )
        budget = int(SHARE * free_memory()) if budget is None else budget
        self.runner = batch_runner_for(runner)
        self.chunk = chunk
        self.scheduler = Scheduler(self.runner.needed, rows=rows, budget=budget)

    def submit(self, request: Request) -> Sequence:
        """A request joins; it is refused here if it can never be answered."""
        check_request(self.runner.runner, request)
        sequence = Sequence(request)
        self.scheduler.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """A request leaves before its end, and its memory is free. No later step tells of it."""
        self.runner.forget(sequence, self.scheduler.drop(sequence))

    def close(self) -> None:
        """Cancel all that is left, and forget the prefixes: the batch holds no memory of the model
        any more."""
        for sequence in self.scheduler.all:
            self.cancel(sequence)
        self.prefixes.clear()

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.active)

    @property
    def prefixes(self) -> Prefixes:
        return self.runner.prefixes

    @property
    def bytes(self) -> int:
        """All keys and values: of rows, of prompts that are being read, of prefixes that are
        kept."""
        return self.runner.bytes(self.scheduler)

    def step(self) -> list[Told]:
        """One token for every row, and some of the waiting prompts; what happened."""
        self.scheduler.admit()
        self._shrink()
        told = [
            self._take(sequence, found)
            for sequence, found in self.runner.step(self.scheduler, self.chunk)
        ]
        self._shrink()
        return told

    def _shrink(self) -> None:
        self.runner.shrink(self.scheduler.budget, self.scheduler.active)

    def run(self) -> Iterator[Told]:
        """Step until nobody is left."""
        while self.busy:
            yield from self.step()

    def _take(self, sequence: Sequence, found: Tensor | Exception) -> Told:
        """A sequence's next token. Its error is its own."""
        try:
            event = (
                found
                if isinstance(found, Exception)
                else sequence.writing.take(found, self.runner.bytes_of(sequence))
            )
        except Exception as error:
            event = error
        if isinstance(event, Exception):
            self.cancel(sequence)
        elif event.finish is not None:
            with suppress(Exception):  # what is kept for others must not harm this one
                self.runner.remember(sequence, self.scheduler.writing.index(sequence))
            self.cancel(sequence)
        return sequence, event


def batch_runner_for(runner: Runner) -> BatchRunner:
    """The native engine for a decoder, else torch."""
    if isinstance(runner, NativeRunner):
        return NativeBatchRunner(runner)
    return TorchBatchRunner(runner)


def free_memory() -> int:
    """Bytes that could be taken now, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):
        free = 4 << 30
    try:  # a container has a limit of its own
        limit, used = (
            Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii").strip()
            for name in ("max", "current")
        )
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
