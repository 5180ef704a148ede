"""A run's folder that was damaged: training goes on from what is whole, or one line says why not;
`compare` does the same."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sightline.cli.main import main
from sightline.errors import SightlineError
from tests.training.small import job, notes, train_all

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    10**400,
    0.5,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    [],
    {},
    [[1]],
    {"a": 1},
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_all(job(steps=4, save_every=2), folder)
    return folder


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("replace", [fifo, device])
@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json"])
def test_compare_refuses_a_fifo_or_a_device_in_one_line(
    replace: Any, name: str, sound: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    replace(folder / name)
    assert main(["compare", str(folder)]) != 0
    error = capsys.readouterr().err
    assert name in error
    assert "Fix:" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("replace", [fifo, device])
def test_training_goes_on_without_metrics_that_are_no_file(
    replace: Any, sound: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    replace(folder / "metrics.jsonl")
    output = notes(train_all(job(steps=6, save_every=2), folder, accept=frozenset({"settings"})))
    assert sum("training continues without it" in note for note in output) == 1
    assert (folder / "checkpoints" / "step-00000006").is_dir()


@pytest.mark.parametrize("replace", [fifo, device])
def test_a_manifest_that_is_no_file_is_passed_over(
    replace: Any, sound: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    replace(folder / "checkpoints" / "step-00000004" / "manifest.json")
    assert any(
        "step-00000004 is skipped" in note
        for note in notes(train_all(job(steps=4, save_every=2), folder))
    )


def damage(folder: Path, draws: random.Random) -> None:
    """One of a run's files, with other bytes or other values."""
    path = draws.choice(
        [
            folder / "run.json",
            folder / "metrics.jsonl",
            *sorted(folder.glob("checkpoints/*/*")),
            folder / "checkpoints/LATEST",
        ]
    )
    data = bytearray(path.read_bytes())
    way = draws.randrange(4)
    if way == 0:
        data = data[: draws.randrange(len(data) + 1)]
    elif way == 1 or path.suffix not in (".json", ".jsonl"):
        for _ in range(draws.choice([1, 8])):
            data[draws.randrange(len(data))] = draws.randrange(256)
    elif way == 2:
        data = bytearray(
            draws.choice([b"", b"[" * 100_000, b"\xff\xfe", b"null", b"[]", b'{"a": ' * 900])
        )
    else:
        data = with_junk(path, draws)
    path.write_bytes(data)


def with_junk(path: Path, draws: random.Random) -> bytearray:
    """JSON, or lines of it, in which some values are others."""
    parts = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.suffix == ".jsonl"
        else [json.loads(path.read_text())]
    )
    for _ in range(draws.randint(1, 4)):
        place = draws.choice(parts)
        while draws.random() < 0.6 and (
            inner := [value for value in place.values() if isinstance(value, dict) and value]
        ):
            place = draws.choice(inner)
        place[draws.choice(sorted(place))] = draws.choice(JUNK)
    return bytearray("\n".join(map(json.dumps, parts)).encode())


def test_damaged_runs_are_compared_and_resumed_or_refused_in_one_line(
    sound: Path, tmp_path: Path, capsys: Any
) -> None:
    for seed in range(12):
        folder = shutil.copytree(sound, tmp_path / str(seed))
        damage(folder, random.Random(seed))
        assert main(["compare", str(folder)]) in (0, 1, 2), seed
        assert main(["compare", str(folder), "--json"]) in (0, 1, 2), seed
        assert "Traceback" not in capsys.readouterr().err
        try:
            train_all(job(steps=4, save_every=2), folder)
        except SightlineError as error:
            assert "\n" not in str(error), seed  # noqa: PT017
