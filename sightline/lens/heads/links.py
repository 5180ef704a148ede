"""The built-in sentences with known links, and where these links are among the tokens of a
model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from sightline.errors import InputError
from sightline.lens.heads.roles import is_punctuation
from sightline.lens.trace.subject import Token

RELATIONS = {
    "pronoun": ("pronoun", "referent"),
    "verb": ("verb", "subject"),
    "adjective": ("adjective", "noun"),
}
LANGUAGES = {"en": "English", "ja": "Japanese"}
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """`source` is the word that should look, `target` the one that it should find: characters of
    the sentence."""

    relation: str
    source: Span
    target: Span


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its links."""

    language: str
    text: str
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A link among tokens: in row `query`, of the keys in `candidates`, those in `targets` are
    right."""

    relation: str
    query: int
    targets: frozenset[int]
    candidates: tuple[int, ...]

    @property
    def chance(self) -> float:
        """The rate of a head that picks any candidate alike."""
        return len(self.targets) / len(self.candidates)


@cache
def sentences(language: str | None = None) -> tuple[Sentence, ...]:
    """All sentences, or those of a language."""
    if language is not None and language not in LANGUAGES:
        raise InputError(
            f"the language {language!r}",
            expected=" or ".join(LANGUAGES),
            fix=f"language={next(iter(LANGUAGES))!r}",
        )
    read = tomllib.loads(
        files("sightline.lens.heads").joinpath("relations.toml").read_text(encoding="utf-8")
    )["sentence"]
    return tuple(
        Sentence(entry["language"], entry["text"], links_of(entry))
        for entry in read
        if language is None or entry["language"] == language
    )


def links_of(entry: dict[str, object]) -> tuple[Link, ...]:
    text = str(entry["text"])
    found = list[Link]()
    for relation in RELATIONS:
        pairs = entry.get(relation, [])
        assert isinstance(pairs, list)
        found += [
            Link(relation, span_of(text, source), span_of(text, target)) for source, target in pairs
        ]
    return tuple(found)


def span_of(text: str, word: str) -> Span:
    """Where a word stands. It must stand there once, unless it says which: "it#2"."""
    word, _, which = word.partition("#")
    bound = r"\b" if word.isascii() else ""
    places = [found.span() for found in re.finditer(f"{bound}{re.escape(word)}{bound}", text)]
    if not places or (len(places) > 1 and not which):
        raise InputError(
            f"{word!r} stands {len(places)} times in {text!r}",
            expected="once",
            fix=f'"{word}#1" is the first',
        )
    return places[int(which or 1) - 1]


def tokens_in(tokens: Sequence[Token], span: Span) -> list[int]:
    """The tokens that hold some of these characters."""
    return [
        place
        for place, token in enumerate(tokens)
        if token.start is not None
        and token.end is not None
        and token.start < span[1]
        and token.end > span[0]
    ]


def lookups_in(
    tokens: Sequence[Token], links: Sequence[Link], *, causal: bool, unknown: int | None
) -> tuple[list[Lookup], list[Link]]:
    """The links among tokens, and those that cannot be shown. A noun that looks back for its
    adjective may find any one it has."""
    found = dict[tuple[str, int], Lookup]()
    skipped = list[Link]()
    for link in links:
        one = lookup(tokens, link, causal=causal, unknown=unknown)
        if one is None:
            skipped.append(link)
            continue
        before = found.get((one.relation, one.query))
        found[one.relation, one.query] = (
            one if before is None else replace(one, targets=one.targets | before.targets)
        )
    return list(found.values()), skipped


def lookup(
    tokens: Sequence[Token], link: Link, *, causal: bool, unknown: int | None
) -> Lookup | None:
    """A link as rows and keys: the last token of one word looks, among the words it can see except
    itself and a text's first token.

    In a causal model a link that points ahead is turned around. None where the tokenizer cannot
    write one of the words, or cuts the text so that both are in one token.
    """
    turned = causal and link.target > link.source
    asking, wanted = (link.target, link.source) if turned else (link.source, link.target)
    own = tokens_in(tokens, asking)
    targets = set(tokens_in(tokens, wanted))
    if not own or not targets or any(tokens[place].id == unknown for place in (*own, *targets)):
        return None
    seen = range(1, own[-1] if causal else len(tokens))
    words = [
        place
        for place in seen
        if tokens[place].start is not None and not is_punctuation(tokens[place].text)
    ]
    candidates = tuple(place for place in words if place not in own)
    right = targets & set(candidates)
    if not right or targets & set(own):
        return None
    return Lookup(link.relation, own[-1], frozenset(right), candidates)
