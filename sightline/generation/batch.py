"""Continuous batching: requests join and leave between steps, and no result depends on the other
requests.

    batch = Batch(runner)
    first, second = batch.submit(request), batch.submit(another)
    while batch.busy:
        for sequence, event in batch.step(): …    # a TokenEvent, or the error that ended only
                                                  # this sequence

Sequence     a request with its tokens so far: waiting, in prefill, or decoding in a row
Scheduler    the queues, within a memory budget
Prefixes     cached prompts: a prefix that two requests share is computed once
BatchRunner  one step of the model for all sequences, on torch or on the native engine
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
MEMORY_SHARE = 0.5  # of the memory that is available when a batch is created

Outcome = tuple[Sequence, "TokenEvent | Exception"]


class Batch:
    """Continuous batching: up to `rows` sequences decode at once, with up to `chunk` tokens of
    prefill beside each step.

    A batch belongs to one thread; other threads must hand over requests and cancellations through a
    queue.
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
        budget = int(MEMORY_SHARE * free_memory()) if budget is None else budget
        self.runner = batch_runner_for(runner)
        self.chunk = chunk
        self.scheduler = Scheduler(self.runner.memory_needed, rows=rows, budget=budget)

    def submit(self, request: Request) -> Sequence:
        """Queue a request. One that can never run is refused here."""
        check_request(self.runner.runner, request)
        sequence = Sequence(request)
        self.scheduler.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence early and free its memory. No later step reports it."""
        self.runner.release(sequence, self.scheduler.drop(sequence))

    def close(self) -> None:
        """Cancel every sequence and drop the cached prefixes: no KV cache memory is left."""
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
        """All KV cache memory: decoding rows, prompts in prefill, cached prefixes."""
        return self.runner.bytes(self.scheduler)

    def step(self) -> list[Outcome]:
        """One token for every decoding sequence and one chunk of prefill."""
        self.scheduler.admit()
        self._shrink()
        outcomes = [
            self._take(sequence, result)
            for sequence, result in self.runner.step(self.scheduler, self.chunk)
        ]
        self._shrink()
        return outcomes

    def _shrink(self) -> None:
        self.runner.shrink(self.scheduler.budget, self.scheduler.active)

    def run(self) -> Iterator[Outcome]:
        """Step until every sequence has ended."""
        while self.busy:
            yield from self.step()

    def _take(self, sequence: Sequence, result: Tensor | Exception) -> Outcome:
        """The sequence's next token. An error ends only this sequence."""
        event: TokenEvent | Exception
        if isinstance(result, Exception):
            event = result
        else:
            try:
                event = sequence.state.take(result, self.runner.bytes_of(sequence))
            except Exception as error:
                event = error
        if isinstance(event, Exception):
            self.cancel(sequence)
        elif event.finish is not None:
            with suppress(Exception):  # failing to cache a prefix must not fail this sequence
                self.runner.cache_prefix(sequence, self.scheduler.decoding.index(sequence))
            self.cancel(sequence)
        return sequence, event


def batch_runner_for(runner: Runner) -> BatchRunner:
    """The native engine for a decoder, else torch."""
    if isinstance(runner, NativeRunner):
        return NativeBatchRunner(runner)
    return TorchBatchRunner(runner)


def free_memory() -> int:
    """Bytes of memory available now, according to the system."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):
        free = 4 << 30
    try:  # a container has its own limit
        limit, used = (
            Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii").strip()
            for name in ("max", "current")
        )
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
