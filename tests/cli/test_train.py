"""`sightline train` as a user meets it: tiny runs, from the command line to the files."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from safetensors.torch import load_file

import sightline as sl
from sightline.cli.main import main
from sightline.cli.ui.signals import Stopping
from sightline.cli.ui.training_view import LogView, clock
from sightline.recipes import RECIPES
from tests.cli import terminal
from tests.cli.forked import Forked, wait

TINY = [
    "vocab=400",
    "width=16",
    "layers=1",
    "heads=2",
    "hidden=32",
    "batch=128",
    "warmup=2",
    "eval_every=4",
    "save_every=4",
]
SUBJECTS = {
    "the cat": "die katze",
    "a dog": "ein hund",
    "my friend": "mein freund",
    "the man": "der mann",
}
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet"}
OBJECTS = {"the sea": "das meer", "a fish": "einen fisch", "the house": "das haus"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield None
    torch.set_num_threads(before)


def written(at: Path) -> list[str]:
    """Two files of sentences, as settings."""
    rows = [
        (f"{s} {v} {o} .", f"{SUBJECTS[s]} {VERBS[v]} {OBJECTS[o]} .")
        for s in SUBJECTS
        for v in VERBS
        for o in OBJECTS
    ] * 6
    for name, side in (("source", 0), ("target", 1)):
        (at / f"{name}.txt").write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    return [f"source={at / 'source.txt'}", f"target={at / 'target.txt'}"]


def line(at: Path, *more: str, out: str = "run", steps: int = 8) -> list[str]:
    return [
        "train",
        "translate",
        "--set",
        *written(at),
        *TINY,
        f"steps={steps}",
        "--out",
        str(at / out),
        *more,
    ]


# -------------------------------------------------------------------------------------- it trains


def test_a_run_and_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(tmp_path)) == 0
    captured, run = capsys.readouterr(), tmp_path / "run"
    model = sl.load(run)
    assert sum(p.numel() for p in model.transformer.parameters()) > 0
    assert {path.name for path in run.iterdir()} >= {
        "run.json",
        "metrics.jsonl",
        "checkpoints",
        "model",
    }
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    best = min(output["loss"] for output in lines if output["kind"] == "validation")
    assert f"validation  {best:.4f} nats at step 8, perplexity {math.exp(best):.4g}" in captured.out
    assert f'try         sightline translate {run} "…"' in captured.out
    assert (
        f"translation  {model.translate(captured.out.split('source       ')[1].splitlines()[0]).text}"[
            :60
        ]
        in captured.out
    )
    count = sum(p.numel() for p in model.transformer.parameters())
    for words in (
        f"parameters  {count:,}",
        "213 pairs with",
        "3 held out, fingerprint",
        "vectors: ",
        "Muon, lr 0.02",
        f"into {run}",
        "cpu, 1 thread",
    ):
        assert words in captured.err
    assert main(["translate", str(run), "the cat sees the sea ."]) == 0


def test_events_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(tmp_path, "--json")) == 0
    captured = capsys.readouterr()
    result = [json.loads(text) for text in captured.out.splitlines()]
    assert result[0]["kind"] == "begin"
    assert [one["step"] for one in result if one["kind"] == "step"] == list(range(1, 9))
    assert [one["step"] for one in result if one["kind"] == "validation"] == [4, 8]
    assert result[-1]["kind"] == "end"
    assert result[-1]["best"] == min(one["loss"] for one in result if one["kind"] == "validation")
    metrics = [
        json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [one["loss"] for one in result if one["kind"] == "step"] == [
        one["loss"] for one in metrics if one["kind"] == "step"
    ]


def test_again_resumes_and_overwrite_starts_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line(tmp_path)) == 0
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert main(line(tmp_path)) == 0
    assert "resumed at step 8" in capsys.readouterr().err
    assert main(line(tmp_path, "--resume", "never")) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main(line(tmp_path, "--overwrite")) == 0
    assert "resumed" not in capsys.readouterr().err
    again = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_settings_from_a_file_and_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = dict(word.split("=") for word in (*written(tmp_path), *TINY))
    quoted = [
        f"{name} = {value if value.isdecimal() else json.dumps(value)}"
        for name, value in settings.items()
    ]
    (tmp_path / "a.toml").write_text(
        "\n".join([*quoted, "steps = 99", "lr = 0.01"]), encoding="utf-8"
    )
    assert (
        main(["train", "translate", "--config", "a.toml", "--set", "steps=2", "--set", "seed=3"])
        == 0
    )
    output = json.loads((tmp_path / "runs" / "translate" / "run.json").read_text())
    assert output["recipe"] == "translate"
    assert {name: output["settings"][name] for name in ("steps", "seed", "lr", "width")} == {
        "steps": 2,
        "seed": 3,
        "lr": 0.01,
        "width": 16,
    }


def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "list"]) == 0
    out = capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    helped = capsys.readouterr().out
    for name, recipe in RECIPES.items():
        assert f"\n{name}: " in out
        assert name in helped
        assert f"steps={recipe.defaults()['steps']}" in out


def test_a_language_model_writes_a_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(
        "The cat sat on the mat and looked at the sea.\n" * 200, encoding="utf-8"
    )
    sizes = ["width=16", "layers=1", "heads=2", "context=32", "batch=2", "steps=4", "warmup=1"]
    assert (
        main(
            [
                "train",
                "shakespeare",
                "--set",
                f"text={tmp_path / 'a.txt'}",
                *sizes,
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    best = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
    assert "bits per character" in out
    assert float(out.split(" bits per character")[0].split()[-1]) == pytest.approx(
        best / math.log(2), rel=5e-3
    )
    assert f'sightline generate {tmp_path / "run"} "…"' in out
    assert len(out.splitlines()) > 5


# ---------------------------------------------------------------------------------------- dry run


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(tmp_path, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert "decoder.cross_attention" in out
    assert main(line(tmp_path, "--dry-run", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "run").exists()
    assert sum(result["parts"].values()) == result["parameters"]
    assert main(line(tmp_path)) == 0
    files = (tmp_path / "run" / "checkpoints" / "step-00000008").glob("*.safetensors")
    assert sum(path.stat().st_size for path in files) == pytest.approx(
        result["checkpoint"], rel=0.2
    )


# ---------------------------------------------------------------------------------- interruptions


def child(arguments: list[str], **options: object) -> subprocess.Popen[bytes]:
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from sightline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stderr=subprocess.PIPE, **options
    )  # type: ignore[call-overload]


def has_steps(run: Path) -> bool:
    """Whether the first ones are written."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.read_text().count("\n") > 4


def interrupted(arguments: list[str], run: Path, number: signal.Signals) -> str:
    """What is said last."""
    process = Forked(arguments)
    wait(lambda: process.poll() is not None or has_steps(run), 120)
    if process.poll() is None:
        os.kill(process.pid, number)
    output = process.end()
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    return output.splitlines()[-1]


@pytest.mark.usefixtures("as_users_run_it")
def test_an_interrupted_and_resumed_run_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seldom = ("--set", "eval_every=50", "save_every=50")
    last = interrupted(line(tmp_path, *seldom, out="a", steps=100), tmp_path / "a", signal.SIGINT)
    assert last.startswith("stopped by Ctrl-C at step ")
    assert f"--out {tmp_path / 'a'}" in last
    stopped = last.split("step ")[1].split(";")[0]
    for out in ("a", "b"):
        assert main(line(tmp_path, *seldom, out=out, steps=100)) == 0
    assert f"resumed at step {stopped}" in capsys.readouterr().err
    for name in ("model.safetensors", "optimizer.safetensors", "ema.safetensors"):
        a, b = (
            load_file(tmp_path / out / "checkpoints" / "step-00000100" / name) for out in ("a", "b")
        )
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.usefixtures("as_users_run_it")
def test_sigterm_saves(tmp_path: Path) -> None:
    last = interrupted(line(tmp_path, out="a", steps=3000), tmp_path / "a", signal.SIGTERM)
    assert last.startswith("stopped by SIGTERM at step ")
    assert list((tmp_path / "a" / "checkpoints").glob("step-*"))


def test_the_reader_of_the_json_may_go_away(tmp_path: Path) -> None:
    process = child(line(tmp_path, "--json", out="a", steps=3000), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b'{"kind": "begin"')
    process.stdout.close()
    output = process.stderr.read().decode() if process.stderr is not None else ""
    assert process.wait(timeout=60) == 141, output
    assert "Traceback" not in output
    assert list((tmp_path / "a" / "checkpoints").glob("step-*"))


def test_a_second_signal_does_not_wait() -> None:
    with Stopping() as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.requested
        assert stopping.code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_view_that_cannot_write_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    view = LogView()
    view.write(["something"])
    assert view.silent
    view.write(["more"])


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 125, 3725, math.inf)] == [
        "0:00",
        "1:00",
        "2:05",
        "1:02:05",
        "?",
    ]


# --------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ([], "no recipe was named; expected one of "),
        (["translat"], "did you mean 'translate'?"),
        (
            ["translate", "--set", "stesp=3"],
            "no setting is called 'stesp'. Fix: did you mean 'steps'?",
        ),
        (["translate", "--set", "steps"], "'steps' is not a setting; expected NAME=VALUE"),
        (
            ["translate", "--set", "lr=nan"],
            "lr is 'nan'; expected a finite number. Fix: --set lr=0.02",
        ),
        (["translate", "--set", "lr=inf"], "lr is 'inf'"),
        (["translate", "--set", "lr=-1"], "lr is -1.0; expected a"),
        (["translate", "--set", "batch=0"], "batch is 0; expected an integer"),
        (["translate", "--set", "steps=1e99"], "steps is '1e99'; expected an integer"),
        (["translate", "--set", "steps=abc"], "steps is 'abc'; expected an integer"),
        (["translate", "--set", "steps=1.5"], "steps is '1.5'; expected an integer"),
        (["translate", "--set", "steps=0"], "steps is 0"),
        (["translate", "--set", "join=perhaps"], "expected true or false. Fix: --set join=false"),
        (["translate", "--set", "schedule=cosin"], "expected one of cosine, linear"),
        (["translate"], "no pairs to learn from"),
        (
            ["translate", "--set", "source=none.txt", "target=none.txt"],
            "source=none.txt: cannot be read (No such file or directory)",
        ),
        (
            ["translate", "--set", "source=empty.txt", "target=empty.txt"],
            "source=empty.txt: is empty",
        ),
        (["translate", "--set", "source=binary.txt", "target=binary.txt"], "binary.txt"),
        (["shakespeare", "--set", "text=none.txt"], "text=none.txt: cannot be read"),
        (["shakespeare", "--set", "text=empty.txt"], "text=empty.txt: is empty"),
        (["shakespeare", "--set", "text=binary.txt"], "binary.txt"),
        (["shakespeare", "--set", "text=/dev/zero"], "is a device or a pipe"),
        (["translate", "--config", "none.toml"], "none.toml: cannot be read"),
        (["translate", "--config", "bad.toml"], "bad.toml: is not TOML"),
        (["translate", "--threads", "0"], "--threads is 0"),
        (["translate", "--sett", "a=1"], "did you mean --set?"),
    ],
)
def test_mistakes(
    words: list[str],
    seen: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "cache"))
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "bad.toml").write_text("steps = = 3")
    assert main(["train", *words]) == 2
    refused(capsys, seen)
    assert not (tmp_path / "runs").exists()


def refused(capsys: pytest.CaptureFixture[str], *seen: str) -> None:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    for words in seen:
        assert words in captured.err


def test_a_folder_with_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(tmp_path, steps=2)) == 0
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    other = [word.replace("width=16", "width=32") for word in line(tmp_path, steps=2)]
    assert main(other) == 2
    refused(capsys, "width", "--overwrite")
    assert main([*line(tmp_path, steps=2), "--set", "seed=5"]) == 2
    refused(capsys, "--out")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="a folder in which nobody may write")
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([word if word != str(tmp_path / "run") else "/proc/run" for word in line(tmp_path)])
        == 2
    )
    refused(capsys, "/proc/run: cannot be written")
    (tmp_path / "file").write_text("x")
    assert main(line(tmp_path, out="file/run")) == 2
    refused(capsys, "cannot be written")


def test_a_tracker_that_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert main(line(tmp_path, "--track", "trackio")) == 2
    refused(capsys, "trackio is not installed. Fix: pip install trackio")


def test_the_list_on_a_narrow_terminal_keeps_settings_indented() -> None:
    code, raw = terminal.run("train", "list", columns=40)
    assert code == 0
    lines = terminal.visible(raw).splitlines()
    assert max(map(cell_len, lines)) <= 40
    assert any(line.startswith("  steps=") for line in lines)
    assert [line for line in lines if re.match(r"\w+=", line)] == []


def test_a_vocabulary_that_is_too_large_is_mended_by_a_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("a few words, and a few more. " * 40, encoding="utf-8")
    words = [f"text={tmp_path / 'text.txt'}", "width=16", "layers=1", "heads=2", "steps=1"]
    line = ["train", "bert-tiny", "--dry-run", "--set", *words]
    assert main(line) == 2
    fix = re.search(r"Fix: --set (vocab=\d+)$", capsys.readouterr().err.strip())
    assert fix is not None
    assert main([*line, fix[1]]) == 0
