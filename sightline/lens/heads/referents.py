"""What "it" is, where only the last adjective tells: tired → the animal, wide → the street.

    The animal didn't cross the street because it was too tired / wide

    margin = log w(first noun) − log w(second noun)     of one head, in the row of "it" or of the
                                                        adjective
    right flip   margin > 0 with the first adjective and < 0 with the second
    wrong flip   the reverse

Both sentences of a pair have the same words but one. So a head that ignores the adjective prefers
the same noun in both, and one that reacts to it without knowing what it means flips the wrong way
as often as the right way. A causal model cannot know at "it" what follows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.heads.links import span_of, tokens_in
from sightline.lens.heads.relations import source_stack, trace_sentence
from sightline.lens.trace.layer import Site
from sightline.lens.trace.subject import Subject

From = Literal["it", "adjective"]
TINY = 1e-30  # added to weights, which underflow in float32


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences; the n-th adjective goes with the n-th noun. `fresh` pairs judge a head that
    was chosen on the others."""

    text: str
    nouns: tuple[str, str]
    adjectives: tuple[str, str]
    fresh: bool = False

    @property
    def sentences(self) -> tuple[str, str]:
        first, second = self.adjectives
        return self.text.format(first), self.text.format(second)


@dataclass(frozen=True, slots=True)
class Referents:
    """The margins of every head, for both sentences of each pair. `causal` models read "it" before
    the adjective."""

    name: str
    causal: bool
    pairs: tuple[Pair, ...]
    margins: Float[Tensor, "layers heads pairs 2"]

    @property
    def shifts(self) -> Float[Tensor, "layers heads pairs"]:
        """How far the adjective moves the margin: positive is towards the right noun."""
        return self.margins[..., 0] - self.margins[..., 1]

    @property
    def right(self) -> Tensor:
        """Where a head chooses the right noun in both sentences."""
        return (self.margins[..., 0] > 0) & (self.margins[..., 1] < 0)

    @property
    def wrong(self) -> Tensor:
        """Where a head chooses the wrong noun in both sentences."""
        return (self.margins[..., 0] < 0) & (self.margins[..., 1] > 0)


@cache
def referent_pairs() -> tuple[Pair, ...]:
    """The built-in pairs; the first two are the classical ones."""
    text = files("sightline.lens.heads").joinpath("referents.toml").read_text(encoding="utf-8")
    return tuple(
        Pair(row["text"], tuple(row["nouns"]), tuple(row["adjectives"]), row.get("fresh", False))
        for row in tomllib.loads(text)["pair"]
    )


def referents_of(
    subject: Subject, pairs: Sequence[Pair] | None = None, *, look_from: From = "it"
) -> Referents:
    """The margins of the heads of one stack, from "it" or from the adjective."""
    if subject.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    stack, sites = source_stack(subject)
    chosen = referent_pairs() if pairs is None else tuple(pairs)
    margins = [
        torch.stack(
            [
                pair_margin(subject, text, pair.nouns, word, stack, sites)
                for text, word in zip(pair.sentences, rows_of(pair, look_from), strict=True)
            ],
            -1,
        )
        for pair in chosen
    ]
    causal = subject.transformer.config.stacks[stack].causal
    return Referents(subject.name, causal, chosen, torch.stack(margins, -2))


def rows_of(pair: Pair, look_from: From) -> tuple[str, str]:
    return ("it", "it") if look_from == "it" else pair.adjectives


def pair_margin(
    subject: Subject,
    text: str,
    nouns: tuple[str, str],
    word: str,
    stack: str,
    sites: Sequence[Site],
) -> Float[Tensor, "layers heads"]:
    """log w(first noun) − log w(second noun) in the row of a word's last token."""
    trace = trace_sentence(subject, text, stack)
    tokens = trace.tokens_of(stack)
    row = tokens_in(tokens, span_of(text, word))[-1]
    first, second = (tokens_in(tokens, span_of(text, noun)) for noun in nouns)
    weights = torch.stack([trace.looks[site].weights(rows=row) for site in sites])
    return log_weight(weights, first) - log_weight(weights, second)


def log_weight(weights: Float[Tensor, "layers heads key"], keys: Sequence[int]) -> Tensor:
    """The logarithm of the weight on some keys together."""
    return (weights[..., list(keys)].double().sum(-1) + TINY).log()
