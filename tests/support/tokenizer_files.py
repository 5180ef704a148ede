"""Tokenizer files of every kind, and texts that break tokenizers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import models

from sightline.text.tokenizer import Tokenizer

CORPUS = [
    "the cat sat on the mat and the dog didn't",
    "hello world, hello Tokyo 2024!",
    "日本語の猫です。猫は水が好き",
    "signs … !? <tag> [x]  two  spaces",
    "naïve café über",
] * 10


def sentencepiece_model(kind: str, **options: Any) -> bytes:
    """A SentencePiece model of 340 pieces."""
    stream = io.BytesIO()
    settings: dict[str, Any] = {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    } | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=stream,
        vocab_size=340,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return stream.getvalue()


def opened(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    return tokenizer


def spelling(**changes: Any) -> dict[str, Any]:
    """A small tokenizer.json with changes."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")])
    )
    return json.loads(tokenizer.to_str()) | changes


def model(**changes: Any) -> dict[str, Any]:
    return spelling(model=spelling()["model"] | changes)


HOSTILE: dict[str, tuple[str, str]] = {
    "not JSON": ("{", "is not JSON at character 1"),
    "a list": ("[]", "holds a list"),
    "deep": ("[" * 100_000 + "]" * 100_000, "is nested deeper than 64"),
    "digits": ('{"model": {"vocab": {"a": ' + "9" * 100_000 + "}}}", "has a number of 100,000 digits"),
    "key twice": ('{"model": {"vocab": {"a": 0, "a": 1}}}', "has the key a twice"),
    "no model": ("{}", "model.vocab is missing"),
    "id twice": (json.dumps(model(vocab={"a": 0, "b": 0, "ab": 2})), "has the id 0 of another token"),
    "negative id": (json.dumps(model(vocab={"a": 0, "b": -1, "ab": 2})), "the id of 'b' is '-1'"),
    "id no number": (json.dumps(model(vocab={"a": 0, "b": "x", "ab": 2})), "the id of 'b' is 'x'"),
    "sparse ids": (json.dumps(model(vocab={"a": 0, "b": 1, "ab": 10**9})), "3 tokens have ids up to 1000000000"),
    "merge of nothing": (json.dumps(model(merges=[["a", "zz"]])), "the tokenizer cannot be built"),
    "pattern": (json.dumps(spelling(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False})), "repeats a group"),
    "normaliser": (json.dumps(spelling(normalizer={"type": "Replace", "pattern": {"Regex": "(a|b)*c"}, "content": ""})), "repeats a group"),
    "unknown part": (json.dumps(spelling(decoder={"type": "Shell", "command": "ls"})), "the tokenizer cannot be built"),
    "added tokens": (json.dumps(spelling(added_tokens=[{"id": 10**9, "content": "x", "special": True}])), "ids up to 1000000000"),
    "vocabulary a number": (json.dumps(model(vocab=7)), "model.vocab is 7; expected ids by piece"),
    "vocabulary a text": (json.dumps(model(vocab="abc")), "model.vocab is 'abc'"),
    "added id a list": (json.dumps(spelling(added_tokens=[{"id": [], "content": "x", "special": True}])), "added_tokens is not a list of tokens"),
    "added text a number": (json.dumps(spelling(added_tokens=[{"id": 3, "content": 4, "special": True}])), "added_tokens is not a list of tokens"),
    "half a surrogate pair": (json.dumps(model(vocab={"a": 0, "b": 1, "ab": 2, "\ud800": 3})), "half of a surrogate pair"),
    "not tokens": (json.dumps(spelling(added_tokens=["x"])), "added_tokens is not a list of tokens"),
}  # fmt: skip
