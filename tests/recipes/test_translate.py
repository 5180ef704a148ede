"""The translator: it learns a small language, writes it as the data does, and its exported model
needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.errors import ConfigError
from sightline.recipes.translate import Translate
from sightline.training.run import train

WORDS = {
    "cat": "猫",
    "dog": "犬",
    "bird": "鳥",
    "sees": "見る",
    "likes": "好き",
    "the": "その",
    "a": "ある",
    "old": "古い",
    "red": "赤い",
}
SMALL = {
    "vocab": 360,
    "width": 48,
    "layers": 1,
    "heads": 2,
    "hidden": 96,
    "batch": 512,
    "dropout": 0.0,
    "label_smoothing": 0.0,
}


def pairs(folder: Path, count: int = 400) -> Path:
    """noun verb noun, with the verb last in the other language."""
    chance = np.random.default_rng(0)
    lines: list[str] = []
    for _ in range(count):
        one, other = (
            [
                str(chance.choice(["the", "a"])),
                *chance.choice(["old", "red"], chance.integers(2)).tolist(),
                noun,
            ]
            for noun in chance.choice(["cat", "dog", "bird"], 2).tolist()
        )
        verb = str(chance.choice(["sees", "likes"]))
        source, target = [*one, verb, *other, "."], [*one, *other, verb]
        lines.append(f"{' '.join(source)}\t{' '.join(WORDS[word] for word in target)} 。")
    (folder / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "pairs.tsv"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("translate")
    recipe = Translate(
        pairs=pairs(at),
        join=True,
        steps=160,
        warmup=10,
        ema=0.9,
        eval_every=80,
        save_every=80,
        **SMALL,
    )
    for _ in train(recipe.job(), at / "run"):
        pass
    return at / "run"


def test_it_translates_a_plain_english_sentence_into_unspaced_text(learned: Path) -> None:
    model = sl.load(learned / "model")
    result = model.translate("The red cat likes a bird.")
    assert result.text == "その赤い猫ある鳥好き。"
    assert torch.allclose(result.alignment.sum(-1), torch.ones(len(result.tokens)), atol=1e-5)


def test_what_no_piece_can_write_is_written_in_bytes(learned: Path) -> None:
    tokenizer = sl.load(learned / "model").tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("🙂 Ω")) == "🙂ω"


def test_its_own_words_can_be_scored(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "source.txt").write_text(
        "the red cat likes a bird .\na dog sees the old cat .\n", encoding="utf-8"
    )
    (tmp_path / "target.txt").write_text(
        "その 赤い 猫 ある 鳥 好き 。\nある 犬 その 古い 猫 見る 。\n", encoding="utf-8"
    )
    files = [
        "--source",
        str(tmp_path / "source.txt"),
        "--target",
        str(tmp_path / "target.txt"),
        "--json",
    ]
    assert main(["eval", str(learned), *files, "--words"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bleu"] == pytest.approx(100)
    assert "tok:none" in result["bleu_signature"]
    assert main(["eval", str(learned), *files]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] < 50


def test_the_checkpoint_recommends_four_beams(learned: Path) -> None:
    assert sl.load(learned / "model").defaults.num_beams == 4


def test_without_pairs_the_error_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"pairs=FILE\.tsv"):
        Translate().job()


def test_every_hundredth_pair_is_held_out_unless_some_are_given(tmp_path: Path) -> None:
    path = pairs(tmp_path)
    task = Translate(pairs=path, **SMALL).job().task
    assert sum(batch.rows for batch in task.validation()) == 4
    task = Translate(pairs=path, validation_pairs=path, **SMALL).job().task
    assert sum(batch.rows for batch in task.validation()) == 400
