"""`sightline demo`: the tour of a model, and the lesson where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.cli.ui import loading
from sightline.demo import tour
from sightline.errors import CheckpointError
from sightline.text.training.subwords import save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random decoder that knows the demo's words."""
    place = tmp_path_factory.mktemp("demo")
    (place / "text").write_text(f"{tour.SENTENCE}\n{tour.STORY}\n" * 50)
    save_tokenizer(train_tokenizer([place / "text"], vocab_size=332), place / "model")
    torch.manual_seed(0)
    model = sl.Model(
        sl.build(sl.llama(width=32, layers=2, heads=4, vocab_size=332, max_positions=128))
    )
    model.save(place / "weights")
    for file in (place / "weights").iterdir():
        file.rename(place / "model" / file.name)
    return place / "model"


def test_the_tour(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["demo", "--model", str(folder), "--out", str(page)]) == 0
    out = capsys.readouterr().out
    for output in (
        tour.STORY,
        "tokens/s",
        "Attention weights",
        "“it” looks at “animal”",
        "cos θ",
        "猫はマットの上に座った。",
        str(page),
    ):
        assert output in out.replace("\n", "") or output in out
    assert page.stat().st_size > 10_000


def test_the_lesson_comes_where_nothing_can_be_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise CheckpointError("no network")

    monkeypatch.setattr(loading, "load_shown", unreachable)
    assert main(["demo", "--steps", "2"]) == 0
    out, output = capsys.readouterr()
    assert "no network" in output
    assert "after 2 steps" in out
    assert main(["demo", "--model", "nothing-like-that"]) == 2


def test_the_lesson_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--lesson", "--steps", "2"]) == 0
    assert "A Transformer learns to repeat" in capsys.readouterr().out
    assert main(["demo", "--lesson", "--steps", "0"]) == 2
    assert "1 to 100000" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--model", str(folder), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
