"""`sightline compare` as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import sightline as sl
from sightline.cli.main import main
from sightline.cli.ui.runs import read_run
from sightline.config.values import to_plain
from sightline.terminal.curves import Curve, draw_curves, frame_curves, line_dots

MODEL = sl.gpt(width=16, layers=1, heads=2, vocab_size=20, max_positions=8)


def run(at: Path, losses: list[float], *, every: int = 2) -> Path:
    """A run's folder with these losses at its steps, and a validation 0.5 above every second
    one."""
    at.mkdir()
    (at / "run.json").write_text(
        json.dumps({"recipe": "shakespeare", "settings": {}, "model": to_plain(MODEL)})
    )
    lines = list[dict[str, object]]()
    for step, loss in enumerate(losses, 1):
        lines.append({"kind": "step", "step": step, "loss": loss, "seconds": 30.0 * step})
        if step % every == 0:
            lines.append({"kind": "validation", "step": step, "loss": loss + 0.5, "best": True})
    (at / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return at


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [
        str(run(tmp_path / "a", [4, 3, 2.5, 2])),
        str(run(tmp_path / "b", [4, 3.5, 3, 1, 0.5, 0.25])),
    ]


def test_the_table(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[:3]]
    count = sum(p.numel() for p in sl.build(MODEL).parameters())
    assert rows[1] == [runs[0], "shakespeare", f"{count:,}", "4", "2:00", "2.5000", "at", "4"]
    assert rows[2] == [runs[1], "shakespeare", f"{count:,}", "6", "3:00", "0.7500", "at", "6", "*"]


def test_the_curves_are_those_of_the_metrics(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *runs, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [point["loss"] for point in result[0]["validation"]] == [3.5, 2.5]
    assert [point["seconds"] for point in result[1]["validation"]] == [60, 120, 180]
    assert [point["loss"] for point in result[1]["training"]] == [4, 3.5, 3, 1, 0.5, 0.25]
    smoothed = read_run(Path(runs[0])).smoothed
    assert smoothed[0].loss == 4
    assert smoothed[1].loss == pytest.approx((4 * 0.95 + 3) / 1.95)


def test_by_time_and_of_training(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs, "--by", "time", "--of", "training"]) == 0
    out = capsys.readouterr().out
    assert "training loss, nats" in out
    assert "3 minutes" in out
    assert f"A {runs[0]}" in out


def test_a_picture(
    runs: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("c.svg", "d.svg"):
        assert main(["compare", *runs, "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "c.svg").read_bytes() == (tmp_path / "d.svg").read_bytes()
    assert b"<svg" in (tmp_path / "c.svg").read_bytes()
    assert main(["compare", *runs, "--out", str(tmp_path / "c.xyz")]) == 2
    assert "not a figure format" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["compare", *runs, "--out", str(tmp_path / "e.svg")]) == 2
    assert (
        "matplotlib, which is not installed. Fix: pip install matplotlib" in capsys.readouterr().err
    )


def test_lines_go_from_corner_to_corner() -> None:
    curve = Curve("a", [(0, 1.0), (10, 0.0)])
    shown = frame_curves([curve], 11, 11)
    assert line_dots(curve, shown) == {(n, n) for n in range(11)}
    drawn = [
        line.plain
        for line in draw_curves(
            [curve, Curve("b", [(0, 0.0), (10, 1.0)])], width=40, colours=False, x_label="steps"
        )
    ]
    assert drawn[0][11] == "A"
    assert drawn[15][11] == "B"
    assert drawn[0].rstrip().endswith("B")
    assert drawn[0].startswith("   1.0000 │")
    dots = [line.plain for line in draw_curves([curve], width=40, colours=True, x_label="steps")]
    assert dots[0][11] == chr(0x2800 + 1) or dots[0][11] > chr(0x2800)


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("none", None, "none: has no run.json"),
        ("bad", "{", "run.json: cannot be read"),
        ("list", "[]", "run.json: cannot be read"),
    ],
)
def test_what_is_no_run(
    name: str, content: str | None, seen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    assert main(["compare", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert seen in captured.err
    assert main(["compare"]) == 2


def test_metrics_that_were_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path / "a", [4, 3])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 3, "loss": null}\n[]\n{"kind": "st')
    assert main(["compare", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[3] == "2"
    (folder / "metrics.jsonl").unlink()
    assert main(["compare", str(folder)]) == 0
