"""Options, configuration fields, recorded quantities and the laboratory's numbers are named in the
glossary of docs/notation.md."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

import sightline as sl
from sightline import config
from sightline.cli.main import make_app

DOCS = Path(__file__).parents[1] / "docs"
HEADER = "| symbol | name | English | 日本語 |"


def glossary() -> dict[str, tuple[str, str]]:
    """Name → English and Japanese term, from every table with HEADER."""
    terms: dict[str, tuple[str, str]] = {}
    for table in (DOCS / "notation.md").read_text(encoding="utf-8").split(HEADER)[1:]:
        for line in table.strip().splitlines()[1:]:
            if not line.startswith("|"):
                break
            _, names, english, japanese = (cell.strip() for cell in line.strip("|").split(" | "))
            for name in re.findall(r"`([^`]+)`", names):
                assert name not in terms, f"{name} is listed twice"
                terms[name] = (english, japanese.strip("| "))
    return terms


TERMS = glossary()


def test_every_entry_has_an_english_and_a_japanese_term() -> None:
    assert len(TERMS) > 150
    assert all(english and japanese for english, japanese in TERMS.values())


@pytest.mark.parametrize("name", sl.QUANTITIES)
def test_recorded_quantities_are_listed(name: str) -> None:
    assert name in TERMS


def config_fields() -> set[str]:
    classes = [value for value in vars(config).values() if dataclasses.is_dataclass(value)]
    return {field.name for one in classes for field in dataclasses.fields(one)}


@pytest.mark.parametrize("name", sorted(config_fields()))
def test_configuration_fields_are_listed(name: str) -> None:
    assert name in TERMS


def is_numeric(hint: Any) -> bool:
    if hint in (int, float):
        return True
    if typing.get_origin(hint) is typing.Annotated:
        return is_numeric(typing.get_args(hint)[0])
    unions = (typing.Union, types.UnionType)
    return typing.get_origin(hint) in unions and any(map(is_numeric, typing.get_args(hint)))


def numeric_options(app: App) -> Iterator[str]:
    """The options of all commands that take a number."""
    for name in app:
        if not name.startswith("-"):
            yield from numeric_options(app[name])
    if app.default_command is not None:
        for argument in app.assemble_argument_collection(parse_docstring=False):
            if argument.name.startswith("--") and is_numeric(argument.hint):
                yield argument.name.rpartition(".")[2].removeprefix("--").replace("-", "_")


def test_options_that_take_a_number_are_listed() -> None:
    names = set(numeric_options(make_app()))
    assert {"temperature", "top_p", "beams", "seed"} <= names
    assert names <= set(TERMS), sorted(names - set(TERMS))


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from [] if key.isdigit() else [key]
            yield from keys_of(inner)
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        yield from keys_of(value[0])


@pytest.mark.parametrize("path", sorted((DOCS / "laboratory" / "numbers").glob("*.json")))
def test_the_numbers_of_the_laboratory_are_listed(path: Path) -> None:
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
    names = {name for part in parts.values() for name in keys_of(part)}
    assert names <= set(TERMS), sorted(names - set(TERMS))
