"""A baseline without a model: the nearest noun that agrees.

pronoun                        the nearest noun before it that agrees in number and animacy
verb                           the nearest noun or pronoun before it that agrees in number,
                               where the verb shows it
predicate adjective            the nearest noun before it
adjective                      the nearest noun after it
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Span = tuple[int, int]
Kinds = Mapping[str, frozenset[str]]  # noun → {"singular thing"}
SINGULAR = frozenset({"singular person", "singular animal", "singular thing"})
PLURAL = frozenset({"plural person", "plural animal", "plural thing"})
PRONOUNS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("it", "its"), frozenset({"singular animal", "singular thing"})),
    **dict.fromkeys(("he", "him", "his", "she", "her"), frozenset({"singular person"})),
    **dict.fromkeys(("they", "them", "their"), PLURAL),
}
SUBJECT_PRONOUNS: Kinds = {
    **dict.fromkeys(("it", "he", "she", "someone"), SINGULAR),
    "they": PLURAL,
}
VERBS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("are", "were", "belong", "eat"), PLURAL),
    **dict.fromkeys(
        ("is", "was", "watches", "plays", "drives", "stays", "lives", "studies"), SINGULAR
    ),
}


def noun_kinds(table: Mapping[str, str]) -> Kinds:
    """`{"plural thing": "books keys"}` → each noun with its kind."""
    return {noun: frozenset({kind}) for kind, nouns in table.items() for noun in nouns.split()}


def nearest_agreeing(relation: str, text: str, source: Span, nouns: Kinds) -> Span | None:
    """The word that the baseline chooses for `source`; None where it has no rule or no noun."""
    word = text[slice(*source)]
    if relation == "pronoun":
        return nearest(text, source, nouns, PRONOUNS.get(word, SINGULAR | PLURAL))
    if relation == "verb":
        subjects = {**nouns, **SUBJECT_PRONOUNS}
        return nearest(text, source, subjects, VERBS.get(word, SINGULAR | PLURAL))
    if relation == "predicate":
        return nearest(text, source, nouns, SINGULAR | PLURAL)
    if relation == "adjective":
        return nearest(text, source, nouns, SINGULAR | PLURAL, ahead=True)
    return None


def nearest(
    text: str, source: Span, words: Kinds, wanted: frozenset[str], *, ahead: bool = False
) -> Span | None:
    """The nearest of the words, before or after `source`, that is of a wanted kind."""
    spans = [match.span() for match in re.finditer(r"[A-Za-z]+", text)]
    fits = [span for span in spans if words.get(text[slice(*span)], frozenset()) & wanted]
    if ahead:
        return min((span for span in fits if span[0] >= source[1]), default=None)
    return max((span for span in fits if span[1] <= source[0]), default=None)
