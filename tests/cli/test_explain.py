"""`sightline explain` as a user meets it: what it prints, what it says to mistakes, and the pages
that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

import sightline as sl
from sightline.cli import main as commands
from sightline.cli.main import guard, main
from sightline.config.values import write

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "models"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A real process, with a pipe for its output."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")
    }
    command = [sys.executable, "-m", "sightline.cli.main", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=clean | environment,
        check=False,
    )


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that works prints."""
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


# ----------------------------------------------------------------------------------- what it says


def test_a_model_on_a_pipe_is_plain_text() -> None:
    done = run("explain", "gpt2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("gpt2   124,439,808 parameters\n")
    assert "q = LN₁(x) W_Q + b_Q" in done.stdout


def test_colour_is_asked_for_and_refused() -> None:
    assert "\x1b[" in run("explain", "gpt2", FORCE_COLOR="1").stdout
    assert "\x1b[3" not in run("explain", "gpt2", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_width_follows_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, output(capsys, "explain", "gpt2").splitlines())) <= 70


def test_lengths_change_shapes_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(
        output(
            capsys,
            "explain",
            "t5-small",
            "--time",
            "64",
            "--source",
            "32",
            "--batch",
            "4",
            "--json",
        )
    )
    assert (plain["time"], plain["source"], plain["batch"]) == (64, 32, 4)
    assert (plain["letters"]["T"], plain["letters"]["S"]) == (64, 32)
    assert plain["flops"]["six_n_d"] == 6 * 60_506_624 * 4 * 64


@pytest.mark.parametrize("name", ["model.json", "model.toml"])
def test_a_file_is_explained_as_the_model_it_describes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sl.llama(width=32, layers=3, heads=4, kv_heads=2, vocab_size=50)
    write(config, tmp_path / name)
    plain = json.loads(output(capsys, "explain", str(tmp_path / name), "--json"))
    assert plain["name"] == "model"
    assert plain["parameters"]["total"] == sum(
        parameter.numel() for parameter in sl.build(config).parameters()
    )


def test_attention_on_three_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "--attention")
    for row in ("0.396", "0.324", "0.279", "0.313", "0.380", "0.307", "0.277", "0.315", "0.408"):
        assert row in text
    assert "s = q kᵀ / √d_k" in text
    plain = json.loads(output(capsys, "explain", "--attention", "--json"))
    assert plain["words"] == ["I", "love", "Transformers"]
    assert [sum(row) for row in plain["steps"]["weights"]["rows"]] == pytest.approx([1, 1, 1])
    assert "| I | 0.396 | 0.324 | 0.279 |" in output(capsys, "explain", "--attention", "--markdown")


def test_one_block_with_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "--block", "gpt2", "--numbers")
    assert text == output(capsys, "explain", "gpt2", "--block", "--numbers", "--seed", "0")
    assert text != output(capsys, "explain", "gpt2", "--block", "--numbers", "--seed", "1")
    assert "A_i = softmax(S_i + M)   [h, N, N] = 2 × 4 × 4" in text
    plain = json.loads(output(capsys, "explain", "--block", "gpt2", "--numbers", "--json"))
    assert (plain["name"], plain["seed"], plain["letters"]["N"]) == ("gpt2", 0, 4)
    page = output(capsys, "explain", "--block", "gpt2", "--numbers", "--markdown")
    assert page.startswith("# gpt2: one block with numbers, seed 0\n")


def test_one_block_at_its_real_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "--block", "gpt2")
    assert "N = 1,024   d = 768   h = 12   d_k = d_v = 64   d_ff = 3,072" in text
    assert "12 × 1024 × 1024" in text
    assert "12 × 16 × 16" in output(capsys, "explain", "--block", "gpt2", "--time", "16")


def test_a_block_on_a_narrow_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = output(capsys, "explain", "--block", "gpt2", "--numbers").splitlines()
    assert max(map(cell_len, lines)) <= 80


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "--list")
    assert all(name in text for name in sl.PUBLISHED)
    assert "6,738,415,616" in text
    models = json.loads(output(capsys, "explain", "--list", "--json"))
    assert {model["name"]: model["parameters"] for model in models}["t5-small"] == 60_506_624


def test_version_and_help_are_quick_and_without_torch() -> None:
    assert run("--version").stdout == f"{sl.__version__}\n"
    start = time.perf_counter()
    done = run("--help")
    assert (
        time.perf_counter() - start < 2.0
    )  # a loaded machine; alone it takes a quarter of a second
    assert all(name in done.stdout for name in commands.COMMANDS)
    code = "import sys; from sightline.cli.main import main; main(['--help']); main(['explain', 'gpt2']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --------------------------------------------------------------------------------------- mistakes

NOTHING = "nothing to explain; expected a model's name, a .json or .toml file, --list or --attention. Fix: sightline explain gpt2"
MISTAKES = {
    "explain": NOTHING,
    "explain --json": NOTHING,
    "explian": "no command is called 'explian'. Fix: did you mean 'explain'?",
    "--nope": "no option is called '--nope'. Fix: use one of --help, --install-completion, --version, -h",
    "explain gpt": "no model is called 'gpt'; expected a published model, a checkpoint, or a .json or .toml file. Fix: did you mean 'gpt2'?",
    "explain GPT2-XL": "no model is called 'GPT2-XL'; expected a published model, a checkpoint, or a .json or .toml file. Fix: did you mean 'gpt2-xl'?",
    "explain nowhere.json": "cannot read nowhere.json: No such file or directory. Fix: check the path",
    "explain gpt2 --tim 4": "Unknown option: --tim. Fix: did you mean --time?",
    "explain gpt2 --time many": "Invalid value for --time: 'many' is not an integer. Fix: see sightline explain --help",
    "explain gpt2 --batch 1.5": "Invalid value for --batch: '1.5' is not an integer. Fix: see sightline explain --help",
    "explain gpt2 --time": 'Command "explain" parameter --time requires an argument. Fix: see sightline explain --help',
    "explain gpt2 bert-base": "too many arguments: bert-base. Fix: see sightline explain --help",
    "explain gpt2 --time 0": "time is 0; expected 1 or more. Fix: time 1, or leave it out",
    "explain gpt2 --json --markdown": "--json and --markdown together; expected one form. Fix: leave one of them out",
    "explain --block": "--block without a model. Fix: sightline explain --block gpt2 --numbers",
    "explain gpt2 --numbers": "--numbers or --seed without --block. Fix: sightline explain --block gpt2 --numbers",
    "explain gpt2 --block --seed 2": "--seed without --numbers. Fix: sightline explain --block gpt2 --numbers --seed 2",
    "explain gpt2 --block --batch 2": "--source or --batch with --block. Fix: leave them out",
    "explain gpt2 --block --numbers --time 8": "--time with --numbers; expected 4 tokens. Fix: leave --time or --numbers out",
    "explain gpt2 --block --time 2000": "2000 tokens for a table of 1024 learned positions; expected time up to 1024."
    " Fix: time 1024, or leave it out",
    "explain --list --time 4": "--time, --source or --batch without a model. Fix: sightline explain gpt2 --time 512",
    "explain gpt2 --list": "more than one thing to explain; expected a model's name, a .json or .toml file, --list or --attention."
    " Fix: sightline explain gpt2",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {MISTAKES[line]}\n"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "is not JSON"),
        ("[]", "ModelConfig is []; expected a table of fields"),
        ('{"decodr": {}}', "ModelConfig has no field 'decodr'. Fix: did you mean 'decoder'?"),
        ("[" * 100_000, "is not JSON"),
        ("\x00\x1b[2J", "is not JSON"),
    ],
)
def test_a_bad_file_is_one_line_too(
    text: str, seen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    assert main(["explain", str(path)]) == 2
    err = capsys.readouterr().err
    assert seen in err
    assert err.count("\n") == 1


def test_a_name_with_a_newline_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a\nb\x1b[31m.txt"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_traceback_from_a_real_process() -> None:
    done = run("explain", "gpt")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_control_c_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    assert guard(stop) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name != "posix", reason="pipes of a shell")
def test_a_closed_pipe_and_a_full_disk_are_quiet() -> None:
    python = f"{sys.executable} -m sightline.cli.main"
    piped = subprocess.run(
        ["bash", "-c", f"{python} explain gpt2 --json | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert piped.stderr == ""
    full = subprocess.run(
        ["bash", "-c", f"{python} explain gpt2 > /dev/full"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (full.returncode, full.stderr) == (
        1,
        "error: cannot write the result: No space left on device\n",
    )
    closed = subprocess.run(
        ["bash", "-c", f"{python} explain gpt2 >&-"], capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_terminal_without_unicode_still_gets_its_answer() -> None:
    done = run("explain", "gpt2", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "124,439,808 parameters" in done.stdout


# ------------------------------------------------------------------------------------------ pages


@pytest.mark.parametrize("name", sl.PUBLISHED)
def test_pages_are_what_the_command_writes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert page == output(capsys, "explain", name, "--markdown"), (
        f"run: sightline explain {name} --markdown > docs/models/{name}.md"
    )


def test_the_index_and_no_page_of_a_model_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert index == output(capsys, "explain", "--list", "--markdown"), (
        "run: sightline explain --list --markdown > docs/models/index.md"
    )
    assert {path.stem for path in PAGES.glob("*.md")} == {"index", *sl.PUBLISHED}
