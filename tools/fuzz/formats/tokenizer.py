"""Tokenizer files. The references are the tokenizers and sentencepiece libraries."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from sightline.text.tokenizer import Tokenizer
from tools.fuzz.formats.samples import TEMPLATE, byte_pieces, unigram, word_pieces
from tools.fuzz.formats.tensors import reference_of
from tools.fuzz.outcome import require

TEXTS = ["the cat sat.", "", "a\n b  c\t", "猫 🙂 zebra 12345", "ééé", "A" * 300]
CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "chat_template": TEMPLATE,
    "tokenizer_class": "GPT2Tokenizer",
}


def make(place: Path) -> None:
    for name, tokenizer in (
        ("bytes", byte_pieces()),
        ("words", word_pieces()),
        ("unigram", unigram()),
    ):
        (place / name).mkdir()
        tokenizer.save(str(place / name / "tokenizer.json"), pretty=False)
        (place / name / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    make_gpt2(place / "gpt2")
    (place / "bert").mkdir()
    pieces = sorted(word_pieces().get_vocab().items(), key=lambda item: item[1])
    (place / "bert" / "vocab.txt").write_text("\n".join(piece for piece, _ in pieces) + "\n")
    (place / "characters").mkdir()
    (place / "characters" / "vocab.json").write_text(
        json.dumps({piece: id for id, piece in enumerate(["<pad>", "<unk>", *"abc def"])})
    )
    (place / "characters" / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "<pad>", "unk_token": "<unk>"})
    )
    make_sentencepiece(place / "sentencepiece")


def make_gpt2(place: Path) -> None:
    place.mkdir()
    spelled = json.loads(byte_pieces().to_str())["model"]
    (place / "vocab.json").write_text(json.dumps(spelled["vocab"]))
    (place / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in spelled["merges"]) + "\n"
    )
    (place / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    (place / "added_tokens.json").write_text(json.dumps({"<extra>": len(spelled["vocab"])}))


def make_sentencepiece(place: Path) -> None:
    place.mkdir()
    model = io.BytesIO()
    sentences = ["the cat sat on the mat", "a dog and a cat", "hello world", "the log"] * 20
    options: dict[str, Any] = {
        "vocab_size": 300,
        "byte_fallback": True,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, model_type="bpe", **options
    )
    (place / "tokenizer.model").write_bytes(model.getvalue())


def check(case: Path, sample: Path) -> None:
    ours = Tokenizer.from_folder(case)
    if ours is None:
        return
    encoded = {text: ours.encode(text) for text in TEXTS}
    for text, ids in encoded.items():
        ours.decode(ids)
        ours.encode(text, special=True)
        ours.encode(text, control=True)
    [ours.token(id) for id in range(min(ours.vocab_size, 400))]
    if (case / "tokenizer.json").exists():
        compare_json(case / "tokenizer.json", ours, encoded)
    elif (case / "tokenizer.model").exists():
        processor = reference_of(
            lambda: sentencepiece.SentencePieceProcessor(model_file=str(case / "tokenizer.model"))
        )
        theirs = {text: processor.encode(text) for text in TEXTS}
        require(theirs == encoded, "other ids than sentencepiece's")


def compare_json(path: Path, ours: Tokenizer, encoded: dict[str, list[int]]) -> None:
    theirs = reference_of(lambda: tokenizers.Tokenizer.from_file(str(path)))
    theirs.no_padding()
    theirs.no_truncation()
    theirs.encode_special_tokens = True
    for text, ids in encoded.items():
        expected = reference_of(lambda text=text: theirs.encode(text, add_special_tokens=False).ids)
        if ours.special_ids.isdisjoint(expected):  # what a user types is never a control token here
            require(ids == expected, f"other ids than the library's for {text!r}")
