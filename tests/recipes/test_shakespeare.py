"""The character GPT, on a text of one's own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import sightline as sl
from sightline.recipes.shakespeare import Shakespeare
from sightline.training.run import Evaluated, train

TEXT = "To be, or not to be: that is the question.\n"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    at = tmp_path_factory.mktemp("shakespeare")
    (at / "text.txt").write_text(TEXT * 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGHTLINE_HOME", str(at / "home"))
        recipe = Shakespeare(
            text=at / "text.txt",
            steps=60,
            warmup=5,
            width=32,
            layers=1,
            heads=2,
            context=64,
            batch=8,
            eval_every=60,
        )
        events = list(train(recipe.job(), at / "run"))
    return at / "run", next(event.loss for event in events if isinstance(event, Evaluated))


def test_it_learns_the_sentence(learned: tuple[Path, float]) -> None:
    folder, loss = learned
    assert loss < 0.3 * math.log(30)
    assert (
        sl.load(folder / "model").generate("To be, or not", max_tokens=29).text
        == " to be: that is the question."
    )


def test_a_character_is_a_token(learned: tuple[Path, float]) -> None:
    tokenizer = sl.load(learned[0] / "model").tokenizer
    assert tokenizer is not None
    assert len(tokenizer.encode("question")) == 8
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
