"""What the demo shows of a real model, as data: a text with its doubts, the heads that know what
*it* is, and one page with all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import InputError
from sightline.generation.text import Generation
from sightline.lens.draw.page import (
    ProseSection,
    Section,
    TableSection,
    TokensSection,
    TraceSection,
    save_page,
    shown_text,
)
from sightline.lens.geometry.decompose import Geometry, summary
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace
from sightline.model import Model

STORY = "The lighthouse keeper opened the old wooden door and saw"
SENTENCE = "The animal didn't cross the street because it was too tired"
PRONOUN = "it"
REFERENT = "animal"
ENGLISH = "The cat sat on the mat."


@dataclass(frozen=True)
class Link:
    """A head, and how much of what it does not spend on the first token goes from one word to
    another."""

    layer: int
    head: int
    share: float
    strongest: bool


@dataclass(frozen=True)
class Seen:
    """The sentence: its trace, the heads that link the pronoun to what it stands for, the geometry
    of the first of them."""

    trace: Trace
    links: tuple[Link, ...]
    geometry: Geometry
    direction: float


def look(model: Model) -> Seen:
    """One pass over the sentence, and what is worth seeing of it."""
    trace = model.trace(SENTENCE)
    links = linking(trace, PRONOUN, REFERENT)
    shares = [layer.shares.direction for layer in summary(trace)]
    known = [share for share in shares if not math.isnan(share)]
    return Seen(
        trace, links, trace.geometry(links[0].layer, links[0].head), sum(known) / len(known)
    )


def linking(trace: Trace, word: str, target: str, *, count: int = 5) -> tuple[Link, ...]:
    """The heads in which `word` looks at `target` most, strongest first. The first token, where
    heads look that have nothing to say, is left out of the count; a head that looks at `target`
    more than at any other word comes before one that does not."""
    row = place_of(trace.tokens, word)
    column = place_of(trace.tokens, target)
    found: list[Link] = []
    for layer in range(trace.config.last.layers):
        for head, weights in enumerate(trace.weights(layer, rows=row).tolist()):
            others = weights[1:]
            share = weights[column] / max(sum(others), 1e-9)
            if sum(others) > 0.05:
                found.append(Link(layer, head, share, weights[column] >= max(others)))
    return tuple(sorted(found, key=lambda link: (link.strongest, link.share), reverse=True)[:count])


def place_of(tokens: Sequence[Token], word: str) -> int:
    """Where a word stands as one token."""
    for place, token in enumerate(tokens):
        if token.text.strip().lower() == word:
            return place
    raise InputError(
        f"no token {word!r} in the text",
        expected="the word as one token",
        fix="choose another word",
    )


def words_of(model: Model, found: Generation) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Each new token as text, its probability, and what else might have come."""
    assert model.tokenizer is not None
    spell = model.tokenizer.token
    rows = zip(found.tokens, found.logprobs, found.alternatives, strict=True)
    return [
        (spell(id), math.exp(logprob), [(spell(other), math.exp(log)) for other, log in others])
        for id, logprob, others in rows
    ]


def write_tour(
    file: Path, model: Model, story: Generation, seen: Seen, translated: Trace | None
) -> Path:
    """All of it as one page that needs nothing else."""
    best = seen.links[0]
    rows = [
        [
            f"layer {link.layer}, head {link.head}",
            f"{link.share:.0%}",
            "yes" if link.strongest else "no",
        ]
        for link in seen.links
    ]
    wrote = f"{model.name} goes on from “{STORY}”. Hover a word for what else might have come."
    looked = f"Layer {best.layer}, head {best.head}: “{PRONOUN}” looks at “{REFERENT}”."
    heads = f"Heads that link “{PRONOUN}” to “{REFERENT}”"
    sections: list[Section] = [
        TokensSection("What it writes", wrote, words_of(model, story)),
        TraceSection(
            seen.trace,
            "Where it looks",
            looked,
            "map",
            best.layer,
            best.head,
            place_of(seen.trace.tokens, PRONOUN),
        ),
        TableSection(
            heads,
            "The first token is left out of the count.",
            ("head", "share", "its strongest link"),
            rows,
        ),
        ProseSection("Direction and length", [seen.geometry.line(), about_direction(seen)]),
    ]
    if translated is not None:
        said = (
            f"{shown_text(translated)} Each row is a token of the translation, each column a token"
            " that was read."
        )
        sections.append(
            TraceSection(translated, "A translation and what it looked at", said, "alignment")
        )
    return save_page(sections, file, title="Sightline: a first look")


def about_direction(seen: Seen) -> str:
    """The whole model in a sentence."""
    return (
        f"Over all layers and heads, {seen.direction:.0%} of what tells keys apart in this sentence"
        " is direction, the rest length."
    )
