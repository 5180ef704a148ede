"""Pilots choose the learning rates; the verdict sees fresh seeds only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sightline.cli.main import main
from sightline.errors import InputError
from sightline.lab import catalogue
from sightline.lab.executor import finding, run, steps
from sightline.lab.experiment import (
    Check,
    Experiment,
    ExperimentPart,
    Numbers,
    Plan,
    Tier,
    TunedRate,
    Words,
)
from sightline.lab.report import write_markdown
from sightline.lab.results import result_path
from sightline.lab.statistics import Interval, decide_below
from sightline.lab.style import new_figure
from sightline.lab.tuning import Grid, pilot_parts, rate_in, rate_text, tuned_rates

RATES = (1e-3, 3e-3, 1e-2)
BEST = {"a": 3e-3, "b": 3e-3}
CLAIM = Words("a is better than b", "a は b より良い")


def measured(arm: str, rate: float, seed: int, best: Mapping[str, float]) -> dict[str, Any]:
    """A parabola over the rates, with a little noise of the seed."""
    loss = abs(RATES.index(rate) - RATES.index(best[arm])) + 0.1 * (seed * 7 % 5)
    return {"score": loss, "loss": loss - (0.3 if arm == "a" else 0.0)}


def experiment(
    calls: list[str], best: Mapping[str, float] = BEST, *, lead: float = 0.3, name: str = "tuned"
) -> Experiment:
    """Two arms; the first is better by `lead`, give or take the noise of its seeds."""

    def pilots(tier: Tier) -> Sequence[ExperimentPart]:
        grid = Grid(("a", "b"), RATES, 2)
        return pilot_parts(
            grid, lambda *key: calls.append(f"pilot {key}") or measured(*key, best=best)
        )

    def parts(plan: Plan) -> Sequence[ExperimentPart]:
        return [
            ExperimentPart(
                f"run.{arm}.rate-{plan.rate(arm):g}.seed-{n}",
                lambda arm=arm, n=n: (
                    calls.append(f"run {arm} {n}")
                    or {"loss": (0.0 if arm == "b" else -lead) + (n * 13 % 7) / 10 * (arm == "a")}
                ),
            )
            for n in plan.seeds(3)
            for arm in ("a", "b")
        ]

    def judge(numbers: Numbers) -> Sequence[Check]:
        losses = {
            arm: [row["loss"] for name, row in numbers.items() if name.startswith(f"run.{arm}.")]
            for arm in ("a", "b")
        }
        gap = Interval.of([a - b for a, b in zip(losses["a"], losses["b"], strict=True)])
        return [Check.over_seeds(CLAIM, f"a − b: {gap}", decide_below(gap, 0.0))]

    def draw(numbers: Numbers) -> Mapping[str, Any]:
        figure, (axes,) = new_figure()
        axes.plot([row["loss"] for row in numbers.values()])
        return {"tuned": figure}

    return Experiment(
        name=name,
        title=CLAIM,
        claim=CLAIM,
        source="nobody",
        equation="a < b",
        look_for=CLAIM,
        pilots=pilots,
        parts=parts,
        judge=judge,
        draw=draw,
        settle=12,
    )


def test_the_rate_with_the_best_mean_is_chosen() -> None:
    rows = {
        "pilot.a.rate-0.001.width-8.seed-0": {"score": 1.0},
        "pilot.a.rate-0.001.width-8.seed-1": {"score": 3.0},
        "pilot.a.rate-0.003.width-8.seed-0": {"score": 1.9},
        "pilot.a.rate-0.003.width-8.seed-1": {"score": 1.9},
        "pilot.a.rate-0.01.width-8.seed-0": {"score": 0.1},
        "pilot.a.rate-0.01.width-8.seed-1": {"score": None},  # it diverged
        "pilot.b.rate-1e-05.seed-0": {"score": 1.0},
        "pilot.b.rate-0.1.seed-0": {"score": 2.0},
        "run.a.rate-0.01.seed-100": {"score": 0.0},
    }
    result = tuned_rates(rows)
    assert result["a"] == TunedRate(
        "a", 0.003, False, ((0.001, 2.0), (0.003, 1.9), (0.01, float("inf")))
    )
    assert (result["b"].rate, result["b"].at_edge) == (1e-5, True)
    assert [rate_in(text) for text in ("0.003.width-8", "1e-05.seed-0", "3.steps-9", "2")] == [
        0.003, 1e-5, 3.0, 2.0,
    ]  # fmt: skip
    assert (
        rate_text(result, {"a": Words("Pre-LN", "前置")}).ja
        == "前置 0.003, b 1e-05（1e-05 … 0.1 から）"
    )
    with pytest.raises(InputError, match="expected at least 3"):
        Grid(("a",), (1e-3, 1e-2), 2)


def test_pilots_run_first_once_and_are_never_judged(tmp_path: Path) -> None:
    calls: list[str] = []
    one = experiment(calls)
    names = [step.part for step in steps(one, tmp_path, seed=100)]
    assert len(names) == 12 + 6
    assert all(name.startswith("pilot.") for name in names[:12])
    assert set(names[12:]) == {
        f"run.{arm}.rate-0.003.seed-{n}" for arm in "ab" for n in (100, 101, 102)
    }
    calls.clear()
    list(steps(one, tmp_path, seed=1000))
    assert not [call for call in calls if call.startswith("pilot")]  # the first run's are used
    assert len(calls) == 6
    result = finding(one, tmp_path, seed=1000)
    assert result is not None
    assert (result.seeds, result.complete, result.at_edge) == (3, True, [])
    assert result.rates["a"].rate == 0.003
    with pytest.raises(InputError, match=r"the first seed is 5; expected 100 or more"):
        run_here(one, tmp_path, 5)


def run_here(one: Experiment, folder: Path, seed: int) -> None:
    list(steps(one, folder, seed=seed))


def test_a_best_rate_at_the_edge_leaves_it_undecided(tmp_path: Path) -> None:
    one = experiment([], {"a": 1e-2, "b": 3e-3}, lead=5.0)
    list(steps(one, tmp_path))
    result = finding(one, tmp_path)
    assert result is not None
    assert result.at_edge == ["a"]
    assert [check.holds for check in result.checks] == [True]
    assert result.verdict == "inconclusive"
    text = write_markdown([result], tmp_path / "page.md").read_text(encoding="utf-8")
    assert "Tuned learning rates: a 0.01, b 0.003 (of 0.001 … 0.01); at the edge" in text


def test_an_undecided_check_says_how_many_seeds_would_decide_it_and_settle_measures_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    one = experiment(calls, lead=0.55)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"tuned": one})
    monkeypatch.setattr("sightline.lab.executor.EXPERIMENTS", {})  # in this process
    out = ["--out", str(tmp_path)]
    monkeypatch.setattr("sightline.lab.executor.find_experiment", lambda name: one)
    assert main(["lab", "run", "tuned", "--json", *out]) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "inconclusive"
    assert result["rates"]["a"]["rate"] == 0.003
    [check] = result["checks"]
    assert check["seeds"] == 3
    assert check["seeds_needed"] > 3
    assert main(["lab", "run", "tuned", *out]) == 0
    assert f"3 seeds measured; about {check['seeds_needed']} decide it" in " ".join(
        capsys.readouterr().out.split()
    )
    calls.clear()
    assert main(["lab", "run", "tuned", "--settle", "--json", *out]) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert len(calls) == 2 * (12 - 3)  # what was measured is used
    assert result["checks"][0]["seeds"] == 12
    assert result["verdict"] == "supported"
    again = finding(one, tmp_path)
    assert again is not None
    assert again.seeds == 12


def test_a_time_budget_ends_between_two_parts_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    one = experiment(calls)
    monkeypatch.setattr("sightline.lab.executor.EXPERIMENTS", {})
    monkeypatch.setattr("sightline.lab.executor.find_experiment", lambda name: one)
    assert main(["lab", "run", "tuned", "--minutes", "1e-9", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "the time is over; run it again to continue" in captured.err
    assert len(calls) == 1
    assert result_path(tmp_path, "tuned", "default", 0).is_file()


def test_python_settles_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = experiment([], lead=0.55)
    monkeypatch.setattr("sightline.lab.executor.EXPERIMENTS", {"tuned": one})
    monkeypatch.setattr(
        "sightline.lab.executor.measure_in_parallel", lambda e, parts, plan: map_parts(parts)
    )
    assert run("tuned", out=tmp_path, settle=True).seeds == 12


def map_parts(parts: Sequence[ExperimentPart]) -> list[tuple[str, Any, float]]:
    return [(part.name, part.measure(), 0.0) for part in parts]
