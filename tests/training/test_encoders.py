"""Encoders: a text encoded in chunks has the tokens of the whole text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer
from sightline.text.training.words import character_tokenizer
from sightline.training.data.chunk_encoders import (
    Encoder,
    bpe_encoder,
    character_encoder,
    cut,
    model_encoder,
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    words = [
        "".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(300)
    ] + ["日本語", "猫", "naïve", "7", "1984"]
    ends = [" ", " ", " ", " ", "  ", "\n", ". ", ", ", "!\n\n", " — "]
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text(
        "".join(draw.choice(words) + draw.choice(ends) for _ in range(4000)), encoding="utf-8"
    )
    return path


def metaspace(book: Path, folder: Path) -> Path:
    """A tokenizer that prepends a space to each text, like Llama 2's."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train([str(book)], trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def unigram(book: Path, folder: Path) -> Path:
    """A SentencePiece unigram model."""
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(book),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=300,
        minloglevel=2,
        max_sentence_length=100_000,
    )
    return folder


@pytest.fixture(scope="module", params=["bpe", "metaspace", "sentencepiece"])
def encoder(book: Path, request: pytest.FixtureRequest) -> Encoder:
    if request.param == "bpe":
        return model_encoder(
            str(save_tokenizer(train_tokenizer([book], vocab_size=400), book.parent / "bpe"))
        )
    return model_encoder(
        str(
            {"metaspace": metaspace, "sentencepiece": unigram}[request.param](
                book, book.parent / request.param
            )
        )
    )


@pytest.mark.parametrize("size", [50, 700])
def test_chunks_encode_like_the_whole_text(book: Path, encoder: Encoder, size: int) -> None:
    """encode(a ++ b) = encode(a) ++ encode(b), wherever `cut` cuts a text of words."""
    text = book.read_text(encoding="utf-8")[:8000]
    ids: list[int] = []
    rest, first = "", True
    for at in range(0, len(text), size):
        part, rest = cut(rest + text[at : at + size])
        ids += [int(id) for id in encoder.encode_chunk(part, first=first)]
        first = False
    ids += [int(id) for id in encoder.encode_chunk(rest, first=first)]
    assert ids == list(encoder.encode_chunk(text, first=True))


@given(text=st.text(max_size=80), keep=st.integers(0, 10))
def test_a_cut_loses_nothing(text: str, keep: int) -> None:
    part, rest = cut(text, keep)
    assert part + rest == text
    assert len(rest) >= min(keep, len(text))


def test_cuts_are_before_spaces() -> None:
    assert cut("one two, three") == ("one", " two, three")
    assert cut("one two three.  ") == ("one two", " three.  ")
    assert cut("one\ntwo.") == ("one", "\ntwo.")
    assert cut("......") == ("......", "")
    assert cut("......", keep=2) == ("....", "..")


@settings(max_examples=60, deadline=None)
@given(learned=st.text(min_size=1, max_size=40), text=st.text(max_size=40))
def test_the_character_table_matches_the_tokenizers_library(learned: str, text: str) -> None:
    """Also for characters outside the vocabulary."""
    ours, theirs = character_encoder([learned]), character_tokenizer([learned])
    assert (
        list(ours.encode_chunk(text, first=True))
        == theirs.encode(text, add_special_tokens=False).ids
    )
    assert ours.vocab_size == theirs.get_vocab_size()


def test_trained_encoders_write_tokenizer_files(book: Path, tmp_path: Path) -> None:
    for encoder in (
        bpe_encoder([book], 400),
        character_encoder([book.read_text(encoding="utf-8")]),
    ):
        folder = tmp_path / encoder.kind
        folder.mkdir()
        for name, data in encoder.files.items():
            (folder / name).write_bytes(data)
        opened = Tokenizer.from_folder(folder)
        assert opened is not None
        assert (opened.eos, opened.vocab_size) == (encoder.end, encoder.vocab_size)
        text = "the cat 猫 <|endoftext|>"
        assert opened.encode(text) == [int(id) for id in encoder.encode_chunk(text, first=True)]
        assert encoder.end not in opened.encode(text)
    assert bpe_encoder([book], 400).sha256 != bpe_encoder([book], 401).sha256


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no tokenizer; expected characters, bpe, or a folder"
    ):
        model_encoder(str(tmp_path))
