"""docs/laboratory/notes: every row's command runs, every experiment exists, all Python gives what
the page says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sightline.cli.main import main
from sightline.lab.catalogue import EXPERIMENTS
from tools import notes

ROWS = [row for part in notes.read_notes() for row in part.rows]
COMMANDS = sorted({row.run for row in ROWS if row.run})
CODES = {row.says["en"]: row for row in ROWS if row.code}


@pytest.mark.parametrize("language", notes.PAGES)
def test_the_pages_are_those_of_the_rows(language: str) -> None:
    page = notes.page(notes.read_notes(), language)
    assert notes.PAGES[language].read_text(encoding="utf-8") == page, "run `make pages`"


def test_each_row_has_one_kind_of_evidence_and_both_languages() -> None:
    for row in ROWS:
        assert sum(map(bool, (row.run, row.lab, row.code))) <= 1
        assert bool(row.code) == bool(row.gives)
        assert row.says["en"]
        assert row.says["ja"]
        assert set(row.right) in (set(), {"en", "ja"})
    assert sum(row.is_shown for row in ROWS) >= 0.85 * len(ROWS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(command)
    assert program == "sightline"
    try:
        assert main(words) == 0
    except SystemExit as left:
        assert left.code == 0  # noqa: PT017
    assert capsys.readouterr().out


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("says", CODES)
def test_the_python_gives_what_the_page_says(says: str) -> None:
    assert notes.value_of(CODES[says].code) == CODES[says].gives


def test_the_experiments_are_in_the_laboratory() -> None:
    assert {row.lab for row in ROWS if row.lab} <= set(EXPERIMENTS)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({row.lab for row in ROWS if row.lab}))
def test_the_experiment_runs(name: str, tmp_path: Path) -> None:
    assert main(["lab", "run", name, "--quick", "--out", str(tmp_path)]) == 0
