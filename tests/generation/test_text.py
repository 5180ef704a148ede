"""Text in, text out: streamed = whole, stop strings never shown, mistakes in one line; by Python and by command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.text.tokenizer import Tokenizer
from sightline.text.train import save, train

TEXT = "the cat sat on the mat and the dog sat on the log; 猫がマットの上に座った。🙂 " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of its own with a trained byte-level tokenizer, saved."""
    place = tmp_path_factory.mktemp("text")
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    tokens = save(train([place / "text.txt"], vocab_size=300), place / "tokenizer")
    torch.manual_seed(3)
    config = sl.gpt(width=32, layers=2, heads=4, vocab_size=300, max_positions=64, positions="rotary")
    transformer = sl.build(config).eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return sl.Model(transformer, Tokenizer.from_folder(tokens)).save(place / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> sl.Model:
    return sl.load(folder)


def test_streamed_is_whole_is_decoded(model: sl.Model) -> None:
    for seed in range(20):
        options = {"temperature": 2.0, "seed": seed, "max_tokens": 30}
        whole = model.generate("the cat", **options)
        pieces = list(model.stream("the cat", **options))
        assert "".join(piece.text for piece in pieces) == whole.text == model.tokenizer.decode(whole.tokens)
        assert [piece.event.token for piece in pieces] == whole.tokens
        assert whole.finish_reason == "length"
        assert len(whole.logprobs) == 30


def test_a_stop_string_is_never_shown(model: sl.Model) -> None:
    whole = model.generate("the cat", temperature=2.0, seed=1, max_tokens=30).text
    stop = whole[7:10]
    found = model.generate("the cat", temperature=2.0, seed=1, max_tokens=30, stop=[stop])
    assert found.text == whole[: whole.index(stop)]
    assert found.finish_reason == "stop"


def test_token_ids_are_a_prompt_too(model: sl.Model) -> None:
    ids = model.tokenizer.encode("the cat", special=True)
    assert model.generate(ids, max_tokens=9).tokens == model.generate("the cat", max_tokens=9).tokens


def test_a_long_prompt_can_be_cut_on_the_left(model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match="for a context of 64"):
        model.generate(TEXT)
    assert len(model.generate(TEXT, truncate="left", max_tokens=10).tokens) == 10


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"top_p": 2.0}, {"top_k": -3}, {"min_p": 7.0}, {"max_tokens": 0}, {"stop": [""]}]
)
def test_mistakes_are_said_before_anything_runs(options: dict[str, object], model: sl.Model) -> None:
    with pytest.raises(sl.InputError) as refusal:
        model.generate("the", **options)
    assert "\n" not in str(refusal.value)


def test_a_model_without_tokenizer(model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match="a model without tokenizer"):
        sl.Model(model.transformer).generate("the")


def test_the_command_streams_and_counts(folder: Path, capsys: pytest.CaptureFixture[str], model: sl.Model) -> None:
    assert main(["generate", str(folder), "the cat", "--max-tokens", "12"]) == 0
    captured = capsys.readouterr()
    assert captured.out == model.generate("the cat", max_tokens=12).text + "\n"
    assert "12 tokens" in captured.err
    assert main(["generate", str(folder), "the cat", "--max-tokens", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == model.generate("the cat", max_tokens=5).tokens
    assert found["finish_reason"] == "length"


def test_the_command_reads_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: sl.Model) -> None:
    (tmp_path / "prompt.txt").write_text("the dog", encoding="utf-8")
    assert main(["generate", str(folder), "--file", str(tmp_path / "prompt.txt"), "--max-tokens", "6", "--show", "alternatives"]) == 0
    assert capsys.readouterr().out.strip() == model.generate("the dog", max_tokens=6).text.strip()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--max-tokens", "1000"], "for a context of 64"),
        (["--file", "none.txt"], "a prompt and a file"),
    ],
)
def test_the_commands_mistakes(line: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "the cat", *line]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err
