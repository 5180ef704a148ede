"""Requests on their way, and who of them waits, reads its prompt, writes: within a number of rows
and a budget of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sightline.core.cache.kv_cache import Cache
from sightline.errors import InputError
from sightline.generation.decode import Request, Writing


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """A request on its way. `cache` is its own; torch has one only while it reads its prompt, then
    a row of the slots."""

    request: Request
    writing: Writing = field(init=False)
    cache: Cache | None = None
    reused: int = 0

    def __post_init__(self) -> None:
        self.writing = Writing(self.request)

    @property
    def length(self) -> int:
        """Tokens at most, prompt and answer."""
        return len(self.request.prompt) + self.request.max_tokens

    @property
    def sources(self) -> int:
        return len(self.request.source or ())


class Scheduler:
    """Who waits, who reads its prompt, who writes: in the order in which they came. `needed` is the
    memory of some of them at worst."""

    def __init__(
        self, needed: Callable[[Iterable[Sequence]], int], *, rows: int, budget: int
    ) -> None:
        self.needed = needed
        self.rows = rows
        self.budget = budget
        self.waiting = deque[Sequence]()
        self.reading = deque[Sequence]()
        self.writing = list[Sequence]()

    def add(self, sequence: Sequence) -> None:
        """Let a request wait, or refuse it if it could never run."""
        needed = self.needed([sequence])
        if needed > self.budget:
            raise InputError(
                f"a request of {sequence.length} tokens needs {needed / 1e6:.0f} MB of cache",
                expected=f"at most {self.budget / 1e6:.0f} MB",
                fix="ask for fewer tokens, or give the batch a larger budget",
            )
        self.waiting.append(sequence)

    def admit(self) -> None:
        """Who waits may begin to read, as long as there are rows and memory for all of them to come
        to their end."""
        while (
            self.waiting
            and len(self.active) < self.rows
            and self.needed([*self.active, self.waiting[0]]) <= self.budget
        ):
            self.reading.append(self.waiting.popleft())

    def join(self, sequence: Sequence) -> None:
        """All of its prompt is read: it writes, in the last row."""
        self.reading.remove(sequence)
        self.writing.append(sequence)

    def drop(self, sequence: Sequence) -> int | None:
        """A sequence is over, wherever it stands; its row, if it had one. The last row's sequence
        moves there."""
        for queue in (self.waiting, self.reading):
            if sequence in queue:
                queue.remove(sequence)
                return None
        if sequence not in self.writing:
            return None
        row = self.writing.index(sequence)
        self.writing[row] = self.writing[-1]
        self.writing.pop()
        return row

    @property
    def active(self) -> list[Sequence]:
        return [*self.reading, *self.writing]

    @property
    def all(self) -> list[Sequence]:
        return [*self.waiting, *self.active]
