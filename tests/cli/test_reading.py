"""Text from files and standard input: to the byte, and one clear line where it is none."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.cli.ui.input import read_file, read_input, read_text
from sightline.errors import InputError


def test_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\n".encode())
    assert read_file(tmp_path / "a.txt") == "one\r\ntwo\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\r\ntwo\n")))
    assert read_text("-", None, fix="") == "one\r\ntwo\n"
    assert read_text("typed", None, fix="") == "typed"


def test_what_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.bin").write_bytes(b"a\xff\x00")
    for path, words in (
        (tmp_path / "b.bin", "not UTF-8"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(InputError, match=words):
            read_file(path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\xfe")))
    with pytest.raises(InputError, match="standard input is not UTF-8"):
        read_input()
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_input()
    with pytest.raises(
        InputError,
        match=r"no prompt; expected a prompt, --file FILE, or - for standard input\. Fix: try this",
    ):
        read_text(None, None, what="prompt", fix="try this")


def test_an_interrupt_at_the_very_start_is_quiet() -> None:
    code = "import signal, sightline.cli.entry as e; e.leave(signal.SIGINT, None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")
