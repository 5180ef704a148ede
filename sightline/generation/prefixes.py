"""The prefix cache: a prefix that two requests share is computed once.

An entry is a sequence's tokens with their keys and values. These are never overwritten (see
`GrowingBuffer`), so that many sequences can share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sightline.config import ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import GrowingStore
from sightline.generation.decode import Request

MAX_ENTRIES = 32
SHORTEST = 8  # tokens; recomputing fewer is faster than looking them up

Fork = Callable[["Cache | None", int], Cache]
"""A cache with the first n tokens of another, or an empty one."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Tokens, the encoder's source, and their keys and values."""

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None
    cache: Cache


class Prefixes:
    """The most recent prefixes; the least recently used is evicted first."""

    def __init__(
        self, config: ModelConfig, *, most: int = MAX_ENTRIES, fork: Fork | None = None
    ) -> None:
        self.most = most
        self.fork = fork or partial(fork_torch_cache, config)
        self.entries: list[CachedPrefix] = []

    def find(self, request: Request) -> tuple[Cache, int]:
        """A cache that holds as much of this prompt as is cached, and how many tokens that is:
        never all of it, since the logits of the last token must be computed."""
        best, length = self._best(request)
        if best is None:
            return self.fork(None, 0), 0
        self.entries.remove(best)
        self.entries.append(best)
        return self.fork(best.cache, length), length

    def _best(self, request: Request) -> tuple[CachedPrefix | None, int]:
        """The entry with the longest common prefix, and its length."""
        source = None if request.source is None else tuple(request.source)
        best = None
        length = SHORTEST - 1 if source is None else 0
        for entry in self.entries:
            shared = (
                min(common_prefix(entry.tokens, request.prompt), len(request.prompt) - 1)
                if entry.source == source
                else 0
            )
            if shared > length:
                best = entry
                length = shared
        return best, length

    def will_be_shared(self, request: Request, others: Sequence[Request]) -> bool:
        """Whether prefilling one of the others (which have no source) will cache more of this
        prompt than is cached now."""
        longest = max((common_prefix(other.prompt, request.prompt) for other in others), default=0)
        return min(longest, len(request.prompt) - 1) > self._best(request)[1]

    def is_shared(self, request: Request, others: Sequence[Request]) -> bool:
        """Whether a request shares a prefix with the cache or with one of the others, so that it
        should not be prefilled with them."""
        source = None if request.source is None else tuple(request.source)
        alike = any(
            o.prompt[:SHORTEST] == request.prompt[:SHORTEST] and o.source == request.source
            for o in others
        )
        known = any(
            entry.source == source and entry.tokens[:SHORTEST] == tuple(request.prompt[:SHORTEST])
            for entry in self.entries
        )
        return alike or known

    def keep(self, request: Request, cache: Cache, tokens: Sequence[int]) -> None:
        """Add a prefix, replacing shorter ones that it contains."""
        new = CachedPrefix(
            tuple(tokens), None if request.source is None else tuple(request.source), cache
        )
        self.entries = [
            entry
            for entry in self.entries
            if entry.source != new.source
            or common_prefix(entry.tokens, new.tokens) < len(entry.tokens)
        ]
        self.entries = [*self.entries, new][-self.most :]

    def shrink(self, budget: int) -> None:
        """Evict entries until the rest fits."""
        while self.entries and self.bytes > max(0, budget):
            self.entries.pop(0)

    def clear(self) -> None:
        self.entries = []

    @property
    def bytes(self) -> int:
        return sum(entry.cache.bytes for entry in self.entries)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


def fork_torch_cache(config: ModelConfig, cache: Cache | None, length: int) -> Cache:
    """A growing cache that shares the first `length` tokens of another, or an empty one."""
    return Cache.growing(config) if cache is None else fork(cache, length, config)


def fork(
    cache: Cache, length: int, config: ModelConfig, *, row: int = 0, copy: bool = False
) -> Cache:
    """A cache with the first `length` tokens of one row of another, without padding. They share
    memory until the new one grows; `copy` copies at once, so that one row does not keep the others
    alive."""
    new = Cache.growing(config)
    for store, old in zip(new.stores, cache.stores, strict=True):
        assert isinstance(store, GrowingStore)
        assert isinstance(old, GrowingStore)
        store.share(old, length, row)
        if copy:
            store.key.memory = store.key.all.clone()
            store.value.memory = store.value.all.clone()
    for store, old in zip(new.cross, cache.cross, strict=True):
        stored = old.recall()
        assert stored is not None
        key = stored.key[row : row + 1]
        value = stored.value[row : row + 1]
        store.update(
            stored._replace(
                key=key.clone() if copy else key, value=value.clone() if copy else value
            )
        )
    new.length = length
    new.batch = 1
    return new
