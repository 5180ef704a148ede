"""Sequences in flight and their queues: waiting, prefilling, decoding. Admission is bounded by rows
and by a memory budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sightline.core.cache.kv_cache import Cache
from sightline.errors import InputError
from sightline.generation.decode import DecodeState, Request


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """A request in flight. `cache` is used by this sequence only; on torch it exists during
    prefill, then the sequence has a row of the slots."""

    request: Request
    state: DecodeState = field(init=False)
    cache: Cache | None = None
    reused: int = 0

    def __post_init__(self) -> None:
        self.state = DecodeState(self.request)

    @property
    def length(self) -> int:
        """Maximum number of tokens, prompt included."""
        return len(self.request.prompt) + self.request.max_tokens

    @property
    def source_length(self) -> int:
        return len(self.request.source or ())


class Scheduler:
    """Three queues, first come, first served. `memory_needed(sequences)` is their KV cache at its
    largest."""

    def __init__(
        self, memory_needed: Callable[[Iterable[Sequence]], int], *, rows: int, budget: int
    ) -> None:
        self.memory_needed = memory_needed
        self.rows = rows
        self.budget = budget
        self.waiting = deque[Sequence]()
        self.prefilling = deque[Sequence]()
        self.decoding = list[Sequence]()

    def add(self, sequence: Sequence) -> None:
        """Queue a request, or refuse it if it could never run."""
        needed = self.memory_needed([sequence])
        if needed > self.budget:
            raise InputError(
                f"a request of {sequence.length} tokens needs {needed / 1e6:.0f} MB of cache",
                expected=f"at most {self.budget / 1e6:.0f} MB",
                fix="ask for fewer tokens, or give the batch a larger budget",
            )
        self.waiting.append(sequence)

    def admit(self) -> None:
        """Move waiting sequences to prefill while there are rows, and memory for every active
        sequence to run to its maximum length."""
        while (
            self.waiting
            and len(self.active) < self.rows
            and self.memory_needed([*self.active, self.waiting[0]]) <= self.budget
        ):
            self.prefilling.append(self.waiting.popleft())

    def join(self, sequence: Sequence) -> None:
        """Prefill is done: the sequence moves to decoding, in the last row."""
        self.prefilling.remove(sequence)
        self.decoding.append(sequence)

    def drop(self, sequence: Sequence) -> int | None:
        """Remove a sequence from its queue and return its row, if it had one; the sequence of the
        last row moves there."""
        for queue in (self.waiting, self.prefilling):
            if sequence in queue:
                queue.remove(sequence)
                return None
        if sequence not in self.decoding:
            return None
        row = self.decoding.index(sequence)
        self.decoding[row] = self.decoding[-1]
        self.decoding.pop()
        return row

    @property
    def active(self) -> list[Sequence]:
        return [*self.prefilling, *self.decoding]

    @property
    def all(self) -> list[Sequence]:
        return [*self.waiting, *self.active]
