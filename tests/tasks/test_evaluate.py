"""Figures against sacrebleu called by hand, against `score`, and against counting."""

from __future__ import annotations

import builtins
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.errors import InputError
from sightline.tasks import evaluate
from sightline.tasks import score as scoring
from sightline.tasks.evaluate import (
    accuracy,
    bleu_with,
    chrf,
    corpus_bleu,
    known_label,
    masked_scores,
    perplexity,
    quality,
    translations,
)
from sightline.tasks.score import score
from sightline.tasks.translate import translate
from tests.support.letter_tokenizer import tokenizer
from tests.support.tiny import make
from tests.tasks.tiny_folders import bert, roberta

FOUND = ["the cat sat on a mat", "it rains", "猫がマットに座った", "hello, world"]
WANTED = ["the cat sat on the mat .", "it is raining", "猫がマットの上に座った", "Hello, world!"]
SIZE = {"width": 24, "layers": 2, "heads": 4, "vocab_size": 40, "max_positions": 48}
TEXT = "the cat sat, the dog sat; 猫🙂ß " * 9


@pytest.mark.parametrize("tokenize", ["13a", "none", "char", "intl", "zh"])
def test_bleu_is_sacrebleus(tokenize: str) -> None:
    expected = sacrebleu.corpus_bleu(FOUND, [WANTED], tokenize=tokenize)
    result = corpus_bleu(FOUND, WANTED, tokenize=tokenize)
    assert result.score == pytest.approx(expected.score)
    assert 0 < result.score < 100
    assert f"tok:{tokenize}|" in result.signature
    assert f"version:{sacrebleu.__version__}" in result.signature


def test_chrf_is_sacrebleus() -> None:
    result = chrf(FOUND, WANTED)
    assert result.score == pytest.approx(sacrebleu.corpus_chrf(FOUND, [WANTED]).score)
    assert "nc:6" in result.signature


def test_what_is_right_has_a_hundred_and_what_is_wrong_nothing() -> None:
    assert corpus_bleu(WANTED, WANTED).score == pytest.approx(100)
    assert chrf(WANTED, WANTED).score == pytest.approx(100)
    assert corpus_bleu(["x y z w"], ["a b c d"], tokenize="none").score < 1e-6


def test_by_hand() -> None:
    """Five words, four right, in place: precisions 4/5, 3/4, 2/3, 1/2, and no penalty for the
    length."""
    result = corpus_bleu(["a b c d x"], ["a b c d e"], tokenize="none")
    assert result.score == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


@pytest.mark.parametrize(("result", "wanted"), [([], []), (["a"], ["a", "b"])])
def test_each_translation_has_its_reference(result: list[str], wanted: list[str]) -> None:
    with pytest.raises(InputError, match="one reference per translation"):
        corpus_bleu(result, wanted)


def test_a_tokenizer_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"called 'chr'.*did you mean 'char'"):
        bleu_with("chr")


def test_without_what_a_tokenizer_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(
        InputError, match=r"sacrebleu cannot use ja-mecab: .*pip install 'sacrebleu\[ja\]'"
    ) as refusal:
        bleu_with("ja-mecab")
    assert "\n" not in str(refusal.value)


def test_without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("sacrebleu"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"need sacrebleu.*pip install 'sightline\[train\]'"):
        chrf(FOUND, WANTED)


@pytest.mark.parametrize("before", [(), (1,)])
def test_perplexity_grows_into_the_score(
    before: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "CHUNK", 10)
    model, words = make(sl.gpt(**SIZE)), tokenizer(before=before)
    running = list(perplexity(model, words, TEXT))
    whole = score(model, words, TEXT)
    assert len(running) > 10
    last = running[-1]
    assert (last.done, last.total, last.bytes) == (whole.scored, whole.scored, whole.bytes)
    assert last.perplexity == pytest.approx(whole.perplexity)
    assert last.bits_per_byte == pytest.approx(whole.bits_per_byte)
    assert last.loss == pytest.approx(-whole.total / whole.scored)
    for part in running[:-1]:
        begun = part.done + (0 if before else 1)
        assert part.nats == pytest.approx(sum(x for x in whole.logprobs[:begun] if x is not None))
        assert part.bytes == len(TEXT[:begun].encode()) - (0 if before else 1), (
            "the bytes of what was scored so far"
        )


LINES = ["the cat sat on the mat", "cat"] + [
    "".join(random.Random(n).sample([chr(code) for code in range(33, 127)], 30)) for n in range(12)
]


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "RobertaForMaskedLM"])
def test_hidden_tokens_are_counted_as_transformers_would(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One forward pass of the reference per token, without batches."""
    theirs, encode = (bert if kind.startswith("Bert") else roberta)(tmp_path, kind)
    nats, right, five, done = 0.0, 0, 0, 0
    for line in LINES:
        ids = encode(line)["input_ids"]
        for place in range(1, len(ids) - 1):
            hidden = [*ids[:place], encode.mask_token_id, *ids[place + 1 :]]
            with torch.no_grad():
                logprobs = theirs(torch.tensor([hidden])).logits[0, place].log_softmax(-1)
            best = logprobs.topk(5).indices.tolist()
            nats = nats + float(logprobs[ids[place]])
            right = right + (best[0] == ids[place])
            five = five + (ids[place] in best)
            done = done + 1
    assert 0 < five < done, "so that the test can fail"
    model = sl.load(tmp_path)
    monkeypatch.setattr(evaluate, "BUDGET", 100)  # several batches per line
    running = list(masked_scores(model.runner, model.tokenizer, LINES))
    last = running[-1]
    assert [part.done for part in running] == sorted({part.done for part in running})
    assert len(running) > len(LINES)
    assert (last.right, last.among_five, last.done, last.total) == (right, five, done, done)
    assert last.nats == pytest.approx(nats, rel=1e-5)
    assert last.pseudo_perplexity == pytest.approx(math.exp(-nats / done), rel=1e-5)


def test_only_masked_models_find_hidden_tokens() -> None:
    with pytest.raises(InputError, match="a model of masked tokens"):
        list(masked_scores(make(sl.gpt(**SIZE)), tokenizer(), LINES))


def test_translations_are_translated_and_compared() -> None:
    model, words = make(sl.encoder_decoder(**SIZE)), tokenizer(after=(2,))
    defaults, pairs = (
        Defaults(decoder_start=1, end=(2,)),
        [("the cat", "die katze"), ("a dog", "ein hund")],
    )
    samples = list(translations(model, words, defaults, pairs, beams=2, max_tokens=5))
    assert [(sample.source, sample.reference) for sample in samples] == pairs
    assert [sample.hypothesis for sample in samples] == [
        translate(model, words, defaults, source, beams=2, max_tokens=5).text for source, _ in pairs
    ]
    result = quality(samples, tokenize="char")
    assert result.bleu == corpus_bleu(
        [s.hypothesis for s in samples], ["die katze", "ein hund"], tokenize="char"
    )
    assert result.chrf == chrf([s.hypothesis for s in samples], ["die katze", "ein hund"])
    assert result.done == 2


def test_accuracy_is_counted() -> None:
    model, words = (
        make(replace(sl.bert(**SIZE), head=sl.Classifier(labels=3, activation="tanh"))),
        tokenizer(before=(1,)),
    )
    labels, texts = ["cold", "warm", "hot"], [TEXT[n : n + 9 + n % 5] for n in range(40)]
    with torch.no_grad():
        best = [
            int(model(torch.tensor([words.encode(text, special=True)]))[0].argmax())
            for text in texts
        ]
    assert len(set(best)) > 1, "so that the test can fail"
    rows = [
        (text, labels[id] if n % 4 else labels[id - 1])
        for n, (text, id) in enumerate(zip(texts, best, strict=True))
    ]
    running = list(accuracy(model, words, rows, labels=labels))
    assert [(part.done, part.total) for part in running] == [(16, 40), (32, 40), (40, 40)]
    assert [part.right for part in running] == [12, 24, 30]
    assert running[-1].accuracy == 0.75
    numbered = [(text, str(labels.index(label))) for text, label in rows]
    assert list(accuracy(model, words, numbered, labels=labels)) == running


def test_a_label_that_the_model_does_not_have() -> None:
    with pytest.raises(InputError, match=r"called 'wram'.*did you mean 'warm'"):
        known_label("wram", ["cold", "warm"])
    with pytest.raises(InputError, match="called '2'"):
        known_label("2", ["cold", "warm"])
    with pytest.raises(InputError, match="without a classifier"):
        known_label("warm", [])


def test_a_tagger_is_no_classifier() -> None:
    model = make(replace(sl.bert(**SIZE), head=sl.Classifier(labels=2, pool="tokens")))
    with pytest.raises(InputError, match="a tagger"):
        list(accuracy(model, tokenizer(), [("the cat", "warm")], labels=["cold", "warm"]))
