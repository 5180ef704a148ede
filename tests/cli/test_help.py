"""`--help`, `sightline help`, and the examples in them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from cyclopts import App
from rich.cells import cell_len

from sightline.cli.commands.see.trace import VIEWS as TRACE_VIEWS
from sightline.cli.examples import EXAMPLES
from sightline.cli.main import COMMANDS, main, make_app
from sightline.cli.ui.completion import RECIPE_NAMES
from sightline.cli.ui.options.model import DEFAULT_ENGINE, DTYPES
from tests.cli import terminal

GENERAL = ("help", "--install-completion")
SUBCOMMANDS = [name for name in EXAMPLES if " " in name]


def help_of(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*words, "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_every_command_has_examples() -> None:
    assert {name for name in EXAMPLES if " " not in name} == {*COMMANDS, *GENERAL}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_parse_and_fit_a_terminal(name: str, tmp_path: Path) -> None:
    app: App = make_app()
    for line in EXAMPLES[name]:
        words = shlex.split(line.partition(" > ")[0])
        assert words[:1] == ["sightline"]
        assert " ".join(words[1:]).startswith(name)
        assert len(line) <= 78
        app.parse_args(words[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("name", [*COMMANDS, *GENERAL, *SUBCOMMANDS])
def test_help_ends_with_the_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(*name.split(), capsys=capsys)
    assert text.startswith(f"Usage: sightline {name}")
    assert text.endswith(" ".join(["Examples:", *EXAMPLES[name]]))


def test_help_command_is_the_help_option(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["generate"], ["models", "get"], []):
        assert main([*words, "--help"]) == 0
        expected = capsys.readouterr().out
        assert main(["help", *words]) == 0
        assert capsys.readouterr().out == expected


def test_help_of_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "genrate"]) == 2
    assert "Fix: did you mean 'generate'" in capsys.readouterr().err


def test_defaults_and_choices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("generate", capsys=capsys)
    assert "Maximum number of new tokens. [default: 128, or what fits the context]" in text
    assert f"[choices: auto, native, torch] [default: {DEFAULT_ENGINE}]" in text
    assert f"[choices: {', '.join(DTYPES)}] [default: float32]" in text
    assert "Beam search with N beams" in text
    assert f"[choices: {', '.join(TRACE_VIEWS)}]" in help_of("trace", capsys=capsys)
    text = help_of("train", capsys=capsys)
    assert "An existing run is resumed if its settings match. [default: runs/NAME]" in text
    assert "Results are bit-reproducible only for the same number of threads." in text


def test_names_listed_without_torch_are_those_of_the_library() -> None:
    from sightline.checkpoints.engine_choice import DTYPES as TORCH_DTYPES
    from sightline.engine.matrices import PRECISIONS
    from sightline.lens.draw.views import VIEWS
    from sightline.recipes import RECIPES

    assert tuple(RECIPES) == RECIPE_NAMES
    assert tuple(VIEWS) == TRACE_VIEWS
    assert set(DTYPES) == {*TORCH_DTYPES, *PRECISIONS}


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("line", [("--help",), ("generate", "--help"), ("help", "trace")])
def test_no_line_is_wider_than_the_terminal(line: tuple[str, ...], columns: int) -> None:
    code, raw = terminal.run(*line, columns=columns)
    lines = terminal.visible(raw).splitlines()
    assert code == 0
    assert max(map(cell_len, lines)) <= min(columns, 100)
