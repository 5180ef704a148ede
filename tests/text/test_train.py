"""Training a tokenizer: what comes out opens everywhere and loses nothing; what goes in wrong is
one line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import (
    READ,
    SPECIAL,
    Kind,
    TextParts,
    save_tokenizer,
    smallest_vocabulary,
    train_tokenizer,
)

KINDS: tuple[Kind, ...] = ("bpe", "unigram")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some ten thousand words, a few hundred different ones."""
    draw = random.Random(0)
    words = [
        "".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(400)
    ] + ["日本語", "猫", "naïve"]
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text(" ".join(draw.choices(words, k=10_000)), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=KINDS)
def folder(book: Path, request: pytest.FixtureRequest) -> Path:
    return save_tokenizer(
        train_tokenizer([book], vocab_size=500, kind=request.param), book.parent / request.param
    )


def test_ours_and_theirs_open_it(folder: Path) -> None:
    ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours is not None
    assert ours.vocab_size == len(theirs) == 500
    assert (
        (ours.bos, ours.eos, ours.pad)
        == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
        == (0, 0, 1)
    )
    assert [ours.id_of(piece) for piece in SPECIAL] == [0, 1, 2, 3]
    for text in ("abc 日本 😀\n\n x", "<|im_start|>user"):
        assert ours.encode(text, control=True) == theirs.encode(text, add_special_tokens=False)
    assert 2 not in ours.encode("<|im_start|>user")


def test_nothing_is_lost(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None

    @settings(
        max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(st.text(max_size=40))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_words_become_tokens(book: Path, folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    text = book.read_text(encoding="utf-8")[:2000]
    assert len(tokenizer.encode(text)) < 0.7 * len(text)


def test_files_are_read_in_parts(tmp_path: Path) -> None:
    spaced, solid = tmp_path / "spaced.txt", tmp_path / "solid.txt"
    spaced.write_text("\ufeff" + "日本語 " * 30_000, encoding="utf-8")
    solid.write_text("é" * 150_000, encoding="utf-8")
    reported: list[tuple[str, int, int]] = []
    parts = list(TextParts([spaced, solid], lambda *state: reported.append(state)))
    assert "".join(parts) == "日本語 " * 30_000 + "é" * 150_000
    assert max(map(len, parts)) <= READ
    assert reported[-1] == ("reading", reported[-1][2], 600_003)
    assert [done for _, done, _ in reported] == sorted(done for _, done, _ in reported)


@pytest.mark.parametrize("kind", KINDS)
def test_more_tokens_than_there_are(book: Path, kind: Kind) -> None:
    with pytest.raises(
        InputError,
        match=r"the texts have only [\d,]+ tokens to learn, 90,000 were requested.*Fix: --vocab \d+$",
    ) as error:
        train_tokenizer([book], vocab_size=90_000, kind=kind)
    possible = int(str(error.value).split()[-1])
    assert train_tokenizer([book], vocab_size=possible, kind=kind).get_vocab_size() == possible


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest(book: Path, kind: Kind) -> None:
    low = smallest_vocabulary(kind)
    assert train_tokenizer([book], vocab_size=low, kind=kind).get_vocab_size() == low
    for size in (low - 1, 0, -5, 10**7):
        with pytest.raises(InputError, match=f"a vocabulary of .*; expected {low} "):
            train_tokenizer([book], vocab_size=size, kind=kind)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory); expected a text file"),
        (b"", "is empty; expected a text file"),
        (b"text\0\1\2", "is not text in UTF-8"),
        ("text".encode("utf-16"), "is not text in UTF-8"),
        (b"abc \xff def", "is not text in UTF-8"),
        (b"cut \xe6\x97", "is not text in UTF-8"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_refused(
    tmp_path: Path, book: Path, content: bytes | None, message: str, kind: Kind
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        train_tokenizer([book, path], vocab_size=300, kind=kind)
    assert str(error.value).startswith(f"{path}: {message}")


def test_a_folder_and_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        train_tokenizer([tmp_path])
    with pytest.raises(InputError, match="no text to learn from"):
        train_tokenizer([])


@pytest.mark.parametrize("kind", KINDS)
def test_very_little_text(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a")
    with pytest.raises(InputError) as error:
        train_tokenizer([path], vocab_size=500, kind=kind)
    assert "\n" not in str(error.value)


def test_another_tokenizer_is_not_overwritten(book: Path, tmp_path: Path) -> None:
    made = train_tokenizer([book], vocab_size=300)
    save_tokenizer(made, tmp_path)
    assert (
        json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    with pytest.raises(InputError, match=r"has a tokenizer.json already"):
        save_tokenizer(made, tmp_path)
    with pytest.raises(InputError, match="is a file"):
        save_tokenizer(made, book)
    with pytest.raises(InputError, match="cannot be written"):
        save_tokenizer(made, book / "below")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_uncased_gives_a_word_the_same_tokens_everywhere(
    book: Path, tmp_path: Path, kind: Any
) -> None:
    cased = train_tokenizer([book], vocab_size=300, kind=kind)
    assert cased.encode("The").ids != cased.encode("the").ids
    uncased = train_tokenizer([book], vocab_size=300, kind=kind, uncased=True)
    opened = Tokenizer.from_folder(save_tokenizer(uncased, tmp_path))
    assert opened is not None
    first, other = opened.encode("The the")[: len(opened.encode("the"))], opened.encode("tHe")
    assert first == other
    assert opened.encode("THE") * 2 == opened.encode("the The")
    uncased.add_special_tokens(["[MASK]"])
    assert uncased.encode("[MASK].").tokens[1:] == ["."]
