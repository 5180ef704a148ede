"""The field's language: phrases that a reader would have to translate do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRANSLATIONS = ROOT / "docs" / "enja.md"  # 鍵 is a door key there
SHIPPED = (
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/**/*.md",
    "sightline/**/*.py",
    "csrc/**/*.*",
    "tools/**/*.py",
    "bench/**/*.py",
)

PHRASES = {
    # quantities
    "at most so many": "at most N",
    "so many (new |other )?(tokens|rows|sequences|others)": "`count` tokens",
    "(nats|bytes|read|costs?) (for )?an? (token|character|letter)": "per token, per character",
    "(one|once) for (each|every)": "one per, once per",
    "(a|one) pass (for each|a token)": "one forward pass per token",
    "sentences? a line": "sentence per line",
    "whole numbers?": "integer",
    "as many as there are": "one per …",
    "likeliest": "most likely",
    "beginnings?": "start, prefix",
    # generation
    "in company": "in a batch",
    "(measured|works?|read|run|decoded|others?,) in turns": "alternately",
    "prompts? (is|are) read": "prefill",
    "prompt (itself|themselves) (is|are) not timed": "prefill is not timed",
    "gone on with": "continued",
    "goes? on (with|from)": "continues",
    "decoder alone": "decoder-only model",
    "encoder alone": "encoder-only model",
    "what it costs": "its cost",
    "one after the other": "one after another, sequentially",
    "foretold": "predicted",
    "is asked for again": "is recomputed",
    "rounds? otherwise": "differs by rounding",
    "quantised again": "requantized",
    "guessing changed": "prompt lookup changed",
    # people and speech
    "anybody": "any user, any caller",
    "nobody knows": "unknown",
    "whoever": "the caller, the user",
    "strangers?(['’]s)?": "untrusted",
    "askers?": "caller, parent process",
    "contestants? (that|who) could": "the contestants that failed",
    "told (not )?to": "configured to",
    "(is|are) told": "is called with, is set to",
    "unsaid": "by default",
    "said anew": "computed again",
    "anew": "again",
    "(does|do) not say": "does not record, lacks",
    "as (the )?(checkpoint|config|file|placement|family|header) says": "as configured in",
    "what \\w+ (has|says) (against|of)": "the error for, the manifest of",
    "says? what": "states, is the reason",
    "last words": "result",
    "must not be heard": "is silent",
    "dice": "random generator",
    # files and objects
    "lies in the": "is in the",
    "one and the same": "the same",
    "one very": "the same",
    "nothing else in": "no other file in",
    "gives? (the )?memory back": "frees the memory",
    "in parts of its own": "in its own parts",
    "(folder|process|environment|cache|limit|settings|columns) of (its|their) own": "its own",
    "for a while": "temporarily",
    "made once and kept": "cached",
    "written_out": "written in full",
    "as json has": "as a JSON object",
    "is no (list|text|result|datasheet|number|store|json|extension)": "is not a",
    "are no (list|text|texts|numbers|probabilities)": "are not",
    "no whole one": "not a complete one",
    # training
    "trainees?": "model in training",
    "crews?": "process group",
    "twins?": "copy",
    '(?<!")beware': "warning",
    "whatever becomes": "regardless of",
    "so-many-th": "every n-th",
    "a model that exists": "an existing model",
    "ready to learn": "ready for training",
    # Japanese
    "鍵": "キー",
    "決定できない": "判定保留",
}
"""A regular expression of words, in any case, also across lines: what to write instead."""


@cache
def texts() -> dict[str, str]:
    """Every shipped text by its path."""
    paths = [
        path
        for pattern in SHIPPED
        for path in sorted(ROOT.glob(pattern))
        if path.is_file() and path != TRANSLATIONS
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@cache
def names_of_tests() -> dict[str, str]:
    """The names of test files and test functions as words, one per line, by the file's path."""
    names = dict[str, str]()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        functions = re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
        names[str(path.relative_to(ROOT))] = "\n".join([path.stem, *functions]).replace("_", " ")
    return names


@cache
def expression(phrase: str) -> re.Pattern[str]:
    """The phrase in lower case; a space also matches a line's end and a comment's beginning."""
    wrapped = phrase.replace(" ", r"\s+(?:(?:#|//|\*|\|)\s*)?")
    return re.compile(rf"(?:{wrapped})(?![a-z])" if phrase.isascii() else wrapped)


def matches(phrase: str, text: str) -> Iterator[re.Match[str]]:
    """The phrase as whole words, in any case. What precedes a word is checked after the search: a
    lookbehind makes the search ten times slower."""
    text = text.lower()
    for match in expression(phrase).finditer(text):
        if not phrase.isascii() or not re.match("[a-z]", text[match.start() - 1 : match.start()]):
            yield match


def places(phrase: str, texts: dict[str, str]) -> Iterator[str]:
    """The occurrences of a phrase, as file:line."""
    for path, text in texts.items():
        for match in matches(phrase, text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}"


@pytest.mark.parametrize("phrase", PHRASES)
def test_old_phrases_are_gone(phrase: str) -> None:
    assert not list(places(phrase, texts())), f"write instead: {PHRASES[phrase]}"


@pytest.mark.parametrize("phrase", PHRASES)
def test_names_of_tests_have_no_old_phrases(phrase: str) -> None:
    assert not list(places(phrase, names_of_tests())), f"write instead: {PHRASES[phrase]}"


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("at most so many", "(At most so\n    # many tokens"),
        ("whole numbers?", "as whole number"),
        ("written_out", "def written_out("),
        ("twins?", "NATIVE_TWINS = 1"),
        ("鍵", "注意の鍵は"),
    ],
)
def test_phrases_are_found_across_lines_and_in_names(phrase: str, text: str) -> None:
    assert list(matches(phrase, text))


def test_phrases_are_found_only_as_words() -> None:
    assert not list(matches("crews?", "screws and crewed"))
    assert not list(matches("anew", "a newer one"))
    assert len(texts()) > 300


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("(nats|bytes|read|costs?) (for )?an? (token|character|letter)", "nats for a character"),
        ("goes? on (with|from)", "the next run goes on from there"),
        ("strangers?(['’]s)?", "a stranger's file"),
        ("is no (list|text|result|datasheet|number|store|json|extension)", "it is no\n  list"),
        ("as (the )?(checkpoint|config|file|placement|family|header) says", "as config says"),
        ("a model that exists", "A model\n# that exists"),
    ],
)
def test_an_old_phrase_fails(phrase: str, text: str) -> None:
    assert phrase in PHRASES
    assert list(places(phrase, {"page.md": f"First line\n{text}"})) == ["page.md:2"]
    assert list(places("test that is told", {"a.py": "test that is told"})) == ["a.py:1"]


def test_every_test_is_named_in_the_searched_names() -> None:
    names = names_of_tests()["tests/test_language.py"]
    assert "test language\n" in names
    assert "test old phrases are gone" in names
