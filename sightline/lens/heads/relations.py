"""Which heads follow which relation: pronoun → referent, verb → subject, adjective → noun and
others, in sentences with annotated links.

    rate     how often the word with the largest weight is the correct one (sinks, punctuation and
             the word itself excluded)
    chance   the rate of a uniformly random choice among these words
    offset   the rate of the best fixed offset
    position the rate of the best fixed position, counted from the start
    nearest  the rate of the nearest noun that agrees in number and animacy, where that is a rule
    p        P(Binomial(links, chance) ≥ hits) · heads, at most 1: Bonferroni's correction for the
             number of heads

A head is significant for a relation if it beats chance, the best offset and the best position. In
a causal model, which cannot attend ahead, adjective → noun becomes noun → adjective.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.heads.links import (
    AHEAD,
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
    """One head's hit rate, and its p-values against chance, the best fixed offset and the best
    fixed position, corrected for the number of heads."""

    stack: str
    layer: int
    head: int
    hits: int
    rate: float
    p_chance: float
    p_offset: float
    p_position: float

    @property
    def p(self) -> float:
        """The largest of the p-values."""
        return max(self.p_chance, self.p_offset, self.p_position)

    @property
    def is_significant(self) -> bool:
        return self.p < SIGNIFICANCE


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation in one language. `mean` and `spread` (standard deviation) are of the rates of
    all heads; `skipped` counts links that the tokenizer cannot express. `nearest_rate` is that of
    the nearest noun that agrees, None where there is no such rule. `hits` has 1 where a head is
    right, `sentences` the number of each link's sentence."""

    relation: str
    language: str
    looks: str
    finds: str
    links: int
    skipped: int
    chance: float
    offset: int
    offset_rate: float
    position: int
    position_rate: float
    mean: float
    spread: float
    top: tuple[RelationHead, ...]
    rates: Float[Tensor, "layers heads"]
    nearest_rate: float | None
    hits: Float[Tensor, "layers heads links"]
    sentences: tuple[int, ...]
    guessed: tuple[bool | None, ...]

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
        per_link = ("hits", "sentences", "guessed")
        rows = [
            {
                **{name: value for name, value in asdict(relation).items() if name not in per_link},
                "rates": relation.rates.tolist(),
                "top": [{**asdict(head), "found": head.is_significant} for head in relation.top],
            }
            for relation in self.relations
        ]
        return {"model": self.name, "stack": self.stack, "causal": self.causal, "relations": rows}


@dataclass(slots=True)
class Tally:
    """The token links of one relation in one language, with the number of their sentence and the
    hits of every head."""

    token_links: list[TokenLink] = field(default_factory=list[TokenLink])
    sentences: list[int] = field(default_factory=list[int])
    hits: list[Float[Tensor, "layers heads"]] = field(default_factory=list[Tensor])
    skipped: int = 0


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
        add_hits(tallies, sentence, links, skipped, trace, sites, number=done)
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
    *,
    number: int,
) -> None:
    """Add the hits of one sentence to the tallies."""
    hits = torch.stack([hits_of(trace, site, links) for site in sites])  # [layers, heads, links]
    for relation in RELATIONS:
        tally = tallies.setdefault((sentence.language, relation), Tally())
        tally.skipped += sum(link.relation == relation for link in skipped)
        for place, link in enumerate(links):
            if link.relation == relation:
                tally.token_links.append(link)
                tally.sentences.append(number)
                tally.hits.append(hits[..., place])


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
    hits = torch.stack(tally.hits, -1)
    rates = hits.mean(-1)
    chance = sum(one.chance for one in tally.token_links) / links
    offset, offset_rate = best_offset(tally.token_links)
    position, position_rate = best_position(tally.token_links)
    looks, finds = RELATIONS[kind][::-1] if causal and kind in AHEAD else RELATIONS[kind]
    best = rates.flatten().argsort(descending=True, stable=True)[:TOP].tolist()
    top = [
        relation_head(
            sites, hits, divmod(place, rates.shape[1]), (chance, offset_rate, position_rate)
        )
        for place in best
    ]
    guessed = [one.guessed for one in tally.token_links]
    known = [right for right in guessed if right is not None]
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
        position,
        position_rate,
        float(rates.mean()),
        spread,
        tuple(top),
        rates,
        sum(known) / links if known else None,
        hits,
        tuple(tally.sentences),
        tuple(guessed),
    )


def relation_head(
    sites: Sequence[Site],
    hits: Float[Tensor, "layers heads links"],
    place: tuple[int, int],
    baselines: tuple[float, float, float],
) -> RelationHead:
    """One head's hits with their corrected p-values against the rates of the baselines."""
    layer, head = place
    heads, links = hits.shape[:2].numel(), hits.shape[2]
    right = int(hits[layer, head].sum())
    p_values = [min(1.0, heads * binomial_tail(links, right, rate)) for rate in baselines]
    return RelationHead(sites[layer][0], sites[layer][1], head, right, right / links, *p_values)


def best_offset(links: Sequence[TokenLink]) -> tuple[int, float]:
    """The fixed offset with the highest hit rate, and that rate."""
    offsets: Mapping[int, float] = {
        by: sum(one.query + by in one.targets for one in links) / len(links)
        for by in range(-MAX_OFFSET, MAX_OFFSET + 1)
    }
    best = max(offsets, key=lambda by: (offsets[by], -abs(by)))
    return best, offsets[best]


def best_position(links: Sequence[TokenLink]) -> tuple[int, float]:
    """The fixed position with the highest hit rate, and that rate."""
    positions = Counter(target for one in links for target in one.targets)
    best, count = max(positions.items(), key=lambda pair: (pair[1], -pair[0]))
    return best, count / len(links)


def binomial_tail(count: int, hits: int, rate: float) -> float:
    """P(X ≥ hits) for X ~ Binomial(count, rate)."""
    return min(
        1.0,
        sum(
            math.comb(count, n) * rate**n * (1 - rate) ** (count - n)
            for n in range(hits, count + 1)
        ),
    )
