"""Beginnings that were computed already: what two requests begin with is computed once.

An entry is a sequence's tokens with their keys and values. They are never written over (see
`GrowingBuffer`), so that many may share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sightline.config import ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.stores import GrowingStore
from sightline.generation.decode import Request

MOST = 32  # entries
SHORTEST = 8  # tokens: less is computed again sooner than it is looked for

Fork = Callable[["Cache | None", int], Cache]
"""A cache that begins with so many tokens of another, or an empty one."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Tokens, the source they answer to, and their keys and values."""

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None
    cache: Cache


class Prefixes:
    """The latest beginnings, the longest-unused forgotten first."""

    def __init__(self, config: ModelConfig, *, most: int = MOST, fork: Fork | None = None) -> None:
        self.most = most
        self.fork = fork or partial(growing, config)
        self.kept: list[Beginning] = []

    def find(self, request: Request) -> tuple[Cache, int]:
        """A cache for this request with as much of its prompt as is known, and how many tokens that
        is; never all of it, since the last token's logits are wanted."""
        best, length = self._best(request)
        if best is None:
            return self.fork(None, 0), 0
        self.kept.remove(best)
        self.kept.append(best)
        return self.fork(best.cache, length), length

    def _best(self, request: Request) -> tuple[Beginning | None, int]:
        """The entry that knows most of a prompt, and how much it knows."""
        source = None if request.source is None else tuple(request.source)
        best = None
        length = SHORTEST - 1 if source is None else 0
        for entry in self.kept:
            shared = (
                min(common(entry.tokens, request.prompt), len(request.prompt) - 1)
                if entry.source == source
                else 0
            )
            if shared > length:
                best = entry
                length = shared
        return best, length

    def soon(self, request: Request, others: Sequence[Request]) -> bool:
        """Whether more of a prompt will be known when one of the others, which have no source, is
        read."""
        known = max((common(other.prompt, request.prompt) for other in others), default=0)
        return min(known, len(request.prompt) - 1) > self._best(request)[1]

    def shared(self, request: Request, others: Sequence[Request]) -> bool:
        """Whether a request begins as something that is known, or as one of the others: then it
        should wait for that."""
        source = None if request.source is None else tuple(request.source)
        alike = any(
            o.prompt[:SHORTEST] == request.prompt[:SHORTEST] and o.source == request.source
            for o in others
        )
        known = any(
            entry.source == source and entry.tokens[:SHORTEST] == tuple(request.prompt[:SHORTEST])
            for entry in self.kept
        )
        return alike or known

    def keep(self, request: Request, cache: Cache, tokens: Sequence[int]) -> None:
        """Remember a beginning, instead of shorter ones that it contains."""
        new = Beginning(
            tuple(tokens), None if request.source is None else tuple(request.source), cache
        )
        self.kept = [
            entry
            for entry in self.kept
            if entry.source != new.source or common(entry.tokens, new.tokens) < len(entry.tokens)
        ]
        self.kept = [*self.kept, new][-self.most :]

    def shrink(self, budget: int) -> None:
        """Forget until the rest fits."""
        while self.kept and self.bytes > max(0, budget):
            self.kept.pop(0)

    def clear(self) -> None:
        self.kept = []

    @property
    def bytes(self) -> int:
        return sum(entry.cache.bytes for entry in self.kept)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


def growing(config: ModelConfig, cache: Cache | None, length: int) -> Cache:
    """The fork of torch's caches."""
    return Cache.growing(config) if cache is None else fork(cache, length, config)


def fork(
    cache: Cache, length: int, config: ModelConfig, *, row: int = 0, copy: bool = False
) -> Cache:
    """A cache that begins as a row of another one does, without padding. They share memory until
    the new one grows, which copies; or `copy` at once, so that one row does not keep all the others
    alive."""
    new = Cache.growing(config)
    for store, old in zip(new.stores, cache.stores, strict=True):
        assert isinstance(store, GrowingStore)
        assert isinstance(old, GrowingStore)
        store.share(old, length, row)
        if copy:
            store.key.memory, store.value.memory = store.key.all.clone(), store.value.all.clone()
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
