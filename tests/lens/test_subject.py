"""Tokens as a reader finds them in the text: offsets, whole characters, special ones by name, and
none without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.lens.trace import subject
from sightline.lens.trace.subject import Token, read_tokens
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer
from sightline.text.vocabulary.vocabulary import CONTROL, NORMAL, Vocabulary
from tests.tasks.tiny_folders import word_pieces

TEXT = "the cat sat on the mat and the dog sat on the log; " * 40


@pytest.fixture(scope="module")
def by_bytes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level and trained on English only, so that everything else falls into bytes."""
    place = tmp_path_factory.mktemp("bytes")
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    result = Tokenizer.from_folder(
        save_tokenizer(train_tokenizer([place / "text.txt"], vocab_size=280), place / "tokenizer")
    )
    assert result is not None
    return result


def test_offsets_point_into_the_text(by_bytes: Tokenizer) -> None:
    text = "the cat sat; 猫 on 🙂!"
    tokens = read_tokens(by_bytes, by_bytes.encode(text), text, source=True)
    assert tokens[0] == Token(by_bytes.encode("the")[0], "the", 0, 3)
    assert {text[token.start : token.end] for token in tokens} >= {"the", "猫", "🙂"}
    for token in tokens:
        assert token.text.strip() == text[token.start : token.end].strip()


def test_a_character_split_over_bytes_is_shown_whole_by_each(by_bytes: Tokenizer) -> None:
    ids = by_bytes.encode("猫🙂")
    assert len(ids) > 2
    assert [token.text for token in read_tokens(by_bytes, ids)] == ["猫"] * 3 + ["🙂"] * 4
    assert [token.id for token in read_tokens(by_bytes, ids)] == ids


def test_bytes_that_are_no_character_stay_bytes(by_bytes: Tokenizer) -> None:
    ids = by_bytes.encode("猫")
    assert [token.text for token in read_tokens(by_bytes, ids[:2])] == ["\\xe7", "\\x8c"]
    cut = read_tokens(by_bytes, [*ids[:2], *by_bytes.encode("the"), *ids])
    assert [token.text for token in cut] == ["\\xe7", "\\x8c", "the", *["猫"] * 3]
    typed = r"a \x41"
    assert "".join(token.text for token in read_tokens(by_bytes, by_bytes.encode(typed))) == typed


def test_a_long_run_of_bytes_takes_no_square_of_time(
    by_bytes: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte, asked = by_bytes.encode("猫")[1], list[int]()
    decode = by_bytes.decode
    monkeypatch.setattr(by_bytes, "decode", lambda ids: asked.append(len(ids)) or decode(ids))
    assert {token.text for token in read_tokens(by_bytes, [byte] * 500)} == {"\\x8c"}
    assert max(asked) <= subject.MAX_BYTE_TOKENS


def test_special_tokens_are_named_and_stand_nowhere(tmp_path: Path) -> None:
    word_pieces(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None
    text = "The cat, sitting."
    tokens = read_tokens(tokenizer, tokenizer.encode(text, special=True), text, source=True)
    assert tokens[0] == Token(2, "[CLS]", None, None)
    assert tokens[-1] == Token(3, "[SEP]", None, None)
    assert tokens[1] == Token(tokenizer.encode("the")[0], "the", 0, 3)
    inner = [text[token.start : token.end] for token in tokens[1:-1]]
    assert "".join(inner) == text.replace(" ", "")


def test_ids_that_are_not_the_texts_have_no_place(by_bytes: Tokenizer) -> None:
    tokens = read_tokens(by_bytes, by_bytes.encode("the dog"), "the cat")
    assert {token.start for token in tokens} == {None}
    inside = read_tokens(
        by_bytes, [*by_bytes.encode("on "), *by_bytes.encode("the cat")], "the cat"
    )
    assert next(token.start for token in inside if token.start is not None) == 0


def test_an_id_past_the_tokenizer_and_no_tokenizer(by_bytes: Tokenizer) -> None:
    assert read_tokens(by_bytes, [9999])[0].text == "<9999>"
    assert read_tokens(None, [3, 5]) == (Token(3, "<3>"), Token(5, "<5>"))
    assert read_tokens(by_bytes, [], "") == ()


def test_what_is_read_and_what_is_written_may_be_spelt_apart() -> None:
    """Letters to sounds: id 1 is read as "a" and written as "ア"."""
    pieces, written = ["</s>", "a", "b"], ["</s>", "ア", "ブ"]
    vocabulary = Vocabulary(
        where=Path("x"),
        kind="characters",
        pieces=pieces,
        written=written,
        kinds=[CONTROL, NORMAL, NORMAL],
    )
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    assert [token.text for token in read_tokens(tokenizer, [1, 2], "ab", source=True)] == ["a", "b"]
    assert [token.text for token in read_tokens(tokenizer, [1, 2])] == ["ア", "ブ"]
