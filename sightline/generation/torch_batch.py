"""Batched decoding on torch: one forward pass for the next token of every row, then prefill passes,
prompts of equal shape together."""

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
from sightline.generation.batch_runner import StepResult
from sightline.generation.prefixes import Prefixes, fork
from sightline.generation.scheduler import Scheduler, Sequence


class TorchBatchRunner:
    """Decoding sequences share one cache of slots; each prompt in prefill has its own cache."""

    def __init__(self, runner: Runner) -> None:
        config = runner.config
        self.runner = runner
        self.slots = Slots(config)
        self.prefixes = Prefixes(config)
        self.bytes_per_token = runner.dtype.itemsize * numbers_per_token(config)
        self.bytes_per_source = self.bytes_per_token if config.encoder is not None else 0
        self.alone = WeakSet[Sequence]()  # prefilled by themselves after a failed batch

    def step(self, scheduler: Scheduler, chunk: int) -> Iterator[StepResult]:
        yield from self._decode_rows(list(scheduler.decoding))
        yield from self._prefill_groups(scheduler, chunk)

    def _decode_rows(self, rows: list[Sequence]) -> Iterator[StepResult]:
        """One more token for each row."""
        if not rows:
            return
        try:
            logits = self.decode([sequence.state.history[-1] for sequence in rows])
        except Exception as error:  # the pass itself failed: no row of the cache can be trusted
            yield from ((sequence, error) for sequence in rows)
            return
        yield from zip(rows, logits, strict=True)

    def _prefill_groups(self, scheduler: Scheduler, left: int) -> Iterator[StepResult]:
        """Prefill up to `left` tokens. A sequence whose prompt is done starts decoding."""
        while left > 0 and scheduler.prefilling:
            group = self._group(scheduler, left)
            try:
                count, logits = self.prefill(group, left)
                if logits is not None:
                    self._assign_rows(group)
            except Exception as error:
                if len(group) > 1:  # one of them may be the cause: prefill each by itself
                    self.alone.update(group)
                else:
                    yield group[0], error
                continue
            left -= count
            if logits is not None:
                self._start_decoding(group, scheduler)
                yield from zip(group, logits, strict=True)

    @torch.inference_mode()
    def decode(self, tokens: list[int]) -> Float[Tensor, "rows vocab"]:
        """One more token for every row."""
        hidden = self.runner.hidden(self._tensor([[token] for token in tokens]), cache=self.slots)
        return self.runner.head(hidden)[:, -1].float()

    @torch.inference_mode()
    def prefill(
        self, group: list[Sequence], most: int
    ) -> tuple[int, Float[Tensor, "rows vocab"] | None]:
        """Up to `most` more tokens of each prompt into a cache. Returns how many in all, and the
        logits if the prompts are complete.

        A group of several starts from an empty cache; their prompts have one length, and their
        sources too.
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
        count = len(group) * len(pieces[0])
        if cache.length < length:
            return count, None
        return count, self.runner.head(hidden[:, -1:])[:, -1].float()

    def _tensor(self, tokens: list[list[int]]) -> Tensor:
        return torch.tensor(tokens, device=self.runner.device)

    def _group(self, scheduler: Scheduler, most: int) -> list[Sequence]:
        """The first sequence in prefill, and those that can share its pass: prompts of the same
        shape without a common prefix."""
        first, *others = scheduler.prefilling
        if first.cache is None:
            first.cache, first.reused = self.prefixes.find(first.request)
        length = len(first.request.prompt)
        group = [first]
        if first.cache.length or length > most or first in self.alone:
            return group
        room = scheduler.budget - self.memory_needed(scheduler.active)
        for other in others:
            fits = (len(group) + 1) * length <= most and len(group) * self.bytes_of(other) <= room
            alike = (
                len(other.request.prompt) == length
                and other.source_length == first.source_length
                and other.cache is None
                and other not in self.alone
            )
            if (
                fits
                and alike
                and not self.prefixes.is_shared(other.request, [s.request for s in group])
            ):
                group.append(other)
        return group

    def _assign_rows(self, group: list[Sequence]) -> None:
        """Allocate a row of the slots for each sequence, or for none if one fails."""
        before = len(self.slots)
        try:
            for sequence in group:
                assert sequence.cache is not None
                self.slots.add(sequence.cache, capacity=sequence.length)
        except Exception:
            for row in range(len(self.slots) - 1, before - 1, -1):
                self.slots.remove(row)
            raise

    def _start_decoding(self, group: list[Sequence], scheduler: Scheduler) -> None:
        """Move a prefilled group to decoding, all before the first token is chosen: it may be the
        last of its sequence."""
        for sequence in group:
            assert sequence.cache is not None
            self.prefixes.keep(sequence.request, sequence.cache, sequence.request.prompt)
            scheduler.join(sequence)
            sequence.cache = None

    def cache_prefix(self, sequence: Sequence, row: int) -> None:
        length = self.slots.rows.lengths[row]
        self.prefixes.keep(
            sequence.request, self.slots.read(row, length), sequence.state.history[:length]
        )

    def release(self, sequence: Sequence, row: int | None) -> None:
        sequence.cache = None
        if row is not None:
            self.slots.remove(row)

    def shrink(self, budget: int, active: list[Sequence]) -> None:
        self.prefixes.shrink(budget - max(self.memory_needed(active), self.slots.bytes))

    def memory_needed(self, sequences: Iterable[Sequence]) -> int:
        """Rows as long as the longest sequence, and one prompt in prefill beside them."""
        lengths = [(s.length, s.source_length) for s in sequences]
        longest, longest_source = (max(column) for column in zip((0, 0), *lengths, strict=True))
        return (len(lengths) + 1) * (
            longest * self.bytes_per_token + longest_source * self.bytes_per_source
        )

    def bytes_of(self, sequence: Sequence) -> int:
        return (
            len(sequence.state.history) * self.bytes_per_token
            + sequence.source_length * self.bytes_per_source
        )

    def bytes(self, scheduler: Scheduler) -> int:
        prefilling = sum(s.cache.bytes for s in scheduler.prefilling if s.cache is not None)
        return self.slots.bytes + prefilling + self.prefixes.bytes


def numbers_per_token(config: ModelConfig) -> int:
    """Values that one token adds to the KV cache."""
    stack = config.decoder
    assert stack is not None
    forms = [stack.block(n).attention for n in range(stack.layers)]
    return sum(form.kv_heads * (form.head_dim + form.value_width) for form in forms)
