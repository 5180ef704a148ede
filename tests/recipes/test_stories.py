"""`stories`: a Llama from a text file, which others open."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers

import sightline as sl
from sightline.errors import ConfigError, SightlineError
from sightline.recipes import RECIPES
from sightline.recipes.corpora import prepared_characters
from sightline.recipes.stories import Stories
from sightline.training.data.packed import PackedText
from sightline.training.loop import StepEvent
from sightline.training.run import Evaluated, train

SMALL = {
    "vocab": 300,
    "width": 32,
    "layers": 1,
    "heads": 4,
    "kv_heads": 2,
    "context": 32,
    "batch": 4,
    "steps": 6,
    "warmup": 1,
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 6))) for _ in range(60)]
    Path("my.txt").write_text(" ".join(draw.choices(words, k=3000)), encoding="utf-8")
    return tmp_path


def test_transformers_opens_it(place: Path) -> None:
    """The model that is handed out: the same logits and the same tokens in Hugging Face's own
    code."""
    job = RECIPES["stories"].from_settings({**SMALL, "text": "my.txt"}).job()
    events = list(train(job, place / "run"))
    losses = [event.loss for event in events if isinstance(event, StepEvent)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert any(isinstance(event, Evaluated) for event in events)
    ours = sl.load(str(place / "run" / "model"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(place / "run" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "run" / "model")
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert theirs.config.num_key_value_heads == 2
    text = Path("my.txt").read_text(encoding="utf-8")[:60]
    ids = tokenizer.encode(text)
    assert ours.tokenizer is not None
    assert ours.tokenizer.encode(text) == ids
    with torch.no_grad():
        mine, others = ours.transformer(torch.tensor([ids])), theirs(torch.tensor([ids])).logits
    torch.testing.assert_close(mine, others, rtol=1e-4, atol=1e-4)
    assert mine.abs().max() > 0.1
    assert (
        theirs.config.eos_token_id
        == theirs.generation_config.eos_token_id
        == tokenizer.eos_token_id
        == ours.tokenizer.eos
        == 0
    )


def test_our_reader_and_the_recipe_agree(place: Path) -> None:
    """config.json, read as any other folder's, is the model that was trained."""
    job = Stories(text=Path("my.txt"), **SMALL).job()
    built = job.make()
    list(train(job, place / "run"))
    assert sl.load(str(place / "run" / "model")).config == built.config


def test_documents_do_not_see_each_other() -> None:
    task = Stories(text=Path("my.txt"), **SMALL).job().task
    assert isinstance(task, PackedText)
    assert task.end == 0


def test_a_prepared_folder(place: Path) -> None:
    folder = prepared_characters(Path("my.txt"), progress=lambda *_: None).train.path.parent
    job = Stories(data=folder, **SMALL).job()
    assert job.export.keys["vocab_size"] == prepared_characters(Path("my.txt")).vocab_size
    assert job.export.keys["bos_token_id"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"no text to learn from; expected a text file.*Fix: --set text=FILE.txt"),
        ({"text": "my.txt", "data": "."}, r"both text and data are given"),
        ({"text": "nowhere.txt"}, r"nowhere.txt: cannot be read"),
        ({"text": "my.txt", "vocab": 90_000}, r"the texts have only [\d,]+ tokens to learn"),
        ({"text": "my.txt", "vocab": 100}, r"a vocabulary of 100"),
        ({"text": "my.txt", "context": 100_000}, r"tokens for a context of 100,000"),
        ({"text": "my.txt", "heads": 0}, r"heads is 0"),
        (
            {"text": "my.txt", "heads": 5},
            r"width 32 for 5 heads; expected a multiple. Fix: .*width=320",
        ),
        ({"text": "my.txt", "kv_heads": 3}, r"kv_heads"),
        ({"text": "my.txt", "dropout": 2}, r"dropout is 2"),
        ({"txt": "my.txt"}, r"no setting is called 'txt'. Fix: did you mean 'text'"),
    ],
)
def test_mistakes(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SightlineError, match=message):
        Stories.from_settings({**SMALL, **settings}).job()


def test_dropout_is_the_attentions() -> None:
    job = Stories(text=Path("my.txt"), **{**SMALL, "dropout": 0.25}).job()
    decoder = job.make().config.decoder
    assert decoder is not None
    assert decoder.blocks[0].attention.dropout == 0.25
    with pytest.raises(ConfigError):
        Stories(width=-1)
