"""The small BERT: what it hands out, and by how much it beats a bigram filler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.errors import ConfigError
from sightline.recipes.bert_tiny import MASK, BertTiny
from sightline.tasks.fill import trim, with_masks
from sightline.training.data.batch import IGNORED
from sightline.training.data.masked import MaskedText
from tests.families.oracle import transformers
from tests.recipes.tiny_models import close, goes_down, opened, run

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
    "and",
    "the",
    "dog",
    "sat",
    "on",
    "the",
    "log",
    "while",
    "a",
    "bird",
    "sang",
    "of",
    "the",
    "old",
    "grey",
    "house",
    "by",
    "the",
    "sea",
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("long") is None:
        monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    (tmp_path / "text.txt").write_text(
        "\n".join(" ".join(chance.choice(WORDS, 12)) for _ in range(400))
    )
    return tmp_path / "text.txt"


def small(**settings: Any) -> BertTiny:
    usual = {
        "steps": 30,
        "warmup": 3,
        "eval_every": 30,
        "save_every": 30,
        "batch": 8,
        "context": 32,
        "vocab": 280,
    }
    return BertTiny(**usual | {"width": 16, "layers": 1, "heads": 2, "adam_lr": 0.02} | settings)


@pytest.mark.parametrize("masking", ["token", "word", "span"])
def test_hugging_face_opens_it_and_fill_fills(masking: Any, text: Path, tmp_path: Path) -> None:
    recipe = small(text=text, masking=masking)
    task = recipe.job().task
    assert isinstance(task, MaskedText)
    assert task.mask == 280
    assert goes_down(run(recipe, tmp_path / "run"))
    result = sl.load(tmp_path / "run" / "model")
    assert (result.family, result.head) == ("modernbert", "masked")
    (gap,) = result.fill("the cat [MASK] on the mat", top_k=3)
    assert len(gap.candidates) == 3
    theirs = opened(tmp_path / "run" / "model", "AutoModelForMaskedLM")
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.mask_token == MASK
    ids = tokenizer("the cat [MASK] on the mat", return_tensors="pt")["input_ids"]
    assert result.tokenizer is not None
    assert ids[0].tolist() == [
        *result.tokenizer.encode("the cat"),
        task.mask,
        *result.tokenizer.encode(" on the mat"),
    ]
    with torch.no_grad():
        logits = theirs(ids).logits
    close(result.transformer(ids), logits)
    place = ids[0].tolist().index(task.mask)
    assert gap.candidates[0].token == int(logits[0, place].argmax())


# ---------------------------------------------------------------------------------- bigram filler


class Bigrams:
    """argmax over x of p(x | left) p(right | x), from counts: p(x | l) = (c(l, x) + k p(x)) / (c(l)
    + k)."""

    def __init__(self, ids: np.ndarray, vocab_size: int, *, mask: int, k: float = 1.0) -> None:
        self.mask = mask
        alone = np.bincount(ids, minlength=vocab_size) + 0.01
        alone[mask] = 0
        self.alone = alone / alone.sum()
        pairs = np.zeros((vocab_size, vocab_size), dtype=np.float32)
        np.add.at(pairs, (ids[:-1], ids[1:]), 1)
        self.log_next = np.log((pairs + k * self.alone) / (pairs.sum(1, keepdims=True) + k) + 1e-30)
        self.log_alone = np.log(self.alone + 1e-30)

    def fill(self, row: np.ndarray, at: int) -> int:
        """The best token at a place, from its neighbours as they are shown; a hidden neighbour says
        nothing."""
        left = row[at - 1] if at > 0 else self.mask
        right = row[at + 1] if at + 1 < len(row) else self.mask
        score = self.log_alone if left == self.mask else self.log_next[left]
        return int(np.argmax(score if right == self.mask else score + self.log_next[:, right]))


def test_prepared_data_with_a_tokenizer_of_its_own(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, data = str(tmp_path / "tokenizer"), str(tmp_path / "data")
    assert (
        main(["tokenizer", "train", str(text), "--vocab", "300", "--uncased", "--out", tokenizer])
        == 0
    )
    assert (
        main(
            [
                "data",
                "prepare",
                str(text),
                "--out",
                data,
                "--tokenizer",
                tokenizer,
                "--document-separator",
                r"\n",
            ]
        )
        == 0
    )
    capsys.readouterr()
    tiny = {"width": 16, "layers": 1, "heads": 2, "context": 16, "batch": 2, "steps": 2}
    run(BertTiny(data=Path(data), **tiny), tmp_path / "run")
    filler = sl.load(tmp_path / "run" / "model")
    upper = filler.fill("The CAT sat on ___")
    assert upper[0].candidates == filler.fill("the cat sat on [MASK]")[0].candidates
    assert filler.tokenizer is not None
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    for sentence in ("the CAT sat [MASK].", "[MASK] sat on the [MASK], [MASK]", "[MASK]."):
        parts = trim(sentence.split("[MASK]"), left=True, right=False)
        mask = filler.tokenizer.mask
        assert mask is not None
        assert with_masks(filler.tokenizer, parts, mask)[0] == theirs(sentence)["input_ids"]
    with pytest.raises(ConfigError, match="both text and data"):
        BertTiny(data=Path(data), text=text, **tiny).job()


def test_the_filler_by_hand() -> None:
    filler = Bigrams(np.array([0, 1, 2, 0, 1, 2, 0, 3, 2]), 5, mask=4, k=0.1)
    assert filler.fill(np.array([0, 4, 2]), 1) == 1
    assert filler.fill(np.array([4, 4, 0]), 1) == 2
    assert filler.fill(np.array([0, 4, 4]), 1) == 1


def accuracies(task: MaskedText, model: sl.Transformer, filler: Bigrams) -> tuple[float, float]:
    """Of BERT and of the filler, over the hidden tokens of the held-out text; both see the same
    rows."""
    right, guessed, total = 0, 0, 0
    for batch in task.validation():
        hidden = (batch.targets != IGNORED) & (batch.tokens == task.mask)
        with torch.inference_mode():
            best = model(batch.tokens).argmax(-1)
        right += int((best == batch.targets)[hidden].sum())
        for row, at in hidden.nonzero().tolist():
            guessed += filler.fill(batch.tokens[row].numpy(), at) == int(batch.targets[row, at])
        total += int(hidden.sum())
    return right / total, guessed / total


@pytest.mark.long
def test_shakespeare_beats_the_bigram_filler(tmp_path: Path) -> None:
    recipe = BertTiny(steps=1500, eval_every=500, save_every=500)
    job = recipe.job()
    run(recipe, tmp_path / "run")
    task = job.task
    assert isinstance(task, MaskedText)
    filler = Bigrams(np.asarray(task.text.train.ids), task.vocab_size, mask=task.mask)
    ours, theirs = accuracies(task, sl.load(tmp_path / "run" / "model").transformer, filler)
    print(f"bert-tiny {ours:.3f}, bigram filler {theirs:.3f}")
    assert ours > theirs + 0.05
