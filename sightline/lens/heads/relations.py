"""Which heads find which relation: pronoun → referent, verb → subject, adjective → noun, in
sentences whose links are known.

    rate     how often the strongest of the words that a token can see is the right one (sinks,
             punctuation and the word itself excluded)
    chance   the rate of a head that picks among these words blindly
    offset   the rate of the best head that always looks a fixed number of tokens away
    p        P(Binomial(links, chance) ≥ hits) · heads, at most 1: Bonferroni's correction, since
             the best of many heads can be good by luck alone

A head has found a relation if it beats both. A causal model cannot look ahead: there adjective →
noun becomes noun → adjective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.heads.links import (
    LANGUAGES,
    RELATIONS,
    Link,
    Lookup,
    Sentence,
    lookups_in,
    sentences,
)
from sightline.lens.heads.probes import room_of
from sightline.lens.trace.layer import Site, sites_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, trace_of

Progress = Callable[[int, int], None]
SURE = 0.05
TOP = 5
FARTHEST = 40


@dataclass(frozen=True, slots=True)
class RelationHead:
    """One head's rate, and how likely so many hits would be for the best of all heads by chance, or
    by the best fixed offset."""

    stack: str
    layer: int
    head: int
    hits: int
    rate: float
    p_chance: float
    p_offset: float

    @property
    def found(self) -> bool:
        return max(self.p_chance, self.p_offset) < SURE


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation in one language. `mean` and `spread` are of the rates of all heads; `skipped`
    links the tokenizer cannot show."""

    relation: str
    language: str
    looks: str
    finds: str
    links: int
    skipped: int
    chance: float
    offset: int
    offset_rate: float
    mean: float
    spread: float
    top: tuple[RelationHead, ...]
    rates: Float[Tensor, "layers heads"]

    @property
    def title(self) -> str:
        return f"{self.looks} → {self.finds}, {LANGUAGES[self.language]}"


@dataclass(frozen=True, slots=True)
class Relations:
    """All relations; `stack` is the one that was looked at, the encoder if there are two."""

    name: str
    stack: str
    causal: bool
    relations: tuple[Relation, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [
            {
                **asdict(one),
                "rates": one.rates.tolist(),
                "top": [{**asdict(head), "found": head.found} for head in one.top],
            }
            for one in self.relations
        ]
        return {"model": self.name, "stack": self.stack, "causal": self.causal, "relations": rows}


@dataclass(slots=True)
class Tally:
    """The lookups of one relation in one language, and the hits of every head of every layer."""

    lookups: list[Lookup]
    skipped: int
    hits: Float[Tensor, "layers heads"]


def relations_of(
    subject: Subject, *, language: str | None = None, progress: Progress | None = None
) -> Relations:
    """The heads of one stack against all sentences, of one language or of all."""
    if subject.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    stack, sites = searched(subject)
    chosen = sentences(language)
    causal = subject.running.config.stacks[stack].causal
    tallies: dict[tuple[str, str], Tally] = {}
    for done, sentence in enumerate(chosen):
        trace = read(subject, sentence.text, stack)
        lookups, skipped = lookups_in(
            trace.tokens_of(stack), sentence.links, causal=causal, unknown=subject.tokenizer.unknown
        )
        count(tallies, sentence, lookups, skipped, trace, sites)
        if progress is not None:
            progress(done + 1, len(chosen))
    found = [
        summary(kind, tongue, tally, sites, causal=causal)
        for (tongue, kind), tally in tallies.items()
        if tally.lookups
    ]
    if not found:
        raise InputError(
            "a tokenizer that cannot write the sentences",
            expected=" or ".join(LANGUAGES.values()),
            fix="another language=, or another model",
        )
    return Relations(subject.name, stack, causal, tuple(found))


def searched(subject: Subject) -> tuple[str, list[Site]]:
    """The stack that reads the sentence, and its layers of self-attention."""
    stack = next(iter(subject.running.config.stacks))
    return stack, [site for site in sites_of(subject.running) if site[0] == stack and not site[2]]


def read(subject: Subject, text: str, stack: str) -> Trace:
    """One sentence; the decoder of two stacks is shown its first token only."""
    assert subject.tokenizer is not None
    ids = subject.tokenizer.encode(text, special=True)
    room = room_of(subject.running) + 1
    if len(ids) > room:
        raise InputError(
            f"a sentence of {len(ids)} tokens for a model of {room}",
            expected="room for the built-in sentences",
            fix="take a larger model",
        )
    if len(subject.running.config.stacks) == 2:
        return trace_of(
            subject,
            [subject.tokenizer.bos or 0],
            source=ids,
            source_text=text,
            what=("query", "key"),
        )
    return trace_of(subject, ids, text=text, what=("query", "key"))


def count(
    tallies: dict[tuple[str, str], Tally],
    sentence: Sentence,
    lookups: Sequence[Lookup],
    skipped: Sequence[Link],
    trace: Trace,
    sites: Sequence[Site],
) -> None:
    """Add a sentence to the tallies."""
    hits = torch.stack([hits_of(trace, site, lookups) for site in sites])  # [layers, heads, links]
    for relation in RELATIONS:
        tally = tallies.setdefault(
            (sentence.language, relation), Tally([], 0, torch.zeros(hits.shape[:2]))
        )
        tally.skipped += sum(link.relation == relation for link in skipped)
        for place, one in enumerate(lookups):
            if one.relation == relation:
                tally.lookups.append(one)
                tally.hits += hits[..., place]


def hits_of(trace: Trace, site: Site, seen: Sequence[Lookup]) -> Float[Tensor, "heads links"]:
    """1 where the strongest candidate of a link is right."""
    look = trace.looks[site]
    hits = torch.zeros(look.heads, len(seen))
    rows = look.weights()[:, [one.query for one in seen]]
    for place, one in enumerate(seen):
        strongest = rows[:, place, list(one.candidates)].argmax(-1).tolist()
        hits[:, place] = torch.tensor(
            [float(one.candidates[key] in one.targets) for key in strongest]
        )
    return hits


def summary(
    kind: str, language: str, tally: Tally, sites: Sequence[Site], *, causal: bool
) -> Relation:
    """The best heads of a relation, beside what chance and the best fixed offset reach."""
    links = len(tally.lookups)
    rates = tally.hits / links
    chance = sum(one.chance for one in tally.lookups) / links
    offset, offset_rate = best_offset(tally.lookups)
    looks, finds = RELATIONS[kind][::-1] if causal and kind == "adjective" else RELATIONS[kind]
    best = rates.flatten().argsort(descending=True, stable=True)[:TOP].tolist()
    top = [
        judged(sites, tally, divmod(place, rates.shape[1]), chance, offset_rate) for place in best
    ]
    spread = float(rates.std(correction=0))
    return Relation(
        kind,
        language,
        looks,
        finds,
        links,
        tally.skipped,
        chance,
        offset,
        offset_rate,
        float(rates.mean()),
        spread,
        tuple(top),
        rates,
    )


def judged(
    sites: Sequence[Site], tally: Tally, place: tuple[int, int], chance: float, offset_rate: float
) -> RelationHead:
    """One head's hits, and how likely so many are for the best of all heads."""
    layer, head = place
    links = len(tally.lookups)
    hits = int(tally.hits[layer, head])
    p_chance, p_offset = (
        min(1.0, tally.hits.numel() * tail(links, hits, rate)) for rate in (chance, offset_rate)
    )
    return RelationHead(
        sites[layer][0], sites[layer][1], head, hits, hits / links, p_chance, p_offset
    )


def best_offset(lookups: Sequence[Lookup]) -> tuple[int, float]:
    """The fixed offset that is right most often, and how often that is."""
    offsets: Mapping[int, float] = {
        by: sum(one.query + by in one.targets for one in lookups) / len(lookups)
        for by in range(-FARTHEST, FARTHEST + 1)
    }
    best = max(offsets, key=lambda by: (offsets[by], -abs(by)))
    return best, offsets[best]


def tail(count: int, hits: int, rate: float) -> float:
    """P(X ≥ hits) for X ~ Binomial(count, rate)."""
    return min(
        1.0,
        sum(
            math.comb(count, n) * rate**n * (1 - rate) ** (count - n)
            for n in range(hits, count + 1)
        ),
    )
