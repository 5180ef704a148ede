"""A run's folder: whose it is, and what has changed since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sightline.errors import InputError
from sightline.training.state.resume import changes, check_description, clear_run
from tests.training.small import files, job, train_all


@pytest.mark.parametrize("name", ["checkpoints", "model", "metrics.jsonl"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_are_of_no_run_are_never_removed(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    """`--out .` in a folder that has a model/ of its own."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "precious").write_text("!")
    with pytest.raises(InputError, match=rf"has a {name} that is of no run"):
        train_all(job(), tmp_path, overwrite=overwrite)
    assert files(tmp_path) == {f"{name}/precious": b"!"}


def test_clearing_leaves_what_is_not_ours(tmp_path: Path) -> None:
    train_all(job(steps=2), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    clear_run(tmp_path)
    assert set(files(tmp_path)) == {"notes.txt"}


def test_differences_are_named_by_their_path() -> None:
    before = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    after = {"a": {"b": 2, "c": [1, 3]}, "e": "new"}
    assert changes(before, after) == ["a.b: 1 → 2", "a.c: [1, 2] → [1, 3]", "e: None → new"]
    assert changes(before, before) == []


def test_another_batch_size_is_named_with_the_data(tmp_path: Path) -> None:
    """The data's fingerprint changes with it; the setting says why."""
    (tmp_path / "run.json").write_text(
        json.dumps({"data": "x 4", "settings": {"batch": 4, "lr": 1}, "training": {"seed": 0}})
    )
    now = {"data": "x 8", "settings": {"batch": 8, "lr": 1}, "training": {"seed": 1}}
    with pytest.raises(InputError) as caught:
        check_description(tmp_path, now, frozenset())
    assert (
        "the data and settings have changed since this run began: training.seed: 0 → 1; settings.batch: 4 → 8"
        in str(caught.value)
    )
    assert "--accept-data-change --accept-changes" in caught.value.fix
    with pytest.raises(InputError, match=r"training\.seed"):
        check_description(tmp_path, now, frozenset({"data"}))
    assert check_description(tmp_path, now, frozenset({"data", "settings"})) == [
        "changed: data: x 4 → x 8",
        "changed: training.seed: 0 → 1",
    ]


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_a_description_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json: cannot be read"):
        train_all(job(), tmp_path)
