"""The sentences say what they claim to say, and their words are found among tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from sightline.errors import InputError
from sightline.lens.heads.links import (
    AHEAD,
    RELATIONS,
    Link,
    sentences,
    span_of,
    token_link,
    token_links,
    tokens_in,
)
from sightline.lens.trace.subject import Token, read_tokens
from sightline.text.tokenizer import Tokenizer

TIRED = "The animal didn't cross the street because it was too tired"


def tokens_of(text: str) -> list[Token]:
    """A token for each word."""
    result, at = list[Token](), 0
    for number, word in enumerate(text.split(" ")):
        result.append(Token(number, word, at, at + len(word)))
        at += len(word) + 1
    return result


def test_there_are_enough_of_them() -> None:
    links = Counter(
        (sentence.language, link.relation) for sentence in sentences() for link in sentence.links
    )
    assert all(links["en", relation] >= 12 for relation in RELATIONS)
    assert all(links["ja", relation] >= 8 for relation in ("pronoun", "verb", "adjective"))
    assert len(sentences("ja")) >= 8
    assert len({sentence.text for sentence in sentences()}) == len(sentences())
    assert len(sentences("en")) + len(sentences("ja")) == len(sentences())


def test_the_pair_that_only_its_last_word_tells_apart() -> None:
    result = {sentence.text: sentence for sentence in sentences("en")}
    for text, referent in ((TIRED, "animal"), (TIRED.replace("tired", "wide"), "street")):
        link = next(link for link in result[text].links if link.relation == "pronoun")
        assert (text[slice(*link.source)], text[slice(*link.target)]) == ("it", referent)


def test_adjectives_and_verbs_of_place_point_ahead_and_all_others_back() -> None:
    for sentence in sentences():
        for link in sentence.links:
            ahead = link.target > link.source
            assert ahead == (link.relation in AHEAD), (sentence.text, link)
            assert min(link.source, link.target)[0] > 0 or link.relation != "pronoun"


def test_nothing_pointed_at_is_the_first_word() -> None:
    for sentence in sentences():
        for link in sentence.links:
            wanted = link.source if link.relation == "adjective" else link.target
            assert wanted[0] > 0, sentence.text


def test_the_nearest_noun_that_agrees() -> None:
    """The baseline of the pronouns skips what does not agree, and takes the wrong noun of tired."""
    guesses = {
        (sentence.text, sentence.text[slice(*link.source)]): sentence.text[slice(*link.guess)]
        for sentence in sentences("en")
        for link in sentence.links
        if link.guess is not None
    }
    wide = TIRED.replace("tired", "wide")
    soldiers = "The queen praised the brave soldiers because they had saved the whole city"
    cat = "The cat that ate the fish was big"
    assert guesses[TIRED, "it"] == guesses[wide, "it"] == "street"
    assert (guesses[soldiers, "they"], guesses[soldiers, "praised"]) == ("soldiers", "queen")
    assert (guesses[cat, "was"], guesses[cat, "big"]) == ("fish", "fish")


def test_every_noun_that_is_pointed_at_has_a_number() -> None:
    for sentence in sentences("en"):
        for link in sentence.links:
            if link.relation in ("pronoun", "predicate", "adjective"):
                assert link.guess is not None, (sentence.text, link)


def test_no_fixed_distance_finds_most_links() -> None:
    """In words: a head of a fixed offset must not pass for one that understands."""
    for relation in RELATIONS:
        steps = Counter[int]()
        for sentence in sentences("en"):
            tokens = tokens_of(sentence.text)
            steps.update(
                tokens_in(tokens, link.target)[0] - tokens_in(tokens, link.source)[0]
                for link in sentence.links
                if link.relation == relation
            )
        assert steps.most_common(1)[0][1] <= 0.5 * steps.total()


def test_a_word_must_stand_once_or_say_which() -> None:
    assert span_of("it was it", "it#2") == (7, 9)
    assert span_of("the theatre", "the") == (0, 3)
    for word in ("it", "she"):
        with pytest.raises(InputError, match="expected once"):
            span_of("it was it", word)


def test_a_lookup_is_the_last_token_among_the_other_words() -> None:
    tokens = tokens_of("The big , old bear ran")
    link = Link("adjective", (4, 7), (14, 18))
    ahead = token_link(tokens, link, causal=False, unknown=None)
    assert ahead is not None
    assert (ahead.query, ahead.targets, ahead.candidates) == (1, {4}, (3, 4, 5))
    assert ahead.chance == pytest.approx(1 / 3)
    back = token_link(tokens, link, causal=True, unknown=None)
    assert back is not None
    assert (back.query, back.targets, back.candidates) == (4, {1}, (1, 3))


def test_a_noun_may_find_any_of_its_adjectives() -> None:
    tokens = tokens_of("The big , old bear ran")
    links = [Link("adjective", (4, 7), (14, 18)), Link("adjective", (10, 13), (14, 18))]
    result, skipped = token_links(tokens, links, causal=True, unknown=None)
    assert [(one.query, one.targets) for one in result] == [(4, {1, 3})]
    assert skipped == []
    assert len(token_links(tokens, links, causal=False, unknown=None)[0]) == 2


def test_words_the_tokenizer_cannot_show_are_skipped() -> None:
    tokens = tokens_of("The big , old bear ran")
    link = Link("adjective", (4, 7), (14, 18))
    assert token_links(tokens, [link], causal=False, unknown=4) == ([], [link])
    together = [tokens[0], Token(7, "big , old bear", 4, 18), tokens[5]]
    assert token_links(together, [link], causal=False, unknown=None) == ([], [link])


def test_japanese_by_letters() -> None:
    letters = sorted({letter for sentence in sentences("ja") for letter in sentence.text})
    tokenizer = Tokenizer.from_characters(letters)
    for sentence in sentences("ja"):
        tokens = read_tokens(tokenizer, tokenizer.encode(sentence.text), sentence.text)
        for link in sentence.links:
            assert (
                "".join(tokens[place].text for place in tokens_in(tokens, link.source))
                == sentence.text[slice(*link.source)]
            )
        result, skipped = token_links(
            tokens, sentence.links, causal=False, unknown=tokenizer.unknown
        )
        assert (len(result), skipped) == (len(sentence.links), [])


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(InputError, match="expected en or ja"):
        sentences("fr")
