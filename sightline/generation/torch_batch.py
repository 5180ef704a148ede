"""Many sequences on torch: one pass for a token of each row, then passes for pieces of prompts,
those of one shape together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.slots import Slots
from sightline.core.runner import Runner
from sightline.generation.batch_runner import Found
from sightline.generation.prefixes import Prefixes, fork
from sightline.generation.scheduler import Scheduler, Sequence


class TorchBatchRunner:
    """Rows of slots that write, a cache for each prompt that is read."""

    def __init__(self, runner: Runner) -> None:
        config = runner.config
        self.runner = runner
        self.slots = Slots(config)
        self.prefixes = Prefixes(config)
        self.bytes_per_token = runner.dtype.itemsize * numbers_per_token(config)
        self.bytes_per_source = self.bytes_per_token if config.encoder is not None else 0
        self.apart = WeakSet[Sequence]()  # whom a pass in company failed

    def step(self, scheduler: Scheduler, chunk: int) -> Iterator[Found]:
        yield from self._write(list(scheduler.writing))
        yield from self._read(scheduler, chunk)

    def _write(self, rows: list[Sequence]) -> Iterator[Found]:
        """One more token for each row."""
        if not rows:
            return
        try:
            logits = self.write([sequence.writing.history[-1] for sequence in rows])
        except Exception as error:  # the pass itself failed: nobody's keys can be trusted
            yield from ((sequence, error) for sequence in rows)
            return
        yield from zip(rows, logits, strict=True)

    def _read(self, scheduler: Scheduler, left: int) -> Iterator[Found]:
        """Pieces of prompts, so many tokens in all; who has read all of its prompt begins to
        write."""
        while left > 0 and scheduler.reading:
            group = self._group(scheduler, left)
            try:
                read, logits = self.read(group, left)
                if logits is not None:
                    self._give_rows(group)
            except Exception as error:
                if len(group) > 1:  # one of them may be to blame: each for itself from now on
                    self.apart.update(group)
                else:
                    yield group[0], error
                continue
            left -= read
            if logits is not None:
                self._begin(group, scheduler)
                yield from zip(group, logits, strict=True)

    @torch.inference_mode()
    def write(self, tokens: list[int]) -> Float[Tensor, "rows vocab"]:
        """One more token for every row."""
        hidden = self.runner.hidden(self._tensor([[token] for token in tokens]), cache=self.slots)
        return self.runner.head(hidden)[:, -1].float()

    @torch.inference_mode()
    def read(
        self, group: list[Sequence], most: int
    ) -> tuple[int, Float[Tensor, "rows vocab"] | None]:
        """Up to `most` more tokens of each prompt into a cache: how many in all, and the logits if
        that was all of them.

        A group of several begins here: their prompts are as long as each other, and so are their
        sources.
        """
        cache = group[0].cache if len(group) == 1 else Cache.growing(self.runner.config)
        assert cache is not None
        start = cache.length
        length = len(group[0].request.prompt)
        pieces = [list(sequence.request.prompt[start : start + most]) for sequence in group]
        sources = [
            list(s.request.source) for s in group if s.request.source is not None and not start
        ]
        hidden = self.runner.hidden(
            self._tensor(pieces), cache=cache, source=self._tensor(sources) if sources else None
        )
        if len(group) > 1:
            for row, sequence in enumerate(group):
                sequence.cache = fork(cache, cache.length, self.runner.config, row=row, copy=True)
        read = len(group) * len(pieces[0])
        return read, (
            self.runner.head(hidden[:, -1:])[:, -1].float() if cache.length == length else None
        )

    def _tensor(self, tokens: list[list[int]]) -> Tensor:
        return torch.tensor(tokens, device=self.runner.device)

    def _group(self, scheduler: Scheduler, most: int) -> list[Sequence]:
        """The first that reads; with it those that can be read in the same pass, because their
        prompts have the same shape and nothing in common."""
        first, *others = scheduler.reading
        if first.cache is None:
            first.cache, first.reused = self.prefixes.find(first.request)
        length = len(first.request.prompt)
        group = [first]
        if first.cache.length or length > most or first in self.apart:
            return group
        room = scheduler.budget - self.needed(scheduler.active)
        for other in others:
            fits = (len(group) + 1) * length <= most and len(group) * self.bytes_of(other) <= room
            alike = (
                len(other.request.prompt) == length
                and other.sources == first.sources
                and other.cache is None
                and other not in self.apart
            )
            if (
                fits
                and alike
                and not self.prefixes.shared(other.request, [s.request for s in group])
            ):
                group.append(other)
        return group

    def _give_rows(self, group: list[Sequence]) -> None:
        """A row of the slots for each, or for none."""
        before = len(self.slots)
        try:
            for sequence in group:
                assert sequence.cache is not None
                self.slots.add(sequence.cache, capacity=sequence.length)
        except Exception:
            for row in range(len(self.slots) - 1, before - 1, -1):
                self.slots.remove(row)
            raise

    def _begin(self, group: list[Sequence], scheduler: Scheduler) -> None:
        """These prompts are read and have their rows: all of them join before the first takes its
        token, which may be its last."""
        for sequence in group:
            assert sequence.cache is not None
            self.prefixes.keep(sequence.request, sequence.cache, sequence.request.prompt)
            scheduler.join(sequence)
            sequence.cache = None

    def remember(self, sequence: Sequence, row: int) -> None:
        length = self.slots.rows.lengths[row]
        self.prefixes.keep(
            sequence.request, self.slots.read(row, length), sequence.writing.history[:length]
        )

    def forget(self, sequence: Sequence, row: int | None) -> None:
        sequence.cache = None
        if row is not None:
            self.slots.remove(row)

    def shrink(self, budget: int, active: list[Sequence]) -> None:
        self.prefixes.shrink(budget - max(self.needed(active), self.slots.bytes))

    def needed(self, sequences: Iterable[Sequence]) -> int:
        """A row for each, as long as the longest, and one prompt's own cache beside them."""
        lengths = [(s.length, s.sources) for s in sequences]
        longest, longest_source = (max(column) for column in zip((0, 0), *lengths, strict=True))
        return (len(lengths) + 1) * (
            longest * self.bytes_per_token + longest_source * self.bytes_per_source
        )

    def bytes_of(self, sequence: Sequence) -> int:
        return (
            len(sequence.writing.history) * self.bytes_per_token
            + sequence.sources * self.bytes_per_source
        )

    def bytes(self, scheduler: Scheduler) -> int:
        reading = sum(s.cache.bytes for s in scheduler.reading if s.cache is not None)
        return self.slots.bytes + reading + self.prefixes.bytes


def numbers_per_token(config: ModelConfig) -> int:
    """How many numbers one more token puts into a cache."""
    stack = config.decoder
    assert stack is not None
    forms = [stack.block(n).attention for n in range(stack.layers)]
    return sum(form.kv_heads * (form.head_dim + form.value_width) for form in forms)
