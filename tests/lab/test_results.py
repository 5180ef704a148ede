"""A saved result is what was measured, or it is refused in one line."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sightline.cli.main import main
from sightline.errors import InputError
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import finding
from sightline.lab.experiment import Finding
from sightline.lab.results import read_result, result_path, write_result
from sightline.lab.tuning import PILOT_SEED

NUMBERS = Path(__file__).parents[2] / "docs" / "laboratory" / "numbers"
SMALL = (
    "three-words",
    "kv-cache",
    "gpt-vs-bert",
    "softmax-saturation",
    "why-attention",
    "single-vs-multi-head",
)
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    10**19,
    1e308,
    "",
    "x",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    ["x"],
    [1, 2],
]


def saved(name: str, folder: Path) -> Path:
    """The result of an experiment, with the pilots that chose its learning rates."""
    path = result_path(folder, name, "default", 100)
    for one in (path, result_path(folder, name, "default", PILOT_SEED)):
        if (NUMBERS / one.name).exists():
            shutil.copy(NUMBERS / one.name, one)
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seed": 100', '"seed": 101'),
        ('"tier": "default"', '"tier": "quick"'),
        ('"form": 2', '"form": 1'),
        ('"by-hand"', '"by-hind"'),
        ('"parts": {', '"parts": {"more": 1, '),
        ("0.", "1."),
    ],
)
def test_a_result_that_was_changed_is_refused(old: str, new: str, tmp_path: Path) -> None:
    path = saved("three-words", tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match="its checksum is not that of its numbers") as caught:
        read_result(path)
    assert f"Fix: delete it (rm {path})" in str(caught.value)


def test_the_layout_of_the_file_does_not_matter_and_form_1_had_no_checksum(tmp_path: Path) -> None:
    path = saved("three-words", tmp_path)
    before = read_result(path)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(fields.items()))))
    assert read_result(path) == before
    del fields["sum"]
    path.write_text(json.dumps(fields | {"form": 1}))
    assert read_result(path) == before


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"seconds": {"by-hand": "long"}}, "seconds are"),
        ({"seconds": {"by-hand": -1}}, "seconds are"),
        ({"versions": {"torch": 2}}, "versions are"),
        ({"parts": []}, "parts are"),
        ({"seed": -1}, "the seed -1"),
        ({"seed": True}, "the seed True"),
        ({"tier": ["default"]}, "in the tier"),
        ({"seed": 7}, "it is of 'three-words', default, seed 7"),
        ({"parts": {"by-hand": "\ud800"}}, "half of a surrogate pair"),
    ],
)
def test_values_of_other_types_are_refused(
    changes: dict[str, Any], output: str, tmp_path: Path
) -> None:
    path = saved("three-words", tmp_path)
    fields = json.loads(path.read_text()) | changes
    del fields["sum"]
    path.write_text(json.dumps(fields | {"form": 1}))
    with pytest.raises(InputError) as caught:
        read_result(path)
    assert output in str(caught.value)
    assert "\n" not in str(caught.value)


def test_deep_json_a_fifo_and_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = saved("three-words", tmp_path)
    text = path.read_text()
    for bad in (
        "[" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        text.replace("0.", "1e999", 1),
        text.replace("0.", "NaN", 1),
    ):
        path.write_text(bad)
        with pytest.raises(InputError, match="is not a result of an experiment"):
            read_result(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a regular file"):
        read_result(path)


def exchanged(value: Any, dice: random.Random) -> Any:
    """The value with one node exchanged or removed."""
    if not isinstance(value, (dict, list)) or not value or dice.random() < 0.2:
        return dice.choice(STRANGE)
    made = copy.copy(value)
    key = dice.choice(list(made) if isinstance(made, dict) else list(range(len(made))))
    if dice.random() < 0.2:
        del made[key]
    else:
        made[key] = exchanged(made[key], dice)
    return made


def refusal(actual: Finding) -> str:
    """The one line that says why the numbers cannot be judged, or nothing."""
    try:
        assert actual.verdict
        assert actual.summary is None or actual.summary.en
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", SMALL)
def test_numbers_of_another_shape_are_judged_or_refused_in_one_line(
    name: str, tmp_path: Path
) -> None:
    """Written with a right checksum, as a forger would."""
    path = saved(name, tmp_path)
    sound = read_result(path)
    refused = 0
    for seed in range(60):
        dice = random.Random(seed)
        result = copy.copy(sound)
        part = dice.choice(sorted(sound.parts))
        result.parts = sound.parts | {part: exchanged(sound.parts[part], dice)}
        write_result(path, result)
        actual = finding(EXPERIMENTS[name], tmp_path, tier="default", seed=100)
        assert actual is not None
        line = refusal(actual)
        refused += bool(line)
        assert not line or line.startswith(
            f"{path}: the saved numbers are not what {name} measures"
        )
        assert "\n" not in line
    assert refused > 5


def test_a_report_of_numbers_that_cannot_be_drawn_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved("three-words", tmp_path)
    result = read_result(path)
    result.parts["by-hand"]["weights"] = [[1.0], "x"]
    write_result(path, result)
    for file in ("a.html", "a.md"):
        assert main(["lab", "report", str(tmp_path), "--out", str(tmp_path / file)]) == 2
        line = capsys.readouterr().err.strip()
        assert line.startswith(
            f"error: {path}: the saved numbers are not what three-words measures"
        )
        assert "\n" not in line
