"""Text while it is being written: whole characters, nothing of the prompt, no stop string; the
pieces joined are `decode`."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from sightline.errors import InputError
from sightline.text.engines.marian import MarianEngine
from sightline.text.engines.rust import RustEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.streaming import StopStrings, TextStream
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.sentencepiece_model import parse

CORPUS = [
    "the cat sat on the mat, didn't it?",
    "hello world 2024!",
    "日本語の猫です",
    "naïve café",
] * 10
SIGNS = st.sampled_from(
    [
        *"abc the.\n\t",
        "日",
        "猫",
        "é",
        "e\u0301",
        "😀",
        "👨‍👩‍👧",
        "\u200d",
        "\ufffd",
        "\x00",
        "\u202e",
        "▁",
        "क्षि",
    ]
)
TEXTS = st.lists(SIGNS, max_size=12).map("".join)
KINDS = (
    "bytes",
    "wordpiece",
    "sentencepiece",
    "sentencepiece json",
    "metaspace",
    "suffix",
    "no decoder",
    "marian",
    "characters",
)


def trained(model: object, trainer: object, pre: object, decoder: object) -> Tokenizer:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre
    if decoder is not None:
        made.decoder = decoder
    made.train_from_iterator(CORPUS, trainer=trainer)
    return Tokenizer(RustEngine(Path("test"), made))


def sentencepiece_bpe() -> bytes:
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=stream, vocab_size=300, model_type="bpe", byte_fallback=True,
        hard_vocab_limit=False, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    return stream.getvalue()


def sentencepiece_json() -> Tokenizer:
    """Llama 2's tokenizer.json: byte fallback by the Rust library, whose runs of bytes are whole or
    U+FFFD throughout."""
    vocabulary = parse(Path("test"), sentencepiece_bpe())
    ids = {piece: id for id, piece in enumerate(vocabulary.pieces)}
    made = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(RustEngine(Path("test"), made))


def marian() -> Tokenizer:
    pieces = [
        "</s>",
        "<unk>",
        *(
            piece
            for piece in parse(Path("test"), sentencepiece_bpe()).pieces
            if piece not in ("<s>", "</s>", "<unk>")
        ),
    ]
    ids = {piece: id for id, piece in enumerate([*pieces, "▁▁", "<pad>"])}
    return Tokenizer(MarianEngine(Path("test"), ids, sentencepiece_bpe(), sentencepiece_bpe()))


@cache
def tokenizer(kind: str) -> Tokenizer:
    if kind == "bytes":
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            show_progress=False,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        return trained(
            models.BPE(),
            trainer,
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
    if kind == "wordpiece":
        trainer = trainers.WordPieceTrainer(
            vocab_size=120, show_progress=False, special_tokens=["[UNK]", "[CLS]"]
        )
        return trained(
            models.WordPiece(unk_token="[UNK]"),
            trainer,
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
        )
    if kind == "metaspace":
        trainer = trainers.UnigramTrainer(
            vocab_size=80, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"
        )
        return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())
    if kind == "suffix":
        trainer = trainers.BpeTrainer(
            vocab_size=120, show_progress=False, special_tokens=["<unk>"], end_of_word_suffix="</w>"
        )
        return trained(
            models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
            trainer,
            pre_tokenizers.Whitespace(),
            decoders.BPEDecoder(),
        )
    if kind == "no decoder":
        trainer = trainers.WordLevelTrainer(
            vocab_size=40, show_progress=False, special_tokens=["<unk>"]
        )
        return trained(
            models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizers.Whitespace(), None
        )
    if kind == "sentencepiece":
        return Tokenizer(
            SentencePieceEngine(parse(Path("test"), sentencepiece_bpe()), sentencepiece_bpe())
        )
    if kind == "marian":
        return marian()
    return (
        sentencepiece_json()
        if kind == "sentencepiece json"
        else Tokenizer.from_characters("abc the日é\n")
    )


def streamed(
    tokenizer: Tokenizer,
    ids: Iterable[int],
    prompt: Iterable[int] = (),
    *,
    keep_space: bool = False,
) -> list[str]:
    stream = TextStream(tokenizer, list(prompt), keep_space=keep_space)
    return [*(stream.push(id) for id in ids), stream.finish()]


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
    ("stops", "said"),
    [
        ([""], "a stop string is empty; expected at least one character. Fix: leave it out"),
        (["a"] * 17, "17 stop strings; expected at most 16"),
        (["a" * 1001], "a stop string of 1,001 characters; expected at most 1,000"),
        ("END", 'the stop strings are no list of texts. Fix: stops=["\\n\\n"]'),
        ([1], 'the stop strings are no list of texts. Fix: stops=["\\n\\n"]'),
    ],
)
def test_stop_strings_that_are_refused(stops: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        StopStrings(stops)
    assert str(error.value) == said


def test_long_stop_strings_are_quick() -> None:
    watch, begin = StopStrings(["a" * 999 + str(place) for place in range(10)]), time.perf_counter()
    for _ in range(200):
        watch.push("a" * 50)
    assert time.perf_counter() - begin < 2
