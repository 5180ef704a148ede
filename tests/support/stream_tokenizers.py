"""A tokenizer of every kind, texts that are hard to stream, and how they are streamed."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import sentencepiece
import tokenizers
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from sightline.text.engines.marian import MarianEngine
from sightline.text.engines.rust import RustEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.streaming import TextStream
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.sentencepiece_model import parse_sentencepiece

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
    vocabulary = parse_sentencepiece(Path("test"), sentencepiece_bpe())
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
            for piece in parse_sentencepiece(Path("test"), sentencepiece_bpe()).pieces
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
            SentencePieceEngine(
                parse_sentencepiece(Path("test"), sentencepiece_bpe()), sentencepiece_bpe()
            )
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
