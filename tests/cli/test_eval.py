"""`sightline eval` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

import sightline as sl
from sightline.cli.commands.train.eval import read_data
from sightline.cli.main import main
from sightline.cli.ui.runs import read_run
from sightline.errors import InputError
from sightline.tasks import evaluate, score
from tests.support.scored_folder import SIZE, TEXT, saved

PAIRS = [
    ("the cat", "the cat sat on the mat"),
    ("the dog", "the dog sat on the log"),
    ("猫", "猫がマットの上に座った。"),
]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("decoder"), sl.gpt(**SIZE))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(
        tmp_path_factory.mktemp("translator"),
        sl.encoder_decoder(**SIZE),
        decoder_start_token_id=5,
        eos_token_id=2,
    )


def written(at: Path, name: str, text: str) -> str:
    (at / name).write_bytes(text.encode())
    return str(at / name)


def test_a_text(decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(tmp_path, "text.txt", (TEXT + "\n") * 6)
    assert main(["eval", str(decoder), text, "--json", "--stride", "20", "--limit", "4"]) == 0
    result, expected = (
        json.loads(capsys.readouterr().out),
        sl.load(decoder).score("\n".join([TEXT] * 4), stride=20),
    )
    assert result["perplexity"] == pytest.approx(expected.perplexity)
    assert result["bits_per_byte"] == pytest.approx(expected.bits_per_byte)
    assert result["loss"] == pytest.approx(-expected.total / expected.scored)
    assert (result["done"], result["total"], result["complete"]) == (
        expected.scored,
        expected.scored,
        True,
    )
    assert main(["eval", str(decoder), text, "--stride", "20", "--limit", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"perplexity     {expected.perplexity:.4f}"
    assert lines[3] == f"measured       {expected.scored} of {expected.scored} tokens"


def test_pairs(translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = sl.load(translator)
    hypotheses = [model.translate(source, max_tokens=8, beams=2).text for source, _ in PAIRS]
    bleu = sacrebleu.corpus_bleu(hypotheses, [[target for _, target in PAIRS]], tokenize="char")
    data = written(tmp_path, "pairs.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    options = ["--tokenize", "char", "--max-tokens", "8", "--beams", "2"]
    assert main(["eval", str(translator), data, *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["bleu"] == pytest.approx(bleu.score)
    assert "tok:char" in result["bleu_signature"]
    assert [sample["translation"] for sample in result["samples"]] == hypotheses
    files = [
        written(tmp_path, f"{n}.txt", "".join(f"{pair[n]}\n" for pair in PAIRS)) for n in (0, 1)
    ]
    assert (
        main(["eval", str(translator), "--source", files[0], "--target", files[1], *options]) == 0
    )
    out = capsys.readouterr().out
    assert f"BLEU           {bleu.score:.2f}   nrefs:1|" in out
    assert f"translation    {hypotheses[0]}\n" in out
    assert out.endswith("measured       3 of 3 sentences\n")


def test_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(
        tmp_path, replace(sl.bert(**SIZE), head=sl.Classifier(labels=2, activation="tanh"))
    )
    model, texts = sl.load(folder), [TEXT[n : n + 12] for n in range(8)]
    with torch.no_grad():
        best = [
            int(
                model.transformer(torch.tensor([model.tokenizer.encode(text, special=True)]))[
                    0
                ].argmax()
            )
            for text in texts
        ]
    rows = [
        {"text": text, "label": id if n else 1 - id}
        for n, (text, id) in enumerate(zip(texts, best, strict=True))
    ]
    data = written(tmp_path, "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", str(folder), data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "accuracy": 7 / 8,
        "right": 7,
        "done": 8,
        "total": 8,
        "complete": True,
    }
    table = "\ufefftext,label\n" + "".join(
        f'"{row["text"]}",LABEL_{row["label"]}\n' for row in rows
    )
    assert main(["eval", str(folder), written(tmp_path, "rows.csv", table)]) == 0
    assert (
        capsys.readouterr().out == "accuracy       0.8750, 7 correct\nmeasured       8 of 8 rows\n"
    )


def interrupt(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, *, after: int) -> None:
    """Ctrl-C in the call that follows `after` calls."""
    real, calls = getattr(where, name), []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(where, name, counted)


def test_hidden_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = written(tmp_path, "lines.txt", "I drink a cup of tea.\n\nHe is taller than me.\nNo.\n")
    assert main(["eval", "bert-tiny", data, "--limit", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "right",
        "among",
        "loss",
        "perplexity",
        "measured",
    ]
    assert main(["eval", "bert-tiny", data, "--limit", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["accuracy"] < result["top_5"] <= 1
    assert result["total"] == result["done"] == 13
    assert (
        lines[0]
        == f"right          {result['accuracy']:.4f}, {round(result['accuracy'] * 13)} tokens"
    )
    assert main(["eval", "bert-tiny", written(tmp_path, "none.txt", "\n\n")]) == 2
    assert "nothing to hide" in capsys.readouterr().err


def test_ctrl_c_reports_what_was_translated(
    translator: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = written(tmp_path, "pairs.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    interrupt(monkeypatch, evaluate, "translate", after=2)
    with pytest.raises(SystemExit) as left:
        main(["eval", str(translator), data, "--max-tokens", "5"])
    assert left.value.code == 130
    out = capsys.readouterr().out
    assert "BLEU" in out
    assert out.endswith("measured       2 of 3 sentences: interrupted, the rest was not measured\n")


def test_ctrl_c_reports_what_was_scored(
    decoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, model = written(tmp_path, "text.txt", TEXT * 6), sl.load(decoder)
    whole = model.score(TEXT * 6)
    interrupt(monkeypatch, score, "target_logprobs", after=2)
    with pytest.raises(SystemExit):
        main(["eval", str(decoder), data, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["complete"], result["total"]) == (False, whole.scored)
    assert 0 < result["done"] < result["total"]
    begun = [logprob for logprob in whole.logprobs[1 : result["done"] + 1] if logprob is not None]
    assert result["loss"] == pytest.approx(-sum(begun) / len(begun))


def test_ctrl_c_before_anything_was_measured(
    decoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt(monkeypatch, score, "target_logprobs", after=0)
    with pytest.raises(SystemExit) as left:
        main(["eval", str(decoder), written(tmp_path, "text.txt", TEXT)])
    assert left.value.code == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            "one\ttwo\nthree\n",
            r"a.tsv, line 2: 1 columns; expected source, one tab, target",
        ),
        ("a.tsv", "one\ttwo\tthree\n", "3 columns"),
        ("a.tsv", "", "has no rows"),
        ("a.csv", "text,lable\na,b\n", "row 1: no text or no label"),
        ("a.csv", "text,label\na\n", "row 1: no text or no label"),
        ("a.csv", 'text,label\n"a', "a.csv, line 2: not CSV"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.jsonl", '{"text": "a", "label": 1}\n[]\n', "line 2: no JSON object"),
        ("a.jsonl", "{", "line 1: no JSON object"),
        ("a.jsonl", '{"text": 3, "label": 1}', "row 1: no text or no label"),
        ("a.jsonl", '{"source": "a", "target": 3}', "row 1: no source or no target"),
    ],
)
def test_data_that_cannot_be_read(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        read_data(Path(written(tmp_path, name, content)), None, None, limit=None)
    assert "\n" not in str(refusal.value)


def test_columns_determine_the_kind_of_data(tmp_path: Path) -> None:
    pairs = read_data(
        Path(written(tmp_path, "a.jsonl", '{"source": "a", "target": "b"}\n' * 3)),
        None,
        None,
        limit=2,
    )
    assert (pairs.kind, pairs.rows) == ("pairs", [("a", "b")] * 2)
    table = read_data(
        Path(written(tmp_path, "a.CSV", 'source,target\n"a, b",c\n')), None, None, limit=None
    )
    assert (table.kind, table.rows) == ("pairs", [("a, b", "c")])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "not one set of data"),
        (["x.txt", "--source", "y.txt"], "not one set of data"),
        (["none.txt"], "none.txt cannot be read as text"),
        (["x.tsv", "--tokenize", "chr"], "did you mean 'char'"),
        (["x.txt", "--limit", "0"], "--limit is 0"),
        (["--source", "x.txt", "--target", "x.tsv"], "x.txt has 2 lines"),
        (["x.tsv"], "translation with a decoder-only model"),
    ],
)
def test_mistakes(
    line: list[str],
    words: str,
    decoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "x.txt", "the cat\nthe dog\n")
    written(tmp_path, "x.tsv", "the cat\tthe dog\n")
    assert main(["eval", str(decoder), *line]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err


# ------------------------------------------------------------------------------------------- runs


def trained(at: Path, recipe: str, *settings: str) -> Path:
    assert (
        main(["train", recipe, "--set", *settings, "--threads", "1", "--out", str(at / "run")]) == 0
    )
    return at / "run"


def test_a_run_on_what_it_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    text = written(
        tmp_path, "text.txt", "The cat sat on the mat, and the dog on the log; 猫。\n" * 120
    )
    run = trained(
        tmp_path,
        "shakespeare",
        f"text={text}",
        "width=16",
        "layers=1",
        "heads=2",
        "context=16",
        "batch=2",
        "steps=2",
        "warmup=1",
    )
    capsys.readouterr()
    assert main(["eval", str(run), "--json"]) == 0
    result, model = json.loads(capsys.readouterr().out), sl.load(run)
    held = read_run(run).settings().job().task.held_out.ids.tolist()  # type: ignore[attr-defined]
    nats, size = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(held) - 16, 16):
            row = torch.tensor(held[at : at + 17])
            nats += float(
                torch.nn.functional.cross_entropy(
                    model.transformer(row[None, :-1])[0], row[1:], reduction="sum"
                )
            )
            size += len(model.tokenizer.decode(row[1:].tolist()).encode())  # type: ignore[union-attr]
    assert result["loss"] == pytest.approx(nats / result["targets"], rel=1e-4)
    assert result["bits_per_byte"] == pytest.approx(
        nats / torch.log(torch.tensor(2.0)).item() / size, rel=1e-3
    )
    assert result["targets"] == (len(held) - 1) // 16 * 16
    assert result["complete"]
    assert main(["eval", str(run), text, "--limit", "3"]) == 0


def test_a_translators_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(f"the cat sees {n} dogs .", f"die katze sieht {n} hunde .") for n in range(300)]
    data = written(tmp_path, "pairs.tsv", "".join(f"{a}\t{b}\n" for a, b in pairs))
    sizes = (
        "vocab=330",
        "width=16",
        "layers=1",
        "heads=2",
        "hidden=32",
        "batch=64",
        "steps=2",
        "warmup=1",
    )
    run = trained(tmp_path, "translate", f"pairs={data}", *sizes)
    capsys.readouterr()
    assert (
        main(["eval", str(run), "--max-tokens", "6", "--beams", "1", "--limit", "2", "--json"]) == 0
    )
    result, model = json.loads(capsys.readouterr().out), sl.load(run)
    hypotheses = [
        model.translate(source, max_tokens=6, beams=1).text for source, _ in pairs[:200:100]
    ]
    assert [sample["translation"] for sample in result["samples"]] == hypotheses
    assert [sample["reference"] for sample in result["samples"]] == [
        target for _, target in pairs[:200:100]
    ]
    assert result["bleu"] == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [[target for _, target in pairs[:200:100]]]).score
    )
    assert result["loss"] > 0
    Path(data).write_text("".join(f"{a}\t{b}\n" for a, b in pairs[:250]))
    assert main(["eval", str(run), "--max-tokens", "2", "--beams", "1", "--limit", "1"]) == 0
    assert "the data has changed since this run began" in capsys.readouterr().err
    Path(data).unlink()
    assert main(["eval", str(run)]) == 2
    assert "cannot be read" in capsys.readouterr().err
