"""`sightline lab` as a user meets it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sightline.cli.main import main
from sightline.lab import catalogue
from tests.cli import terminal


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one experiment that takes no time, twice, stands for all."""
    one = catalogue.EXPERIMENTS["three-words"]
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"once": one, "twice": one})


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in result] == list(catalogue.EXPERIMENTS)
    assert all(one["claim"]["en"] and one["claim"]["ja"] and one["source"] for one in result)
    assert main(["lab", "list"]) == 0
    assert "softmax-saturation" in capsys.readouterr().out


def test_run_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert main(["lab", "run", "three-words", "--quick", "--seed", "107", "--json", *out]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(one["verdict"], one["seed"], one["complete"]) for one in result] == [
        ("supported", 107, True)
    ]
    assert (tmp_path / "three-words.svg").stat().st_size
    assert main(["lab", "report", str(tmp_path)]) == 0  # the seed that is there
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "sightline lab run all --quick --seed 107" in page
    assert (
        main(
            ["lab", "report", str(tmp_path), "--out", str(tmp_path / "lab.md"), "--language", "ja"]
        )
        == 0
    )
    assert "実験1件：支持される 1、支持されない 0、判定保留 0。" in (tmp_path / "lab.md").read_text(
        encoding="utf-8"
    )
    capsys.readouterr()
    assert main(["lab", "report", str(tmp_path), "--seed", "108"]) == 2
    assert (
        "with seed 108; expected results of `sightline lab run`. Fix: --seed 107"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("two")
def test_all_of_them_end_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "run", "all", "--quick", "--out", str(tmp_path / "a b")]) == 0
    end = capsys.readouterr().out.split("All experiments")[1]
    assert end.count("supported") == 2
    assert f"sightline lab report '{tmp_path / 'a b'}' --seed 100" in end


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "softmax-saturatoin"], "did you mean 'softmax-saturation'"),
        (["run", "three-words", "--quick", "--full"], "--quick and --full"),
        (["run", "three-words", "--seed", "7"], "the first seed is 7; expected 100 or more"),
        (["run", "three-words", "--minutes", "0"], "--minutes 0; expected more than 0"),
        (["runn"], "did you mean 'run'"),
        ([], "nothing to do"),
        (["report", "nowhere"], "no finished experiment in nowhere"),
        (["report", "--out", "/tmp"], "expected .html or .md. Fix: sightline lab report /tmp"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *words]) == 2
    captured = capsys.readouterr().err
    assert message in captured
    assert len(captured.strip().splitlines()) == 1


def test_a_broken_result_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "three-words.quick.seed-100.json"
    broken.write_text("{")
    assert main(["lab", "run", "three-words", "--quick", "--out", str(tmp_path)]) == 2
    assert f"rm {broken}" in capsys.readouterr().err


@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="only Linux tells when the workers start"
)
def test_ctrl_c_while_the_workers_start_prints_nothing_but_the_bar(tmp_path: Path) -> None:
    screen = terminal.Terminal(
        "lab", "run", "softmax-saturation", "--quick", "--out", str(tmp_path)
    )
    try:
        screen.wait("softmax-saturation")
        children = Path(f"/proc/{screen.process.pid}/task/{screen.process.pid}/children")
        while (
            len(children.read_text().split()) < 2
        ):  # multiprocessing's own helper, then the workers
            assert screen.read()
        time.sleep(0.2)  # they are importing
        screen.type("\x03")
        assert screen.end() == 130
    finally:
        screen.close()
    assert "Traceback" not in screen.screen
    assert "KeyboardInterrupt" not in screen.screen


def test_names_of_the_list_are_whole_on_a_narrow_terminal() -> None:
    _, raw = terminal.run("lab", "list", columns=40)
    assert [name for name in catalogue.EXPERIMENTS if name not in raw] == []
