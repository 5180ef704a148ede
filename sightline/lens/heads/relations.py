"""Which heads follow which relation: pronoun → referent, verb → subject, adjective → noun, in
sentences with annotated links.

    rate     how often the word with the largest weight is the correct one (sinks, punctuation and
             the word itself excluded)
    chance   the rate of a uniformly random choice among these words
    offset   the rate of the best fixed offset
    p        P(Binomial(links, chance) ≥ hits) · heads, at most 1: Bonferroni's correction for the
             number of heads

A head is significant for a relation if it beats chance and the best offset. In a causal model,
which cannot attend ahead, adjective → noun becomes noun → adjective.
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
    Sentence,
    TokenLink,
    sentences,
    token_links,
)
from sightline.lens.heads.probes import token_capacity
from sightline.lens.trace.layer import Site, sites_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, TracingSubject, trace_of

Progress = Callable[[int, int], None]
SIGNIFICANCE = 0.05
TOP = 5
MAX_OFFSET = 40


@dataclass(frozen=True, slots=True)
class RelationHead:
    """One head's hit rate, and its p-values against chance and against the best fixed offset,
    corrected for the number of heads."""

    stack: str
    layer: int
    head: int
    hits: int
    rate: float
    p_chance: float
    p_offset: float

    @property
    def is_significant(self) -> bool:
        return max(self.p_chance, self.p_offset) < SIGNIFICANCE


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation in one language. `mean` and `spread` (standard deviation) are of the rates of
    all heads; `skipped` counts links that the tokenizer cannot express."""

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

    def __repr__(self) -> str:
        best = self.top[0]
        head = f"layer {best.layer}, head {best.head} {best.rate:.0%}"
        return f"<Relation {self.title}: best {head}, chance {self.chance:.0%}>"

    @property
    def title(self) -> str:
        return f"{self.looks} → {self.finds}, {LANGUAGES[self.language]}"


@dataclass(frozen=True, slots=True)
class Relations:
    """All relations of one stack, the encoder if there are two."""

    name: str
    stack: str
    causal: bool
    relations: tuple[Relation, ...]

    def __repr__(self) -> str:
        titles = "; ".join(relation.title for relation in self.relations)
        return f"<Relations of {self.name or 'a model'} {self.stack}: {titles}>"

    def _repr_html_(self) -> str:
        """The best head of every relation, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        rows = [
            (
                relation.title,
                f"layer {relation.top[0].layer}, head {relation.top[0].head}",
                relation.top[0].rate,
                relation.chance,
                relation.offset_rate,
                "yes" if relation.top[0].is_significant else "no",
            )
            for relation in self.relations
        ]
        header = ("relation", "best head", "rate", "chance", "best offset", "significant")
        return result_table(repr(self), header, rows)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        rows = [
            {
                **asdict(relation),
                "rates": relation.rates.tolist(),
                "top": [{**asdict(head), "found": head.is_significant} for head in relation.top],
            }
            for relation in self.relations
        ]
        return {"model": self.name, "stack": self.stack, "causal": self.causal, "relations": rows}


@dataclass(slots=True)
class Tally:
    """The token links of one relation in one language, and the hits of every head."""

    token_links: list[TokenLink]
    skipped: int
    hits: Float[Tensor, "layers heads"]


def relations_of(
    subject: Subject, *, language: str | None = None, progress: Progress | None = None
) -> Relations:
    """Test the heads of one stack on the built-in sentences, of one language or of all."""
    if subject.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    stack, sites = source_stack(subject)
    selected = sentences(language)
    causal = subject.transformer.config.stacks[stack].causal
    tallies: dict[tuple[str, str], Tally] = {}
    for done, sentence in enumerate(selected):
        trace = trace_sentence(subject, sentence.text, stack)
        links, skipped = token_links(
            trace.tokens_of(stack), sentence.links, causal=causal, unknown=subject.tokenizer.unknown
        )
        add_hits(tallies, sentence, links, skipped, trace, sites)
        if progress is not None:
            progress(done + 1, len(selected))
    relations = [
        summarize_relation(kind, sentence_language, tally, sites, causal=causal)
        for (sentence_language, kind), tally in tallies.items()
        if tally.token_links
    ]
    if not relations:
        raise InputError(
            "a tokenizer that cannot encode the sentences",
            expected=" or ".join(LANGUAGES.values()),
            fix="another language=, or another model",
        )
    return Relations(subject.name, stack, causal, tuple(relations))


def source_stack(subject: Subject) -> tuple[str, list[Site]]:
    """The stack that reads the sentence, and its self-attention layers."""
    stack = next(iter(subject.transformer.config.stacks))
    return stack, [
        site for site in sites_of(subject.transformer) if site[0] == stack and not site[2]
    ]


def trace_sentence(subject: Subject, text: str, stack: str) -> Trace:
    """The trace of one sentence; the decoder of an encoder–decoder gets its start token only."""
    assert subject.tokenizer is not None
    ids = subject.tokenizer.encode(text, special=True)
    room = token_capacity(subject.transformer) + 1
    if len(ids) > room:
        raise InputError(
            f"a sentence of {len(ids)} tokens for a model of {room}",
            expected="room for the built-in sentences",
            fix="take a larger model",
        )
    if len(subject.transformer.config.stacks) == 2:
        return trace_of(
            subject,
            [subject.tokenizer.bos or 0],
            source=ids,
            source_text=text,
            what=("query", "key"),
        )
    if isinstance(subject, TracingSubject):
        return subject.trace(text, what=("query", "key"))
    return trace_of(subject, ids, text=text, what=("query", "key"))


def add_hits(
    tallies: dict[tuple[str, str], Tally],
    sentence: Sentence,
    links: Sequence[TokenLink],
    skipped: Sequence[Link],
    trace: Trace,
    sites: Sequence[Site],
) -> None:
    """Add the hits of one sentence to the tallies."""
    hits = torch.stack([hits_of(trace, site, links) for site in sites])  # [layers, heads, links]
    for relation in RELATIONS:
        tally = tallies.setdefault(
            (sentence.language, relation), Tally([], 0, torch.zeros(hits.shape[:2]))
        )
        tally.skipped += sum(link.relation == relation for link in skipped)
        for place, link in enumerate(links):
            if link.relation == relation:
                tally.token_links.append(link)
                tally.hits += hits[..., place]


def hits_of(trace: Trace, site: Site, links: Sequence[TokenLink]) -> Float[Tensor, "heads links"]:
    """1 where the candidate with the largest weight is correct."""
    look = trace.looks[site]
    hits = torch.zeros(look.heads, len(links))
    rows = look.weights()[:, [link.query for link in links]]
    for place, link in enumerate(links):
        strongest = rows[:, place, list(link.candidates)].argmax(-1).tolist()
        hits[:, place] = torch.tensor(
            [float(link.candidates[key] in link.targets) for key in strongest]
        )
    return hits


def summarize_relation(
    kind: str, language: str, tally: Tally, sites: Sequence[Site], *, causal: bool
) -> Relation:
    """The best heads of a relation, with the rates of chance and of the best fixed offset."""
    links = len(tally.token_links)
    rates = tally.hits / links
    chance = sum(one.chance for one in tally.token_links) / links
    offset, offset_rate = best_offset(tally.token_links)
    looks, finds = RELATIONS[kind][::-1] if causal and kind == "adjective" else RELATIONS[kind]
    best = rates.flatten().argsort(descending=True, stable=True)[:TOP].tolist()
    top = [
        relation_head(sites, tally, divmod(place, rates.shape[1]), chance, offset_rate)
        for place in best
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


def relation_head(
    sites: Sequence[Site], tally: Tally, place: tuple[int, int], chance: float, offset_rate: float
) -> RelationHead:
    """One head's hits with their corrected p-values."""
    layer, head = place
    links = len(tally.token_links)
    hits = int(tally.hits[layer, head])
    p_chance, p_offset = (
        min(1.0, tally.hits.numel() * binomial_tail(links, hits, rate))
        for rate in (chance, offset_rate)
    )
    return RelationHead(
        sites[layer][0], sites[layer][1], head, hits, hits / links, p_chance, p_offset
    )


def best_offset(links: Sequence[TokenLink]) -> tuple[int, float]:
    """The fixed offset with the highest hit rate, and that rate."""
    offsets: Mapping[int, float] = {
        by: sum(one.query + by in one.targets for one in links) / len(links)
        for by in range(-MAX_OFFSET, MAX_OFFSET + 1)
    }
    best = max(offsets, key=lambda by: (offsets[by], -abs(by)))
    return best, offsets[best]


def binomial_tail(count: int, hits: int, rate: float) -> float:
    """P(X ≥ hits) for X ~ Binomial(count, rate)."""
    return min(
        1.0,
        sum(
            math.comb(count, n) * rate**n * (1 - rate) ** (count - n)
            for n in range(hits, count + 1)
        ),
    )
