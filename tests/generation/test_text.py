"""Text in, text out: streamed = whole, stop strings never shown, mistakes in one line; by Python
and by command."""

from __future__ import annotations

import copy
import io
import json
import math
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.generation.constrained import choice
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer

TEXT = "the cat sat on the mat and the dog sat on the log; 猫がマットの上に座った。🙂 " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of its own with a trained byte-level tokenizer, saved."""
    place = tmp_path_factory.mktemp("text")
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    tokens = save_tokenizer(
        train_tokenizer([place / "text.txt"], vocab_size=300), place / "tokenizer"
    )
    torch.manual_seed(3)
    config = sl.gpt(
        width=32, layers=2, heads=4, vocab_size=300, max_positions=64, positions="rotary"
    )
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
        options = {"temperature": 2.0, "seed": seed, "max_tokens": 30, "ignore_eos": True}
        whole = model.generate("the cat", **options)
        pieces = list(model.stream("the cat", **options))
        assert (
            "".join(piece.text for piece in pieces)
            == whole.text
            == model.tokenizer.decode(whole.tokens)
        )
        assert [piece.event.token for piece in pieces] == whole.tokens
        assert whole.finish_reason == "length"
        assert len(whole.logprobs) == 30


def test_a_stop_string_is_never_shown(model: sl.Model) -> None:
    whole = model.generate("the cat", temperature=2.0, seed=1, max_tokens=30).text
    stop = whole[7:10]
    result = model.generate("the cat", temperature=2.0, seed=1, max_tokens=30, stop=[stop])
    assert result.text == whole[: whole.index(stop)]
    assert result.finish_reason == "stop"


def test_token_ids_are_a_prompt_too(model: sl.Model) -> None:
    ids = model.tokenizer.encode("the cat", special=True)
    assert (
        model.generate(ids, max_tokens=9).tokens == model.generate("the cat", max_tokens=9).tokens
    )


def test_a_long_prompt_can_be_cut_on_the_left(model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match="for a context of 64"):
        model.generate(TEXT)
    assert len(model.generate(TEXT, truncate="left", max_tokens=10).tokens) == 10


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"top_p": 2.0},
        {"top_k": -3},
        {"min_p": 7.0},
        {"max_tokens": 0},
        {"stop": [""]},
    ],
)
def test_mistakes_are_said_before_anything_runs(
    options: dict[str, object], model: sl.Model
) -> None:
    with pytest.raises(sl.InputError) as refusal:
        model.generate("the", **options)
    assert "\n" not in str(refusal.value)


def test_a_model_without_tokenizer(model: sl.Model) -> None:
    with pytest.raises(
        sl.InputError,
        match=r"a text for a model without tokenizer.*Fix: .*model\.generate\(\[5, 6, 7\]\)\.tokens",
    ):
        sl.Model(model.transformer).generate("the")


def test_a_model_without_tokenizer_continues_ids_with_ids(model: sl.Model) -> None:
    bare, ids = sl.Model(model.transformer), model.ids("the cat")
    expected = model.generate(ids, max_tokens=9, ignore_eos=True).tokens
    result = bare.generate(ids, max_tokens=9, ignore_eos=True)
    assert (result.tokens, result.text, result.finish_reason) == (expected, "", "length")
    assert [
        piece.event.token for piece in bare.stream(ids, max_tokens=9, ignore_eos=True)
    ] == expected
    assert bare.generate_many([ids, ids[:2]], max_tokens=9, ignore_eos=True)[0].tokens == expected
    beams = bare.generate(ids, max_tokens=5, beams=2)
    assert (beams.tokens, beams.text) == (model.generate(ids, max_tokens=5, beams=2).tokens, "")
    with pytest.raises(
        sl.InputError, match=r"stop strings for a model without tokenizer.*Fix: leave stop out"
    ):
        bare.generate(ids, stop=["x"])


def test_the_command_streams_and_counts(
    folder: Path, capsys: pytest.CaptureFixture[str], model: sl.Model
) -> None:
    assert main(["generate", str(folder), "the cat", "--max-tokens", "12"]) == 0
    captured = capsys.readouterr()
    assert captured.out == model.generate("the cat", max_tokens=12).text + "\n"
    assert "12 tokens" in captured.err
    assert main(["generate", str(folder), "the cat", "--max-tokens", "5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokens"] == model.generate("the cat", max_tokens=5).tokens
    assert result["finish_reason"] == "length"


def test_the_command_reads_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: sl.Model
) -> None:
    (tmp_path / "prompt.txt").write_text("the dog", encoding="utf-8")
    assert (
        main(
            [
                "generate",
                str(folder),
                "--file",
                str(tmp_path / "prompt.txt"),
                "--max-tokens",
                "6",
                "--show",
                "alternatives",
            ]
        )
        == 0
    )
    out, result = capsys.readouterr().out, model.generate("the dog", max_tokens=6)
    assert out.startswith(
        result.text + "\n"
    )  # a line's end that a file ends in would be no part of the prompt
    lines = out[len(result.text) + 1 :].splitlines()
    assert len(lines) == len(result.tokens)  # without colours, a line for each token
    assert float(lines[0].split()[0].removesuffix("%")) == pytest.approx(
        100 * math.exp(result.logprobs[0]), abs=0.06
    )


def test_a_file_and_a_pipe_give_the_same_prompt(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: sl.Model,
) -> None:
    (tmp_path / "prompt.txt").write_text("the dog\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the dog\n")))
    wanted = model.generate("the dog", max_tokens=6).text
    for line in (["--file", str(tmp_path / "prompt.txt")], ["-"]):
        assert main(["generate", str(folder), *line, "--max-tokens", "6", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == wanted


def test_the_commands_forms_and_beams(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "the", "--choice", "cat", "--choice", "dog"]) == 0
    assert capsys.readouterr().out in ("cat\n", "dog\n")
    assert main(["generate", str(folder), "the", "--regex", "[0-9]{9}", "--max-tokens", "2"]) == 0
    assert "before the output was complete" in capsys.readouterr().err
    assert (
        main(["generate", str(folder), "the", "--beams", "3", "--max-tokens", "4", "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["score"] >= max(other["score"] for other in result["others"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--max-tokens", "1000"], "for a context of 64"),
        (["--file", "none.txt"], "a prompt and a file"),
        (["--seed", "1.5"], "not an integer"),
        (["--regex", ""], "an empty pattern"),
        (["--beams", "2000"], "2000 beams; expected at most"),
        (["--beams", "2", "--length-penalty", "1e308"], "length_penalty is 1e+308"),
        (["--beams", "2", "--stop", "x"], "2 beams with stop strings"),
    ],
)
def test_the_commands_mistakes(
    line: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(folder), "the cat", *line]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_many_at_once_are_what_each_is_alone(model: sl.Model) -> None:
    prompts = ["the cat", "the dog sat", "猫", "on the", "the cat"]
    options = {"temperature": 1.5, "seed": 4, "max_tokens": 12, "stop": ["t"]}
    result = model.generate_many(prompts, **options)
    assert [g.text for g in result] == [
        model.generate(prompt, **options).text for prompt in prompts
    ]
    assert [g.finish_reason for g in result] == [
        model.generate(prompt, **options).finish_reason for prompt in prompts
    ]
    assert [g.prompt_tokens for g in result] == [len(model.ids(prompt)) for prompt in prompts]
    assert model.generate_many([], max_tokens=3) == []


def test_beams_give_the_best_text_and_the_next(model: sl.Model) -> None:
    result = model.generate("the cat", beams=3, max_tokens=6, ignore_eos=True)
    assert result.score is not None
    assert result.score == pytest.approx(sum(result.logprobs) / 6, abs=1e-5)
    scores = [result.score, *(score for _, score in result.others)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    greedy = model.generate("the cat", max_tokens=6, ignore_eos=True)
    assert result.score >= sum(greedy.logprobs) / 6 - 1e-6


def test_a_form_is_kept_to_by_every_way_of_decoding(model: sl.Model) -> None:
    form = choice(["cat", "dog"])
    assert model.generate("the ", constraint=form).text in ("cat", "dog")
    assert model.generate("the ", constraint=form, ignore_eos=True).text in ("cat", "dog")
    assert all(
        g.text in ("cat", "dog")
        for g in model.generate_many(["a", "b"], constraint=form, temperature=2.0)
    )
    assert model.generate("the ", constraint=form, beams=2).text in ("cat", "dog")


BAD = [
    ({"temprature": 1.0}, "no option is called 'temprature'. Fix: did you mean 'temperature'"),
    ({"truncate": "right"}, "truncate is 'right'; expected left"),
    ({"stop": "END"}, "the stop strings are not a list"),
    ({"constraint": "a+"}, "the constraint is 'a\\+'; expected a Constraint"),
    ({"beams": 2, "stop": ["x"]}, "2 beams with stop strings"),
    ({"beams": 2, "temperature": 1.0}, "a beam search at temperature 1.0"),
    ({"beams": 2.0}, "beams is 2.0; expected an integer"),
    ({"beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
    ({"beams": 2, "constraint": choice(["a"]), "ignore_eos": True}, "no end token"),
    ({"max_tokens": 2.5}, "max_tokens is 2.5; expected an integer"),
    ({"max_tokens": "3"}, "max_tokens is '3'"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_options_that_cannot_be_obeyed_are_refused(
    model: sl.Model, options: dict[str, object], message: str
) -> None:
    with pytest.raises(sl.InputError, match=message):
        model.generate("the cat", **({"max_tokens": 5} | options))


def test_beams_are_refused_where_text_is_shown_as_it_comes(model: sl.Model) -> None:
    for ask in (lambda: model.stream("a", beams=2), lambda: model.generate_many(["a"], beams=2)):
        with pytest.raises(sl.InputError, match="a beam search, which is not known before its end"):
            ask()


def test_a_prompt_cut_on_the_left_still_leaves_room_for_an_answer(model: sl.Model) -> None:
    long = "the cat sat " * 100
    assert len(model.generate(long, truncate="left", ignore_eos=True).tokens) == 63
    assert len(model.generate(long, truncate="left", max_tokens=10, ignore_eos=True).tokens) == 10


def test_a_model_in_training_answers_without_dropout() -> None:
    torch.manual_seed(0)
    config = sl.bert(width=16, layers=1, heads=2, vocab_size=29, dropout=0.5)
    model = sl.Model(
        sl.build(config).train(), Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
    )
    assert torch.equal(model.embed(["abc"]), model.embed(["abc"]))
    assert model.transformer.training


def test_a_cache_of_inference_mode_goes_on_outside_it(model: sl.Model) -> None:
    cache, prompt = sl.Cache.growing(model.config), model.ids("the cat")
    list(model.stream("the cat", cache=cache, max_tokens=3, ignore_eos=True))
    cache.truncate(len(prompt))
    with torch.no_grad():
        step = model.transformer(torch.tensor([[7]]), cache=cache)
        assert torch.allclose(
            step, model.transformer(torch.tensor([[*prompt, 7]]))[:, -1:], atol=1e-5
        )


def test_nan_logits_end_a_beam_search_in_one_line(model: sl.Model) -> None:
    broken = sl.Model(copy.deepcopy(model.transformer), model.tokenizer)
    with torch.no_grad():
        next(broken.transformer.parameters()).fill_(torch.nan)
    with pytest.raises(sl.InputError, match="NaN logits"):
        broken.generate("the cat", beams=2, max_tokens=3)


def test_each_piece_says_where_its_token_looked(model: sl.Model) -> None:
    options = {"temperature": 2.0, "seed": 1, "max_tokens": 6, "ignore_eos": True}
    pieces, quiet = (
        list(model.stream("the cat", **options, trace=True)),
        list(model.stream("the cat", **options)),
    )
    assert [(piece.text, piece.event.token, piece.event.logprob) for piece in pieces] == [
        (piece.text, piece.event.token, piece.event.logprob) for piece in quiet
    ]
    assert {piece.trace for piece in quiet} == {None}
    read = model.ids("the cat")
    for piece in pieces:
        assert [token.id for token in piece.trace.tokens] == read
        whole = model.trace(read)
        for layer in range(2):
            torch.testing.assert_close(
                piece.trace.weights(layer, rows=-1),
                whole.weights(layer, rows=-1),
                atol=1e-5,
                rtol=0,
            )
        read.append(piece.event.token)
    assert len(pieces[0].trace.rows) == len(model.ids("the cat"))
    assert [list(piece.trace.rows) for piece in pieces[1:]] == [
        [len(piece.trace.tokens) - 1] for piece in pieces[1:]
    ]
