"""An experiment is measured once, judged from its numbers alone, and survives being stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sightline.errors import InputError
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import finding, run, steps
from sightline.lab.experiment import (
    FIRST_SEED,
    Check,
    Experiment,
    ExperimentPart,
    Numbers,
    Plan,
    TunedRate,
    Words,
    verdict_of,
)
from sightline.lab.report import write_html, write_markdown
from sightline.lab.results import read_result, result_path, write_result
from sightline.lab.style import has_japanese_font, new_figure, save_figure

SAID = Words("the sum is six", "和は6")


def counting(calls: list[str], *, limit: float = 6) -> Experiment:
    """Three parts, each one number."""

    def parts(plan: Plan) -> Sequence[ExperimentPart]:
        return [
            ExperimentPart(
                f"part-{n}", lambda n=n: calls.append(str(n)) or {"value": n, "none": float("nan")}
            )
            for n in (1, 2, 3)
        ]

    def judge(numbers: Numbers) -> Sequence[Check]:
        total = sum(row["value"] for row in numbers.values())
        return [Check(SAID, total == limit, str(total))]

    def draw(numbers: Numbers) -> Mapping[str, object]:
        made, (axes,) = new_figure()
        axes.plot([row["value"] for row in numbers.values()])
        return {"counting": made}

    return Experiment(
        name="counting",
        title=SAID,
        claim=SAID,
        source="nobody",
        equation="1 + 2 + 3 = 6",
        look_for=SAID,
        parts=parts,
        judge=judge,
        draw=draw,
    )


def test_parts_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    calls: list[str] = []
    experiment = counting(calls)
    running = steps(experiment, tmp_path)
    next(running)
    next(running)
    running.close()  # stopped between two parts
    actual = finding(experiment, tmp_path)
    assert actual is not None
    assert (actual.complete, actual.verdict, actual.checks) == (False, "inconclusive", ())
    assert [step.resumed for step in steps(experiment, tmp_path)] == [True, True, False]
    assert calls == ["1", "2", "3"]
    actual = finding(experiment, tmp_path)
    assert actual is not None
    assert (actual.complete, actual.verdict) == (True, "supported")
    assert actual.numbers["part-1"] == {"value": 1, "none": None}
    assert set(actual.versions) == {"sightline", "torch", "numpy", "python", "threads"}


def test_the_verdict_is_computed_from_the_numbers(tmp_path: Path) -> None:
    experiment = counting([])
    list(steps(experiment, tmp_path))
    path = result_path(tmp_path, "counting", "default", FIRST_SEED)
    result = read_result(path)
    result.parts["part-3"]["value"] = 4
    write_result(path, result)
    actual = finding(experiment, tmp_path)
    assert actual is not None
    assert actual.verdict == "not supported"


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ((True, True), "supported"),
        ((True, None), "inconclusive"),
        ((None, False), "not supported"),
        ((), "inconclusive"),
    ],
)
def test_the_rule(holds: tuple[bool | None, ...], verdict: str) -> None:
    assert verdict_of([Check(SAID, one, "") for one in holds]) == verdict


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"form": 2}', '{"form": 1, "tier": "slow", "parts": {}}']
)
def test_a_broken_result_is_named_with_the_fix(text: str, tmp_path: Path) -> None:
    result_path(tmp_path, "counting", "default", FIRST_SEED).write_text(text)
    for use in (
        lambda: list(steps(counting([]), tmp_path)),
        lambda: finding(counting([]), tmp_path),
    ):
        with pytest.raises(InputError, match="is not a result of an experiment") as refusal:
            use()
        assert "rm " in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_names_and_budgets_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'three-words'"):
        run("three-word", out=tmp_path)
    with pytest.raises(InputError, match="no tier is called 'fast'"):
        list(steps(counting([]), tmp_path, tier="fast"))  # pyright: ignore[reportArgumentType]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        list(steps(counting([]), tmp_path / "file" / "lab"))


def test_reports_hold_the_lesson_in_both_languages(tmp_path: Path) -> None:
    actual = run("three-words", out=tmp_path, tier="quick")
    page = write_html([actual], tmp_path / "page.html").read_text(encoding="utf-8")
    assert actual.experiment.claim.en in page
    assert "supported" in page
    text = write_markdown([actual], tmp_path / "page.md", language="ja").read_text(encoding="utf-8")
    assert actual.experiment.claim.ja in text
    assert "判定: 支持される" in text
    suffix = ".ja.svg" if has_japanese_font() else ".svg"
    assert (tmp_path / "figures" / f"lab-three-words{suffix}").exists()


def test_reports_name_experiments_without_results_and_compare_seeds(tmp_path: Path) -> None:
    first, second = (
        run("three-words", out=tmp_path, tier="quick", seed=seed) for seed in (FIRST_SEED, 1000)
    )
    text = write_markdown([first], tmp_path / "page.md", others=[second]).read_text("utf-8")
    assert "| experiment | --seed 100 | --seed 1000 |" in text
    assert "| Self-attention on three words | supported | supported |" in text
    unmeasured = [name for name in EXPERIMENTS if name != "three-words"]
    assert f"Not measured yet: {', '.join(unmeasured)}." in text
    page = write_html([first], tmp_path / "page.html", others=[second], language="ja")
    assert "別のシードでの結果" in page.read_text("utf-8")
    alone = write_markdown([first], tmp_path / "alone.md").read_text("utf-8")
    assert "--seed 1000" not in alone


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    actual = run("three-words", out=tmp_path, tier="quick")
    twice = [save_figure(actual.figures()["three-words"], tmp_path / name) for name in ("a", "b")]
    assert [path.suffix for path in twice[0]] == [".svg", ".png"]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*twice, strict=True))


def test_parts_run_side_by_side_and_give_what_they_give_alone(tmp_path: Path) -> None:
    from sightline.lab.catalogue import EXPERIMENTS
    from sightline.lab.workers import measure_part

    experiment = EXPERIMENTS["three-words"]
    events = list(steps(experiment, tmp_path, tier="quick"))
    assert [event.number for event in events] == [1, 2, 3, 4]
    actual = finding(experiment, tmp_path, tier="quick")
    assert actual is not None
    alone = {
        name: numbers for name, numbers, _ in map(measure_part, experiment.parts(Plan("quick")))
    }
    assert json.dumps(actual.numbers) == json.dumps(alone)
    assert list(actual.numbers) == [part.name for part in experiment.parts(Plan("quick"))]


def test_what_measures_time_is_alone() -> None:
    from sightline.lab.catalogue import EXPERIMENTS

    parts = [
        part
        for name in ("kv-cache", "why-attention")
        for rates in [{arm: TunedRate(arm, 1e-3, False, ()) for arm in EXPERIMENTS[name].arms}]
        for part in EXPERIMENTS[name].parts(Plan("quick", rates=rates))
    ]
    timed = re.compile(r"time|^memory|^block\.")
    assert all(part.alone == bool(timed.search(part.name)) for part in parts)


def test_a_finding_is_short_in_a_terminal_and_a_table_in_a_notebook(tmp_path: Path) -> None:
    experiment = counting([])
    running = steps(experiment, tmp_path)
    next(running)
    running.close()
    part = finding(experiment, tmp_path)
    assert repr(part) == "<Finding counting: incomplete, default, seed 100>"
    list(steps(experiment, tmp_path))
    whole = finding(experiment, tmp_path)
    assert repr(whole) == "<Finding counting: supported, 1 of 1 checks hold, default, seed 100>"
    assert whole is not None
    page = whole._repr_html_()
    assert "<td>✓</td><td>the sum is six</td><td>6</td>" in page
    path = result_path(tmp_path, "counting", "default", FIRST_SEED)
    result = read_result(path)
    result.parts["part-3"] = None
    write_result(path, result)
    broken = finding(experiment, tmp_path)
    assert repr(broken) == "<Finding counting: unreadable numbers, default, seed 100>"
    assert broken is not None
    assert "unreadable numbers" in broken._repr_html_()
