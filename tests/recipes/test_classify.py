"""A classifier from scratch, and from a model: as `sightline classify` and Hugging Face read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.errors import ConfigError, InputError
from sightline.recipes.classify import Classify, pieces
from sightline.training.run import Evaluated
from tests.families.oracle import transformers
from tests.recipes.tiny_models import close, goes_down, opened, run
from tests.tasks.tiny_folders import bert

ROWS = [
    "a good film,good",
    "a bad film,bad",
    "so good!,good",
    "what a bad cat,bad",
    "neither here nor there,so so",
] * 12


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "labels.csv").write_text("text,label\n" + "\n".join(ROWS) + "\n")
    return tmp_path / "labels.csv"


def small(**changes: Any) -> Classify:
    usual = {
        "steps": 60,
        "warmup": 4,
        "eval_every": 20,
        "save_every": 20,
        "batch": 128,
        "context": 24,
        "vocab": 300,
    }
    return Classify(
        **usual | {"width": 16, "layers": 1, "heads": 2, "lr": 0.01, "dropout": 0.0} | changes
    )


@pytest.mark.parametrize("start", ["scratch", "model"])
def test_a_classifier(start: str, data: Path, tmp_path: Path) -> None:
    out, changes = tmp_path / "run", {"labels": data}
    if start == "model":
        bert(tmp_path / "base", "BertForMaskedLM")
        changes |= {"model": str(tmp_path / "base")}
    events = run(small(**changes), out)
    assert goes_down(events, by=0.5)
    assert min(event.loss for event in events if isinstance(event, Evaluated)) < 0.5
    result = sl.load(out / "model")
    assert result.labels == ["bad", "good", "so so"]
    assert [one.label for one in result.classify(["a good film", "what a bad cat"])] == [
        "good",
        "bad",
    ]
    theirs = opened(out / "model", "AutoModelForSequenceClassification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "model")
    given = tokenizer(
        ["a good film", "so good!", "neither here"], return_tensors="pt", padding=True
    )
    assert result.tokenizer is not None
    assert given["input_ids"][0].tolist()[
        : int(given["attention_mask"][0].sum())
    ] == result.tokenizer.encode("a good film", special=True)
    with torch.no_grad():
        close(
            result.transformer(given["input_ids"], padding=given["attention_mask"] == 0),
            theirs(**given).logits,
        )
    pipe = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer)
    assert pipe("a good film")[0]["label"] == "good"


def test_pieces_go_around_the_text() -> None:
    tokenizer, files = pieces(["a cat and a cat"] * 4, 270)
    ids = tokenizer.encode("a cat", special=True)
    assert (tokenizer.token(ids[0]), tokenizer.token(ids[-1])) == ("[CLS]", "[SEP]")
    assert tokenizer.decode(ids).strip() == "a cat"
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}


def test_usual_learning_rates() -> None:
    assert Classify().training().optimizer.lr == 1e-3  # pyright: ignore[reportAttributeAccessIssue]
    assert Classify(model="x").training().optimizer.lr == 5e-5  # pyright: ignore[reportAttributeAccessIssue]


def test_refusals(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no texts to learn from"):
        small().job()
    (tmp_path / "held.csv").write_text("text,label\na,good\nb,unheard of\n")
    with pytest.raises(InputError, match="label 'unheard of', which the others never have"):
        small(labels=data, validation=tmp_path / "held.csv").job()
    with pytest.raises(ConfigError, match="width is 0"):
        small(labels=data, width=0)
