"""Many sequences on the native engine: a step is one call, single tokens and pieces of prompts side
by side. Weights are read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from torch import Tensor

from sightline.core.cache.kv_cache import Cache
from sightline.core.runner import Runner
from sightline.engine.cache import BLOCK, NativeCache, bytes_for
from sightline.engine.engine import Rows
from sightline.engine.runner import NativeRunner
from sightline.generation.batch_runner import Found
from sightline.generation.prefixes import Prefixes
from sightline.generation.scheduler import Scheduler, Sequence


class Part(NamedTuple):
    """The next tokens of one sequence, and whether they are the last that are known."""

    sequence: Sequence
    cache: NativeCache
    tokens: list[int]
    last: bool


class NativeBatchRunner:
    """Every sequence has a cache of the engine, to its end. What a cache holds is a beginning of
    its sequence's tokens."""

    def __init__(self, runner: NativeRunner) -> None:
        self.runner: Runner = runner
        self.engine = runner.engine
        self.block_bytes = bytes_for(runner.engine, BLOCK)
        self.prefixes = Prefixes(runner.config, fork=partial(forked, runner))

    def step(self, scheduler: Scheduler, chunk: int) -> Iterator[Found]:
        parts = [self._part(sequence, 1) for sequence in scheduler.writing]
        parts += self._prompts(scheduler, chunk)
        for part, found in self._run(parts) if parts else ():
            if isinstance(found, Tensor) and part.sequence in scheduler.reading:
                scheduler.join(part.sequence)
                self._keep(part.sequence)
            yield part.sequence, found

    def _prompts(self, scheduler: Scheduler, left: int) -> Iterator[Part]:
        """Pieces of prompts, so many tokens in all. Who begins as another that is being read waits
        for that one."""
        begun = list[Sequence]()
        for sequence in scheduler.reading:
            if left <= 0:
                return
            if sequence.cache is None:
                if self.prefixes.soon(sequence.request, [other.request for other in begun]):
                    continue
                sequence.cache, sequence.reused = self.prefixes.find(sequence.request)
            begun.append(sequence)
            part = self._part(sequence, left)
            left -= len(part.tokens)
            yield part

    def _part(self, sequence: Sequence, most: int) -> Part:
        """Up to `most` tokens that are not in the cache yet: at least one, also after a step that
        never ended."""
        cache = sequence.cache
        history = sequence.writing.history
        assert isinstance(cache, NativeCache)
        if cache.length >= len(history):
            cache.truncate(len(history) - 1)
        tokens = history[cache.length : cache.length + most]
        return Part(sequence, cache, tokens, cache.length + len(tokens) == len(history))

    def _run(self, parts: list[Part]) -> Iterator[tuple[Part, Tensor | Exception]]:
        """The logits of those that are at their end. A call that fails leaves nothing, and each is
        tried for itself: one may be to blame."""
        logits = self._call(parts)
        if isinstance(logits, Tensor):
            yield from zip((part for part in parts if part.last), logits, strict=True)
        elif len(parts) == 1:
            yield parts[0], logits
        else:
            for part in parts:
                yield from self._run([part])

    def _call(self, parts: list[Part]) -> Tensor | Exception:
        try:
            logits = self.engine.run(
                [Rows(part.cache.rows(1)[0], part.tokens, int(part.last)) for part in parts]
            )
        except Exception as error:
            return error
        for part in parts:
            part.cache.length, part.cache.batch = part.cache.length + len(part.tokens), 1
        return logits

    def remember(self, sequence: Sequence, row: int) -> None:
        self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """What its cache holds, for others. Nothing is copied."""
        cache = sequence.cache
        assert isinstance(cache, NativeCache)
        self.prefixes.keep(
            sequence.request, cache.fork(cache.length), sequence.writing.history[: cache.length]
        )

    def forget(self, sequence: Sequence, row: int | None) -> None:
        cache = sequence.cache
        sequence.cache = None
        if isinstance(cache, NativeCache):
            cache.close()

    def shrink(self, budget: int, active: list[Sequence]) -> None:
        self.prefixes.shrink(budget - self.needed(active))

    def needed(self, sequences: Iterable[Sequence]) -> int:
        """Whole blocks for each of them; those that are shared count for each."""
        return sum(self._blocks(sequence.length) for sequence in sequences)

    def bytes_of(self, sequence: Sequence) -> int:
        return self._blocks(len(sequence.writing.history))

    def _blocks(self, length: int) -> int:
        return -(-length // BLOCK) * self.block_bytes

    def bytes(self, scheduler: Scheduler) -> int:
        return self.engine.cache_bytes


def forked(runner: NativeRunner, cache: Cache | None, length: int) -> Cache:
    """The fork of the engine's caches."""
    if cache is None:
        return runner.new_cache()
    assert isinstance(cache, NativeCache)
    return cache.fork(length)
