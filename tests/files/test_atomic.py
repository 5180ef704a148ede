"""Files that are there whole or not at all, whatever lies beside them."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

import pytest

import sightline
from sightline.files import atomic
from sightline.lens.draw.page import save_text
from sightline.text.training import subwords as train


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a.txt", "é\n")
    atomic.write_text(tmp_path / "a.txt", "new\n")
    assert (tmp_path / "a.txt").read_text() == "new\n"
    assert os.listdir(tmp_path) == ["a.txt"]
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) & 0o600 == 0o600


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")

    def fail() -> None:
        with atomic.atomic_write(tmp_path / "a.txt") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_at_the_old_temporary_name_is_not_followed(tmp_path: Path) -> None:
    """`.page.html.part` used to be written through whatever it was."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("page.html", *train.NAMES):
        (tmp_path / f".{name}.part").symlink_to(victim)
    save_text(tmp_path / "page.html", "page")
    for name in train.NAMES:
        atomic.write_text(tmp_path / name, "{}")
    assert victim.read_text() == "precious"


def test_a_link_at_the_very_temporary_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".a.txt.{'0' * 16}.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        atomic.write_text(tmp_path / "a.txt", "text")
    assert victim.read_text() == "precious"


def test_what_killed_writers_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    old, young, other = (
        tmp_path / f".{name}.{digit * 16}.part"
        for name, digit in (("a.txt", "0"), ("a.txt", "1"), ("b.txt", "0"))
    )
    for left in (old, young, other):
        left.write_text("half")
    for left in (old, other):
        os.utime(left, (time.time() - 7200,) * 2)
    atomic.write_text(tmp_path / "a.txt", "text")
    assert sorted(os.listdir(tmp_path)) == sorted(["a.txt", young.name, other.name])


def test_no_temporary_name_can_be_guessed() -> None:
    for path in Path(sightline.__file__).parent.rglob("*.py"):
        assert not re.search(r"\{[\w.]*name\}\.part[\"{]", path.read_text(encoding="utf-8")), path
