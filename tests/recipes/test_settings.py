"""Words from a command line as settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from sightline.errors import ConfigError
from sightline.recipes.settings import Recipe, key_values


@dataclass(frozen=True, kw_only=True)
class Some(Recipe):
    text: Path | None = None
    width: int = 8
    context: int = 0
    label: str = ""


def test_words_become_values(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    words = [
        "steps=1e3",
        "seed=9007199254740993",
        "lr=1_0e-4",
        "minutes=none",
        "compile=yes",
        "schedule=wsd",
        f"text={tmp_path / 'a.txt'}",
    ]
    made = Some.from_settings(
        key_values([*words, "width=16", "width=32", "save-every=7", "label=a=b"])
    )
    assert (made.steps, made.seed, made.lr, made.minutes, made.compile, made.schedule) == (
        1000,
        9007199254740993,
        1e-3,
        None,
        True,
        "wsd",
    )
    assert (made.width, made.save_every, made.label, made.text) == (
        32,
        7,
        "a=b",
        tmp_path / "a.txt",
    )


def test_what_was_told_makes_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    settings = Some.from_settings({"text": "a.txt", "width": 3, "minutes": 2}).settings
    assert settings["text"] == str(tmp_path / "a.txt")
    monkeypatch.chdir("/")
    assert Some.from_settings(settings).settings == settings


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("widht", "3", "did you mean 'width'?"),
        ("width", "0", "width is 0; expected an integer"),
        ("width", "x", "Fix: --set width=8"),
        ("width", True, "width is True"),
        ("width", [3], r"width is \[3\]"),
        ("width", "9" * 50, "width is"),
        ("steps", "1e99", "expected an integer"),
        ("lr", float("nan"), "lr is nan; expected a finite number"),
        ("lr", "-1", "lr is -1.0"),
        ("dropout", "1", "dropout is 1.0"),
        ("seed", "-1", "Fix: --set seed="),
        ("precision", "float16", "expected one of float32, bfloat16"),
        ("compile", "maybe", "expected true or false"),
        ("minutes", "0", "minutes is"),
        ("keep", "1", "keep is 1"),
        ("label", ["a"], "expected a text"),
        ("text", "none.txt", "text=none.txt: cannot be read"),
        ("text", "a\0b", "cannot be read"),
        ("text", "empty.txt", "text=empty.txt: is empty"),
        ("text", "empty", "text=empty: is empty"),
        ("text", "pipe", "is a device or a pipe"),
    ],
)
def test_what_cannot_be(
    name: str, value: object, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=seen) as refusal:
        Some.from_settings({name: value})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("word", ["steps", "=3", ""])
def test_words_that_are_no_setting(word: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        key_values([word])
