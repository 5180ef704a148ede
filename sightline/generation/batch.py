"""Many requests at once: they join and leave between two steps, and none can tell that the others are there.

    batch = Batch(transformer)
    first, second = batch.submit(request), batch.submit(another)
    while batch.busy:
        for sequence, event in batch.step(): …          # a TokenEvent, or the error that ended this sequence and no other

Sequence     a request, its tokens so far, and where it stands: waiting, reading its prompt, writing in a row
Scheduler    who waits, who reads, who writes; within a budget of memory
Prefixes     prompts that were read already: what two requests begin with is computed once
Runner       the two passes: a piece of one prompt, one token for all rows
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.cache import Cache
from sightline.core.model import Transformer
from sightline.core.slots import Slots
from sightline.errors import InputError
from sightline.generation.decode import CHUNK, Request, TokenEvent, Writing, check_request
from sightline.generation.prefixes import Prefixes, fork

ROWS = 16
SHARE = 0.5  # of the memory that is free when a batch is made

Told = tuple["Sequence", "TokenEvent | Exception"]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """A request on its way. `cache` is its own while it reads its prompt; then it has a row of the slots."""

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
    """Who waits, who reads its prompt, who writes: in the order in which they came."""

    def __init__(self, config: ModelConfig, *, rows: int, budget: int, number_bytes: int) -> None:
        self.rows, self.budget = rows, budget
        self.bytes_per_token = number_bytes * numbers_per_token(config)
        self.bytes_per_source = self.bytes_per_token if config.encoder is not None else 0
        self.waiting, self.reading, self.writing = deque[Sequence](), deque[Sequence](), list[Sequence]()

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
        """Who waits may begin to read, as long as there are rows and memory for all of them to come to their end."""
        while self.waiting and len(self.active) < self.rows and self.needed([*self.active, self.waiting[0]]) <= self.budget:
            self.reading.append(self.waiting.popleft())

    def needed(self, sequences: Iterable[Sequence]) -> int:
        """Memory at the worst moment: a row for each, as long as the longest, and one prompt's own cache beside them."""
        lengths = [(s.length, s.sources) for s in sequences]
        longest, longest_source = (max(column) for column in zip((0, 0), *lengths, strict=True))
        return (len(lengths) + 1) * (longest * self.bytes_per_token + longest_source * self.bytes_per_source)

    def drop(self, sequence: Sequence) -> int | None:
        """A sequence is over, wherever it stands; its row, if it had one. The last row's sequence moves there."""
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


class Runner:
    """The model's two kinds of passes."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer, self.slots = transformer, Slots(transformer.config)

    @torch.inference_mode()
    def read(self, group: list[Sequence], most: int) -> tuple[int, Float[Tensor, "rows vocab"] | None]:
        """Up to `most` more tokens of each prompt into a cache: how many in all, and the logits if that was all of them.

        A group of several begins here: their prompts are as long as each other, and so are their sources.
        """
        cache = group[0].cache if len(group) == 1 else Cache.growing(self.transformer.config)
        assert cache is not None
        start, length = cache.length, len(group[0].request.prompt)
        pieces = [list(sequence.request.prompt[start : start + most]) for sequence in group]
        sources = [list(s.request.source) for s in group if s.request.source is not None and not start]
        hidden = self.transformer.hidden(self._tensor(pieces), cache=cache, source=self._tensor(sources) if sources else None)
        if len(group) > 1:
            for row, sequence in enumerate(group):
                sequence.cache = fork(cache, cache.length, self.transformer.config, row=row, copy=True)
        read = len(group) * len(pieces[0])
        return read, self.transformer.head(hidden[:, -1:])[:, -1].float() if cache.length == length else None

    @torch.inference_mode()
    def write(self, tokens: list[int]) -> Float[Tensor, "rows vocab"]:
        """One more token for every row."""
        hidden = self.transformer.hidden(self._tensor([[token] for token in tokens]), cache=self.slots)
        return self.transformer.head(hidden)[:, -1].float()

    def _tensor(self, tokens: list[list[int]]) -> Tensor:
        return torch.tensor(tokens, device=self.transformer.device)


class Batch:
    """Continuous batching. `rows` sequences write at the same time, `chunk` tokens of prompts are read beside each of their steps.

    A batch belongs to one thread: others hand it their requests, and their wish to cancel, through a queue.
    """

    def __init__(self, transformer: Transformer, *, rows: int = ROWS, chunk: int = CHUNK, budget: int | None = None) -> None:
        if rows < 1 or chunk < 1:
            raise InputError(f"a batch of {rows} rows and chunks of {chunk}", expected="1 or more", fix=f"rows={ROWS}, chunk={CHUNK}")
        budget = int(SHARE * free_memory()) if budget is None else budget
        size = next(transformer.parameters()).element_size()
        self.scheduler, self.runner = Scheduler(transformer.config, rows=rows, budget=budget, number_bytes=size), Runner(transformer)
        self.prefixes, self.chunk = Prefixes(transformer.config), chunk
        self.apart = WeakSet[Sequence]()  # whom a pass in company failed

    def submit(self, request: Request) -> Sequence:
        """A request joins; it is refused here if it can never be answered."""
        check_request(self.runner.transformer, request)
        sequence = Sequence(request)
        self.scheduler.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """A request leaves before its end. No later step tells of it."""
        row = self.scheduler.drop(sequence)
        if row is not None:
            self.runner.slots.remove(row)

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.active)

    @property
    def bytes(self) -> int:
        """All keys and values: of rows, of prompts that are being read, of prefixes that are kept."""
        reading = sum(s.cache.bytes for s in self.scheduler.reading if s.cache is not None)
        return self.runner.slots.bytes + reading + self.prefixes.bytes

    def step(self) -> list[Told]:
        """One token for every row, then some of the waiting prompts; what happened."""
        self.scheduler.admit()
        self._shrink()
        told = [*self._write(), *self._read()]
        self._shrink()
        return told

    def _shrink(self) -> None:
        """Prefixes have what the requests may never need."""
        self.prefixes.shrink(self.scheduler.budget - max(self.scheduler.needed(self.scheduler.active), self.runner.slots.bytes))

    def run(self) -> Iterator[Told]:
        """Step until nobody is left."""
        while self.busy:
            yield from self.step()

    def _write(self) -> Iterator[Told]:
        """One more token for each row."""
        rows = list(self.scheduler.writing)
        if not rows:
            return
        try:
            logits = self.runner.write([sequence.writing.history[-1] for sequence in rows])
        except Exception as error:  # the pass itself failed: nobody's keys can be trusted
            for sequence in rows:
                self.cancel(sequence)
                yield sequence, error
            return
        for sequence, row in zip(rows, logits, strict=True):
            yield from self._take(sequence, row)

    def _read(self) -> Iterator[Told]:
        """Pieces of prompts, `chunk` tokens in all; who has read all of its prompt begins to write."""
        left, queue = self.chunk, self.scheduler.reading
        while left > 0 and queue:
            group = self._group(left)
            try:
                read, logits = self.runner.read(group, left)
                if logits is not None:
                    self._give_rows(group)
            except Exception as error:
                if len(group) > 1:  # one of them may be to blame: each for itself from now on
                    self.apart.update(group)
                    continue
                self.cancel(group[0])
                yield group[0], error
                continue
            left -= read
            if logits is not None:
                yield from self._begin(group, logits)

    def _group(self, most: int) -> list[Sequence]:
        """The first that reads; with it those that can be read in the same pass, because their prompts have the same shape and nothing
        in common."""
        first, *others = self.scheduler.reading
        if first.cache is None:
            first.cache, first.reused = self.prefixes.find(first.request)
        length, group = len(first.request.prompt), [first]
        if first.cache.length or length > most or first in self.apart:
            return group
        room = self.scheduler.budget - self.scheduler.needed(self.scheduler.active)
        for other in others:
            fits = (len(group) + 1) * length <= most and len(group) * self._bytes_of(other) <= room
            alike = (
                len(other.request.prompt) == length and other.sources == first.sources and other.cache is None and other not in self.apart
            )
            if fits and alike and not self.prefixes.shared(other.request, [s.request for s in group]):
                group.append(other)
        return group

    def _give_rows(self, group: list[Sequence]) -> None:
        """A row of the slots for each, or for none."""
        slots = self.runner.slots
        before = len(slots)
        try:
            for sequence in group:
                assert sequence.cache is not None
                slots.add(sequence.cache, capacity=sequence.length)
        except Exception:
            for row in range(len(slots) - 1, before - 1, -1):
                slots.remove(row)
            raise

    def _begin(self, group: list[Sequence], logits: Float[Tensor, "rows vocab"]) -> Iterator[Told]:
        """These prompts are read and have their rows: all of them join, then each takes its first token."""
        for sequence in group:
            assert sequence.cache is not None
            self.prefixes.keep(sequence.request, sequence.cache, sequence.request.prompt)
            self.scheduler.reading.remove(sequence)
            self.scheduler.writing.append(sequence)
            sequence.cache = None
        for sequence, row in zip(group, logits, strict=True):
            yield from self._take(sequence, row)

    def _take(self, sequence: Sequence, logits: Float[Tensor, " vocab"]) -> Iterator[Told]:
        """A sequence's next token. Its error is its own."""
        try:
            event = sequence.writing.take(logits, self._bytes_of(sequence))
        except Exception as error:
            self.cancel(sequence)
            yield sequence, error
            return
        if event.finish is not None:
            with suppress(Exception):  # what is kept for others must not harm this one
                self._remember(sequence)
            self.cancel(sequence)
        yield sequence, event

    def _remember(self, sequence: Sequence) -> None:
        """Keep what a finished sequence has computed: the next turn of a conversation begins with it."""
        row = self.scheduler.writing.index(sequence)
        length = self.runner.slots.rows.lengths[row]
        self.prefixes.keep(sequence.request, self.runner.slots.read(row, length), sequence.writing.history[:length])

    def _bytes_of(self, sequence: Sequence) -> int:
        """Memory of one sequence's keys and values."""
        scheduler = self.scheduler
        return (len(sequence.writing.history)) * scheduler.bytes_per_token + sequence.sources * scheduler.bytes_per_source


def numbers_per_token(config: ModelConfig) -> int:
    """How many numbers one more token puts into a cache."""
    stack = config.decoder
    assert stack is not None
    forms = [stack.block(n).attention for n in range(stack.layers)]
    return sum(form.kv_heads * (form.head_dim + form.value_width) for form in forms)


def free_memory() -> int:
    """Bytes that could be taken now, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = 4 << 30
    try:  # a container has a limit of its own
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
