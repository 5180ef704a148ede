"""The built-in sentences with annotated links, and the links as token positions of a model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from sightline.errors import InputError
from sightline.lens.heads.agreement import Kinds, nearest_agreeing, noun_kinds
from sightline.lens.heads.roles import is_punctuation
from sightline.lens.trace.subject import Token

RELATIONS = {
    "pronoun": ("pronoun", "referent"),
    "verb": ("verb", "subject"),
    "adjective": ("adjective", "noun"),
    "predicate": ("predicate adjective", "subject"),
    "determiner": ("noun", "determiner"),
    "preposition": ("noun", "preposition"),
    "place": ("verb", "place"),
    "synonym": ("word", "synonym"),
}
AHEAD = ("adjective", "place")  # these point ahead; in a causal model they are reversed
LANGUAGES = {"en": "English", "ja": "Japanese"}
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a sentence, as character spans: `source` is the querying word, `target` the word it
    should attend to, `guess` the nearest noun that agrees (None where the baseline has no rule)."""

    relation: str
    source: Span
    target: Span
    guess: Span | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its annotated links."""

    language: str
    text: str
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class TokenLink:
    """A link as token positions: in row `query`, the keys `targets` among `candidates` are
    correct. `guessed`: whether the nearest noun that agrees is; None without such a rule."""

    relation: str
    query: int
    targets: frozenset[int]
    candidates: tuple[int, ...]
    guessed: bool | None = None

    @property
    def chance(self) -> float:
        """The hit rate of a uniformly random candidate."""
        return len(self.targets) / len(self.candidates)


@cache
def sentences(language: str | None = None) -> tuple[Sentence, ...]:
    """All sentences, or those of one language."""
    if language is not None and language not in LANGUAGES:
        raise InputError(
            f"the language {language!r}",
            expected=" or ".join(LANGUAGES),
            fix=f"language={next(iter(LANGUAGES))!r}",
        )
    tables = tomllib.loads(
        files("sightline.lens.heads").joinpath("relations.toml").read_text(encoding="utf-8")
    )
    nouns = noun_kinds(tables["nouns"])
    return tuple(
        Sentence(entry["language"], entry["text"], links_of(entry, nouns))
        for entry in tables["sentence"]
        if language is None or entry["language"] == language
    )


def links_of(entry: dict[str, object], nouns: Kinds) -> tuple[Link, ...]:
    text = str(entry["text"])
    links = list[Link]()
    for relation in RELATIONS:
        pairs = entry.get(relation, [])
        assert isinstance(pairs, list)
        for word, other in pairs:
            source = span_of(text, word)
            english = entry["language"] == "en"
            guess = nearest_agreeing(relation, text, source, nouns) if english else None
            links.append(Link(relation, source, span_of(text, other), guess))
    return tuple(links)


def span_of(text: str, word: str) -> Span:
    """The character span of a word that occurs once, or of its n-th occurrence: "it#2"."""
    word, _, which = word.partition("#")
    bound = r"\b" if word.isascii() else ""
    places = [match.span() for match in re.finditer(f"{bound}{re.escape(word)}{bound}", text)]
    if not places or (len(places) > 1 and not which):
        raise InputError(
            f"{word!r} occurs {len(places)} times in {text!r}",
            expected="once",
            fix=f'"{word}#1" is the first',
        )
    return places[int(which or 1) - 1]


def tokens_in(tokens: Sequence[Token], span: Span) -> list[int]:
    """The tokens that overlap a span of characters."""
    return [
        place
        for place, token in enumerate(tokens)
        if token.start is not None
        and token.end is not None
        and token.start < span[1]
        and token.end > span[0]
    ]


def token_links(
    tokens: Sequence[Token], links: Sequence[Link], *, causal: bool, unknown: int | None
) -> tuple[list[TokenLink], list[Link]]:
    """The links as token positions, and those that cannot be expressed. A noun with several
    adjectives may attend to any of them."""
    links_by_row = dict[tuple[str, int], TokenLink]()
    skipped = list[Link]()
    for link in links:
        link_tokens = token_link(tokens, link, causal=causal, unknown=unknown)
        if link_tokens is None:
            skipped.append(link)
            continue
        before = links_by_row.get((link_tokens.relation, link_tokens.query))
        links_by_row[link_tokens.relation, link_tokens.query] = (
            link_tokens
            if before is None
            else replace(link_tokens, targets=link_tokens.targets | before.targets)
        )
    return list(links_by_row.values()), skipped


def token_link(
    tokens: Sequence[Token], link: Link, *, causal: bool, unknown: int | None
) -> TokenLink | None:
    """A link as a row and keys: the last token of one word queries the words it can see, except
    itself and the first token.

    In a causal model a link that points ahead is reversed. None where the tokenizer has no tokens
    for one of the words, or both words share a token.
    """
    reversed_link = causal and link.target > link.source
    query_span, target_span = (
        (link.target, link.source) if reversed_link else (link.source, link.target)
    )
    own = tokens_in(tokens, query_span)
    targets = set(tokens_in(tokens, target_span))
    if not own or not targets or any(tokens[place].id == unknown for place in (*own, *targets)):
        return None
    visible = range(1, own[-1] if causal else len(tokens))
    words = [
        place
        for place in visible
        if tokens[place].start is not None and not is_punctuation(tokens[place].text)
    ]
    candidates = tuple(place for place in words if place not in own)
    correct = targets & set(candidates)
    if not correct or targets & set(own):
        return None
    has_rule = link.guess is not None and not reversed_link
    guessed = link.guess == link.target if has_rule else None
    return TokenLink(link.relation, own[-1], frozenset(correct), candidates, guessed)
