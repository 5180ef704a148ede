"""Labels: Hugging Face's pipelines give the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.tasks.classify import classify
from sightline.text.tokenizer import Tokenizer
from tests.families.oracle import ours, reference, transformers
from tests.tasks.tiny_folders import TEXTS, bert, roberta

PLAIN = [text for text in TEXTS if "[" not in text]
LABELS = {
    "id2label": {0: "bad", 1: "good", 2: "neither"},
    "label2id": {"bad": 0, "good": 1, "neither": 2},
}
ONE = {"id2label": {0: "spam"}, "label2id": {"spam": 0}}


@pytest.mark.parametrize("make", [bert, roberta])
@pytest.mark.parametrize(
    ("options", "problem"),
    [(LABELS, None), (ONE, None), (LABELS, "multi_label_classification"), (LABELS, "regression")],
)
def test_ours_is_the_pipeline(
    make: Any, options: dict[str, Any], problem: str | None, tmp_path: Path
) -> None:
    name = "BertForSequenceClassification" if make is bert else "RobertaForSequenceClassification"
    theirs, tokenizer = make(tmp_path, name, **options, problem_type=problem)
    pipe = transformers.pipeline(
        "text-classification", model=theirs, tokenizer=tokenizer, top_k=None
    )
    texts = PLAIN if make is bert else [text for text in PLAIN if len(text) < 60]
    model = sl.load(tmp_path)
    assert model.tokenizer is not None
    result = classify(
        model.transformer, model.tokenizer, texts, labels=model.labels, problem=problem
    )
    for mine, expected in zip(result, pipe(texts), strict=True):
        assert mine.probabilities == pytest.approx(
            {row["label"]: row["score"] for row in expected}, abs=1e-5
        )
        assert (mine.label, mine.probability) == (
            expected[0]["label"],
            pytest.approx(expected[0]["score"], abs=1e-5),
        )


def test_the_models_own_labels(tmp_path: Path) -> None:
    bert(tmp_path, "BertForSequenceClassification", **LABELS)
    result = sl.load(tmp_path).classify("a good film")
    assert len(result) == 1
    assert set(result[0].probabilities) == {"bad", "good", "neither"}
    assert sum(result[0].probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert result[0].tokens == []


def test_taggers_give_spans(tmp_path: Path) -> None:
    theirs, tokenizer = bert(tmp_path, "BertForTokenClassification", **LABELS)
    pipe = transformers.pipeline(
        "token-classification", model=theirs, tokenizer=tokenizer, ignore_labels=[]
    )
    result = sl.load(tmp_path).classify(PLAIN)
    for text, mine in zip(PLAIN, result, strict=True):
        expected = pipe(text) if text else []
        assert mine.label is None
        assert [(token.start, token.end, token.label) for token in mine.tokens] == [
            (row["start"], row["end"], row["entity"]) for row in expected
        ]
        assert [token.probability for token in mine.tokens] == pytest.approx(
            [float(row["score"]) for row in expected], abs=1e-5
        )
        assert all(token.text == text[token.start : token.end] for token in mine.tokens)


def test_a_decoder_labels_by_its_last_token() -> None:
    sizes = {
        "vocab_size": 40,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "num_labels": 3,
        "pad_token_id": 0,
    }
    theirs, tokenizer = (
        reference("GPT2ForSequenceClassification", sizes),
        Tokenizer.from_characters("abcdefghijklmnopqrstuvwxyz "),
    )
    texts = ["the cat", "a much longer text of many words", "the dogs"]
    with torch.no_grad():
        expected = [
            theirs(torch.tensor([tokenizer.encode(text)])).logits[0].softmax(-1).tolist()
            for text in texts
        ]
    result = classify(ours(theirs).transformer, tokenizer, texts, labels=["a", "b", "c"])
    for mine, row in zip(result, expected, strict=True):
        assert list(mine.probabilities.values()) == pytest.approx(row, abs=1e-5)


def test_bart_reads_the_text_twice() -> None:
    sizes = {
        "vocab_size": 40,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_position_embeddings": 64,
    }
    heads = {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    theirs = reference("BartForSequenceClassification", sizes | heads | {"num_labels": 3})
    tokenizer = Tokenizer.from_characters(
        "abcdefghijklmnopqrstuvwxyz", special=("<pad>", "<s>", "</s>", "<unk>")
    )
    tokenizer.engine.around = ((1,), (2,))  # pyright: ignore[reportAttributeAccessIssue]
    texts = ["cat", "longertext", "dogs", "abcdefghij"]
    with torch.no_grad():
        expected = [
            theirs(torch.tensor([tokenizer.encode(text, special=True)]))
            .logits[0]
            .softmax(-1)
            .tolist()
            for text in texts
        ]
    result = classify(ours(theirs).transformer, tokenizer, texts, labels=["a", "b", "c"])
    for mine, row in zip(result, expected, strict=True):
        assert list(mine.probabilities.values()) == pytest.approx(row, abs=1e-5)


def test_what_is_no_classifier_names_the_command_that_fits() -> None:
    tokenizer = Tokenizer.from_characters("abc")
    kinds = {
        "generate": sl.gpt(width=16, layers=1, heads=2, vocab_size=9),
        "fill": sl.bert(width=16, layers=1, heads=2, vocab_size=9),
    }
    for command, config in kinds.items():
        with pytest.raises(sl.InputError, match=f"Fix: sightline {command} MODEL"):
            classify(sl.build(config), tokenizer, ["a"], labels=[])


def test_names_and_texts_must_fit(tmp_path: Path) -> None:
    bert(tmp_path, "BertForSequenceClassification", **LABELS)
    model = sl.load(tmp_path)
    assert model.tokenizer is not None
    with pytest.raises(sl.InputError, match="2 names for 3 labels"):
        classify(model.transformer, model.tokenizer, ["a"], labels=["x", "y"])
    with pytest.raises(sl.InputError, match="each name once"):
        classify(model.transformer, model.tokenizer, ["a"], labels=["x", "y", "x"])
    with pytest.warns(UserWarning, match="the text was cut to 64 tokens"):
        model.classify(["the cat " * 90])
    assert model.classify([]) == []
