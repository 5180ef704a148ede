"""Text while it is being written: whole characters, nothing of the prompt, no stop string; the
pieces joined are `decode`."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.text.streaming import StopStrings
from tests.support.stream_tokenizers import (
    KINDS,
    TEXTS,
    streamed,
    tokenizer,
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_joined_are_decode(kind: str) -> None:
    made = tokenizer(kind)

    @settings(max_examples=150, deadline=None)
    @given(
        text=TEXTS, ids=st.lists(st.integers(-1, made.vocab_size + 1), max_size=14), prompt=TEXTS
    )
    def check(text: str, ids: list[int], prompt: str) -> None:
        for new in (ids, made.encode(text), [*made.encode(text), *ids]):
            assert "".join(streamed(made, new, made.encode(prompt))) == made.decode(new)

    check()


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece json"])
def test_no_half_characters(kind: str) -> None:
    made = tokenizer(kind)
    text = "a 😀 b 👨‍👩‍👧 猫é"
    pieces = streamed(made, made.encode(text))
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 4
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece json"])
def test_half_a_character_at_the_end_is_said_at_the_end(kind: str) -> None:
    made = tokenizer(kind)
    *pieces, last = streamed(made, made.encode("a😀")[:-1])
    assert "".join(pieces) == "a"
    assert set(last) == {"\ufffd"}


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece json"])
@pytest.mark.parametrize("keep_space", [True, False])
def test_a_prompt_that_ends_within_a_character_is_not_shown(kind: str, keep_space: bool) -> None:
    made = tokenizer(kind)
    ids = made.encode("the secret 😀")
    written = "".join(streamed(made, [ids[-1], *made.encode("b")], ids[:-1], keep_space=keep_space))
    assert written.replace("\ufffd", "").strip() == "b"


@pytest.mark.parametrize(
    "kind", ["bytes", "sentencepiece", "sentencepiece json", "wordpiece", "metaspace"]
)
def test_the_space_after_the_prompt_can_be_kept(kind: str) -> None:
    made = tokenizer(kind)
    ids = made.encode("the cat sat")
    cut = next(place for place, (begin, _) in enumerate(made.offsets("the cat sat")) if begin >= 3)
    assert (
        made.decode(ids[:cut]) + "".join(streamed(made, ids[cut:], ids[:cut], keep_space=True))
        == "the cat sat"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_costs_the_same(kind: str) -> None:
    made = tokenizer(kind)
    ids = (
        made.encode("the cat sat\n") * 50
        + made.encode("a 😀" if kind != "characters" else "a") * 200
    )
    for many in (
        ids,
        [made.encode("a the")[0]] * 4000,
        made.encode("\n" if kind != "characters" else "a")[-1:] * 4000,
    ):
        begin = time.perf_counter()
        assert "".join(streamed(made, many)) == made.decode(many)
        assert (time.perf_counter() - begin) / max(len(many), 1) < 0.0005


def test_control_tokens_write_nothing() -> None:
    made = tokenizer("bytes")
    end = made.id_of("<|end|>")
    assert end is not None
    assert "".join(streamed(made, [*made.encode("a"), end, *made.encode("b"), 10**6])) == "ab"


def shown(stops: list[str], pieces: Iterable[str]) -> tuple[str, bool]:
    watch, text, met = StopStrings(stops), "", False
    for piece in pieces:
        new, met = watch.push(piece)
        text += new
    return text + watch.finish(), met


@pytest.mark.parametrize(
    ("stops", "text", "left"),
    [
        (["END"], "hello END more", "hello "),
        (["END"], "hello EN", "hello EN"),
        (["aab"], "aaab", "a"),
        (["abab"], "abaabab", "aba"),
        (["abc", "b"], "abc", "a"),
        (["ab", "b", "xab"], "xxab", "x"),
        (["😀👧"], "猫😀😀👧x", "猫😀"),
        (["é"], "cafe\u0301 café", "cafe\u0301 caf"),
        (["all of it"], "all of it", ""),
        (["\n\n"], "a\nb\n\n\nc", "a\nb"),
        ([], "anything", "anything"),
    ],
)
def test_stop_strings(stops: list[str], text: str, left: str) -> None:
    met = left != text
    for size in (1, 2, 3, len(text)):
        assert shown(stops, [text[at : at + size] for at in range(0, len(text), size)]) == (
            left,
            met,
        )


@settings(max_examples=400, deadline=None)
@given(
    stops=st.lists(st.text("ab日", min_size=1, max_size=4), max_size=5),
    pieces=st.lists(st.text("ab日", max_size=4), max_size=10),
)
def test_no_stop_string_is_ever_shown(stops: list[str], pieces: list[str]) -> None:
    whole, watch, sofar = "".join(pieces), StopStrings(stops), ""
    ends = [(whole.find(stop) + len(stop), -len(stop)) for stop in stops if stop in whole]
    expected = whole if not ends else whole[: min(ends)[0] + min(ends)[1]]
    for piece in pieces:
        new, met = watch.push(piece)
        sofar += new
        assert expected.startswith(sofar)
    assert sofar + watch.finish() == expected
    assert bool(ends) == (bool(pieces) and met)
    assert not any(stop in expected for stop in stops)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([""], "a stop string is empty; expected at least one character. Fix: leave it out"),
        (["a"] * 17, "17 stop strings; expected at most 16"),
        (["a" * 1001], "a stop string of 1,001 characters; expected at most 1,000"),
        ("END", 'the stop strings are not a list of texts. Fix: stops=["\\n\\n"]'),
        ([1], 'the stop strings are not a list of texts. Fix: stops=["\\n\\n"]'),
    ],
)
def test_stop_strings_that_are_refused(stops: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        StopStrings(stops)
    assert str(error.value) == message


def test_long_stop_strings_are_quick() -> None:
    watch, begin = StopStrings(["a" * 999 + str(place) for place in range(10)]), time.perf_counter()
    for _ in range(200):
        watch.push("a" * 50)
    assert time.perf_counter() - begin < 2
