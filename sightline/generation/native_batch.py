"""Batched decoding on the native engine: a step is one call with the decoding tokens and chunks of
prefill together, so that the weights are read once."""

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
from sightline.generation.batch_runner import StepResult
from sightline.generation.prefixes import Prefixes
from sightline.generation.scheduler import Scheduler, Sequence


class Part(NamedTuple):
    """The next tokens of one sequence, and whether they reach its end."""

    sequence: Sequence
    cache: NativeCache
    tokens: list[int]
    last: bool


class NativeBatchRunner:
    """Every sequence has its own cache of the engine, which holds a prefix of its tokens."""

    def __init__(self, runner: NativeRunner) -> None:
        self.runner: Runner = runner
        self.engine = runner.engine
        self.block_bytes = bytes_for(runner.engine, BLOCK)
        self.prefixes = Prefixes(runner.config, fork=partial(fork_cache, runner))

    def step(self, scheduler: Scheduler, chunk: int) -> Iterator[StepResult]:
        parts = [self._part(sequence, 1) for sequence in scheduler.decoding]
        parts += self._prefill_parts(scheduler, chunk)
        for part, result in self._run(parts) if parts else ():
            if isinstance(result, Tensor) and part.sequence in scheduler.prefilling:
                scheduler.join(part.sequence)
                self._keep(part.sequence)
            yield part.sequence, result

    def _prefill_parts(self, scheduler: Scheduler, left: int) -> Iterator[Part]:
        """Up to `left` tokens of prefill. A prompt that shares a prefix with another in prefill
        waits for it."""
        begun = list[Sequence]()
        for sequence in scheduler.prefilling:
            if left <= 0:
                return
            if sequence.cache is None:
                if self.prefixes.will_be_shared(
                    sequence.request, [other.request for other in begun]
                ):
                    continue
                sequence.cache, sequence.reused = self.prefixes.find(sequence.request)
            begun.append(sequence)
            part = self._part(sequence, left)
            left -= len(part.tokens)
            yield part

    def _part(self, sequence: Sequence, most: int) -> Part:
        """Up to `most` tokens that are not in the cache yet, and at least one, even after an
        interrupted step."""
        cache = sequence.cache
        history = sequence.state.history
        assert isinstance(cache, NativeCache)
        if cache.length >= len(history):
            cache.truncate(len(history) - 1)
        tokens = history[cache.length : cache.length + most]
        return Part(sequence, cache, tokens, cache.length + len(tokens) == len(history))

    def _run(self, parts: list[Part]) -> Iterator[tuple[Part, Tensor | Exception]]:
        """Logits of the parts that reach the end of their sequence. If the call fails, each part is
        tried by itself: one may be the cause."""
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
            part.cache.length += len(part.tokens)
            part.cache.batch = 1
        return logits

    def cache_prefix(self, sequence: Sequence, row: int) -> None:
        self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Share its cache with later requests, without copying."""
        cache = sequence.cache
        assert isinstance(cache, NativeCache)
        self.prefixes.keep(
            sequence.request, cache.fork(cache.length), sequence.state.history[: cache.length]
        )

    def release(self, sequence: Sequence, row: int | None) -> None:
        cache = sequence.cache
        sequence.cache = None
        if isinstance(cache, NativeCache):
            cache.close()

    def shrink(self, budget: int, active: list[Sequence]) -> None:
        self.prefixes.shrink(budget - self.memory_needed(active))

    def memory_needed(self, sequences: Iterable[Sequence]) -> int:
        """Full blocks of each sequence; shared blocks count once per sequence."""
        return sum(self._blocks(sequence.length) for sequence in sequences)

    def bytes_of(self, sequence: Sequence) -> int:
        return self._blocks(len(sequence.state.history))

    def _blocks(self, length: int) -> int:
        return -(-length // BLOCK) * self.block_bytes

    def bytes(self, scheduler: Scheduler) -> int:
        return self.engine.cache_bytes


def fork_cache(runner: NativeRunner, cache: Cache | None, length: int) -> Cache:
    """A cache that shares the first `length` tokens of another, or an empty one."""
    if cache is None:
        return runner.new_cache()
    assert isinstance(cache, NativeCache)
    return cache.fork(length)
