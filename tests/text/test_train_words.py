"""Tokenizers for a purpose: characters, and the words of two languages."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.words import (
    BEGIN,
    END,
    END_OF_TEXT,
    PAD,
    UNKNOWN,
    chain_columns,
    character_tokenizer,
    tokenizer_config,
    train_bilingual,
)

SENTENCES = [
    "the cat sat on the mat .",
    "the dog's mat isn't here , is it ?",
    "i have 3.5 cats and 1,000 dogs !",
    "猫 が マット の 上 に 座っ た 。",
    "犬 は ここ に い ない 。",
] * 20


def saved(folder: Path, tokenizer: object, config: bytes) -> Tokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))  # pyright: ignore
    (folder / "tokenizer_config.json").write_bytes(config)
    opened = Tokenizer.from_folder(folder)
    assert opened is not None
    return opened


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1, max_size=60))
def test_each_character_is_a_token(text: str) -> None:
    tokenizer = character_tokenizer([text[:5], text[5:]])
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    order = sorted(set(text) - {UNKNOWN})
    assert [tokenizer.token_to_id(sign) for sign in order] == list(range(2, len(order) + 2))


def test_characters_that_never_occurred(tmp_path: Path) -> None:
    tokenizer = saved(
        tmp_path,
        character_tokenizer(["abc\n"]),
        tokenizer_config(END_OF_TEXT, END_OF_TEXT, unknown=UNKNOWN),
    )
    assert tokenizer.encode("aïb") == [3, 1, 4]
    assert tokenizer.encode(END_OF_TEXT)[:2] == [1, 1]
    assert (tokenizer.eos, tokenizer.bos, tokenizer.unknown, tokenizer.pad) == (0, 0, 1, None)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode("cab\n") == tokenizer.encode("cab\n") == [5, 3, 4, 2]
    assert theirs.eos_token_id == 0
    with pytest.raises(InputError, match="no character to learn"):
        character_tokenizer([])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    made = train_bilingual(chain_columns(SENTENCES[:3], SENTENCES[3:]), vocab_size=400, join=True)
    return saved(tmp_path_factory.mktemp("both"), made, tokenizer_config(BEGIN, END, PAD))


def test_english_is_read_as_people_write_it(both: Tokenizer) -> None:
    """Capitals, and punctuation that touches its word, are what the corpus has."""
    assert both.encode("The cat sat on the mat.") == both.encode("the cat sat on the mat .")
    assert both.encode("The dog’s mat.") == both.encode("the dog 's mat .")
    assert both.encode("3.5 cats") != both.encode("3 . 5 cats")


def test_japanese_is_written_without_spaces(both: Tokenizer) -> None:
    assert (
        both.decode(both.encode("猫 が マット の 上 に 座っ た 。")) == "猫がマットの上に座った。"
    )


@settings(max_examples=80, deadline=None)
@given(
    st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=20
    )
)
def test_nothing_is_unknown(text: str) -> None:
    """What no piece writes is written in bytes."""
    tokenizer = train_bilingual(SENTENCES, vocab_size=400, lower=False, join=True)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decoded = tokenizer.decode(ids)
    normal = tokenizer.normalizer.normalize_str(text)  # pyright: ignore
    assert decoded == normal.replace("▁", "")


def test_the_end_is_put_behind(both: Tokenizer) -> None:
    assert both.encode("the cat", special=True) == [*both.encode("the cat"), both.eos]


def test_too_little_text() -> None:
    with pytest.raises(InputError, match="almost no text to learn a vocabulary from"):
        train_bilingual(["a b"], vocab_size=300)


def test_the_configuration() -> None:
    assert b"pad_token" not in tokenizer_config("<s>", "</s>")
    assert b'"additional_special_tokens": [' in tokenizer_config("<s>", "</s>", more=["<x>"])
