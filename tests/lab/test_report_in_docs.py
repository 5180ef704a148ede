"""The report in docs/laboratory: every verdict is computed again from the saved numbers, and the
page says the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import finding
from sightline.lab.experiment import FIRST_SEED, Check, Finding
from sightline.lab.report import HOLDS, LABELS, VERDICTS, escape_cell, rerun_command

PLACE = Path(__file__).parents[2] / "docs" / "laboratory"
NUMBERS = PLACE / "numbers"
PAGES = {"en": PLACE / "README.md", "ja": PLACE / "ja.md"}


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    results = {
        name: finding(one, NUMBERS, tier="default", seed=FIRST_SEED)
        for name, one in EXPERIMENTS.items()
    }
    return {name: one for name, one in results.items() if one is not None and one.complete}


@pytest.fixture(scope="module")
def figures(findings: dict[str, Finding]) -> Callable[[str], list[str]]:
    """The names of an experiment's figures, drawn once for both languages."""
    return cache(lambda name: list(findings[name].figures()))


def section(page: str, name: str) -> str:
    """From an experiment's anchor to the next."""
    return page.split(f'<a id="{name}"></a>')[1].split('<a id="')[0]


def unmeasured(language: str) -> set[str]:
    """The experiments that the page names as not measured yet."""
    label = LABELS["unmeasured"][language]
    lines = PAGES[language].read_text(encoding="utf-8").splitlines()
    names = [line.removeprefix(label).strip(" :：.。") for line in lines if line.startswith(label)]
    return {name for line in names for name in line.split(", ")}


@pytest.mark.parametrize("language", PAGES)
def test_all_experiments_were_measured_in_their_default_tier(
    findings: dict[str, Finding], language: str
) -> None:
    assert set(findings) == set(EXPERIMENTS)
    assert not unmeasured(language)


@pytest.mark.parametrize("language", PAGES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_agrees_with_the_numbers(
    findings: dict[str, Finding],
    figures: Callable[[str], list[str]],
    name: str,
    language: str,
) -> None:
    page = PAGES[language].read_text(encoding="utf-8")
    result = findings[name]
    text = section(page, name)
    assert f"{VERDICTS[result.verdict][language]}** (`{rerun_command(name, result)}`)" in text
    row = f"{VERDICTS[result.verdict][language]} | {result.seeds or ''} | {result.seconds:,.0f}"
    assert f"](#{name}) | {row} |" in page
    assert result.checks
    for check in result.checks:
        numbers = result.measured(check, language)
        row = (check.statement[language], HOLDS[check.holds][language], numbers)
        assert f"| {' | '.join(map(escape_cell, row))} |" in text
    suffix = ".ja.svg" if language == "ja" else ".svg"
    for picture in figures(name):
        assert f"figures/lab-{picture}{suffix}" in text
        assert (PLACE / "figures" / f"lab-{picture}{suffix}").is_file()


# ---------------------------------------------------------------------------------- known results


def check_of(result: Finding, *words: str) -> Check:
    [one] = [check for check in result.checks if all(word in check.statement.en for word in words)]
    return one


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("three-words", ["softmax([1, 2, −∞, 3])"]),
        ("softmax-saturation", ["the variance of q·k is d_k", "5%"]),
        ("positions", ["rises more than ALiBi", "learned positions"]),
        ("positions", ["rises more than ALiBi", "sinusoidal"]),
        ("icl-gradient-descent", ["linear attention with weights set by hand", "1e-6"]),
        ("icl-gradient-descent", ["2 d examples", "closer to ridge"]),
        ("induction-heads", ["best head of a two-layer model", "above 0.5"]),
    ],
)
def test_what_is_known_holds(findings: dict[str, Finding], name: str, words: list[str]) -> None:
    assert check_of(findings[name], *words).holds is True
