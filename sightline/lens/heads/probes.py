"""Probes of random tokens, repeated once: the second half can be predicted from the first alone.

    A B C D … A B C D …      at the second C, a duplicate-token head looks at the first C,
                             an induction head at the D after it

Two lengths are used, so that a head with a fixed offset, which could look like either at one
length, fails at the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sightline.core.model import Transformer
from sightline.errors import InputError
from sightline.lens.trace.subject import Subject

PERIODS = {"probe": 40, "short probe": 29}
MIN_PERIOD = 3  # tokens


@dataclass(frozen=True, slots=True)
class Probe:
    """`ids` with the model's special tokens; `source` is the encoder's input of an
    encoder–decoder."""

    ids: list[int]
    period: int
    source: list[int] | None = None


def probes_for(subject: Subject, *, seed: int = 0, start: int = 0) -> dict[str, Probe]:
    """A long and a short probe. An encoder–decoder gets the tokens as source, and the same tokens
    after `start` as target."""
    before, after = special_tokens_around(subject)
    vocabulary = usable_tokens(subject)
    capacity = token_capacity(subject.transformer) - len(before) - len(after)
    longest = min(PERIODS["probe"], len(vocabulary), capacity // 2)
    if longest <= MIN_PERIOD:
        text = f"{len(vocabulary)} tokens that are text, and room for {capacity}"
        raise InputError(
            f"a model with {text}",
            expected=f"{MIN_PERIOD + 1} and room for {2 * MIN_PERIOD + 2}",
            fix="take a larger model",
        )
    generator = torch.Generator().manual_seed(seed)
    probes: dict[str, Probe] = {}
    for name, period in PERIODS.items():
        size = max(MIN_PERIOD, longest * period // PERIODS["probe"])
        order = torch.randperm(len(vocabulary), generator=generator)[:size].tolist()
        twice = [vocabulary[place] for place in order] * 2
        two_stacks = len(subject.transformer.config.stacks) == 2
        wrapped = [*before, *twice, *after]
        probes[name] = Probe([start, *twice], size, wrapped) if two_stacks else Probe(wrapped, size)
    return probes


def special_tokens_around(subject: Subject) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer adds before and after a text."""
    if subject.tokenizer is None:
        return [], []
    inner = subject.tokenizer.encode("a")
    encoded = subject.tokenizer.encode("a", special=True)
    first = next(n for n in range(len(encoded)) if encoded[n : n + len(inner)] == inner)
    return encoded[:first], encoded[first + len(inner) :]


def usable_tokens(subject: Subject) -> list[int]:
    """Ids of ordinary text: neither special nor unknown, and within every stack's vocabulary."""
    size = min(stack.embedding.vocab_size for stack in subject.transformer.config.stacks.values())
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return list(range(size))
    excluded = tokenizer.special_ids | {tokenizer.unknown}
    return [id for id in range(min(size, tokenizer.vocab_size)) if id not in excluded]


def token_capacity(transformer: Transformer) -> int:
    """The tokens that fit into every stack, one reserved for the decoder's start token."""
    return min(stack.max_positions for stack in transformer.config.stacks.values()) - 1
