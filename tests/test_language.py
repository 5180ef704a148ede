"""The field's language: phrases that a reader would have to translate do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = (
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/**/*.md",
    "sightline/**/*.py",
    "csrc/**/*.*",
)

PHRASES = {
    "nats for a token": "nats per token",
    "in company": "in a batch",
    "prompts? (is|are) read": "prefill",
    "anybody": "any user, any caller",
    "foretold": "predicted",
    "鍵": "キー",
    "決定できない": "判定保留",
}
"""A regular expression of words, in any case, also across lines: what to write instead."""


@cache
def texts() -> dict[str, str]:
    """Every shipped text by its path."""
    paths = [path for pattern in SHIPPED for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def expression(phrase: str) -> re.Pattern[str]:
    """The phrase as whole words; a space also matches a line's end and a comment's beginning."""
    wrapped = phrase.replace(" ", r"\s+(?:(?:#|//|\*|\|)\s*)?")
    words = wrapped if not phrase.isascii() else rf"(?<![a-z]){wrapped}(?![a-z])"
    return re.compile(words, re.IGNORECASE)


def places(phrase: str) -> Iterator[str]:
    """Where a phrase stands, as file:line."""
    pattern = expression(phrase)
    for path, text in texts().items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}"


@pytest.mark.parametrize("phrase", PHRASES)
def test_old_phrases_are_gone(phrase: str) -> None:
    assert not list(places(phrase)), f"write instead: {PHRASES[phrase]}"


def test_phrases_are_found_across_lines_and_only_as_words() -> None:
    assert expression("at most so many").search("(At most so\n    # many tokens")
    assert expression("whole numbers?").search("as whole number")
    assert expression("written_out").search("def written_out(")
    assert expression("twins?").search("NATIVE_TWINS = 1")
    assert not expression("crews?").search("screws and crewed")
    assert expression("鍵").search("注意の鍵は")
    assert len(texts()) > 300
