"""Random tokens, repeated once: a text in which only a head that knows repetition can know what
comes next.

    A B C D … A B C D …      at the second C, a duplicate-token head looks at the first C,
                             an induction head at the D after it

Two lengths are used, so that a head of a fixed offset, which would pass for both at one length,
fails at the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sightline.core.model import Transformer
from sightline.errors import InputError
from sightline.lens.trace.subject import Subject

PERIODS = {"probe": 40, "short probe": 29}
LEAST = 3  # tokens that make a period


@dataclass(frozen=True, slots=True)
class Probe:
    """`ids` with what the model wants around them; `source` is the encoder's where there are two
    stacks."""

    ids: list[int]
    period: int
    source: list[int] | None = None


def probes_for(subject: Subject, *, seed: int = 0, start: int = 0) -> dict[str, Probe]:
    """A long and a short probe; an encoder–decoder reads the tokens, and is shown writing the same
    ones after `start`."""
    before, after = around(subject)
    known = usable_tokens(subject)
    room = room_of(subject.running) - len(before) - len(after)
    longest = min(PERIODS["probe"], len(known), room // 2)
    if longest <= LEAST:
        seen = f"{len(known)} tokens that are text, and room for {room}"
        raise InputError(
            f"a model with {seen}",
            expected=f"{LEAST + 1} and room for {2 * LEAST + 2}",
            fix="take a larger model",
        )
    drawn = torch.Generator().manual_seed(seed)
    found: dict[str, Probe] = {}
    for name, period in PERIODS.items():
        size = max(LEAST, longest * period // PERIODS["probe"])
        order = torch.randperm(len(known), generator=drawn)[:size].tolist()
        twice = [known[place] for place in order] * 2
        two_stacks = len(subject.running.config.stacks) == 2
        wrapped = [*before, *twice, *after]
        found[name] = Probe([start, *twice], size, wrapped) if two_stacks else Probe(wrapped, size)
    return found


def around(subject: Subject) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text."""
    if subject.tokenizer is None:
        return [], []
    inner = subject.tokenizer.encode("a")
    whole = subject.tokenizer.encode("a", special=True)
    first = next(n for n in range(len(whole)) if whole[n : n + len(inner)] == inner)
    return whole[:first], whole[first + len(inner) :]


def usable_tokens(subject: Subject) -> list[int]:
    """Ids that are text: neither special nor unknown, and within all vocabularies."""
    size = min(stack.embedding.vocab_size for stack in subject.running.config.stacks.values())
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return list(range(size))
    steering = tokenizer.special_ids | {tokenizer.unknown}
    return [id for id in range(min(size, tokenizer.vocab_size)) if id not in steering]


def room_of(transformer: Transformer) -> int:
    """How many tokens every stack can read, one kept for the decoder's start."""
    return min(stack.max_positions for stack in transformer.config.stacks.values()) - 1
