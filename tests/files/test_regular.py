from __future__ import annotations

import os
from pathlib import Path

import pytest

from sightline.files.regular import (
    append_to_regular_file,
    open_regular_file,
    read_regular_file,
    read_text_file,
)


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("één\r\ntwo\n".encode())
    assert read_regular_file(path) == path.read_bytes()
    assert read_text_file(path) == path.read_text(encoding="utf-8") == "één\ntwo\n"


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_text_file(tmp_path / "fifo")


def test_a_link_to_an_endless_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular_file(tmp_path / "link")


def test_a_folder_a_missing_file_and_a_nul_in_the_path_are_os_errors(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular_file(tmp_path / "missing")
    with pytest.raises(OSError, match="null"):
        open_regular_file("a\0b")


def test_a_file_larger_than_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 100,000,000 bytes"):
        read_text_file(path)
    path.write_bytes(b"four")
    assert read_regular_file(path, max_bytes=4) == b"four"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_regular_file(path, max_bytes=3)
    with pytest.raises(OSError, match="larger than 3 bytes"):
        open_regular_file(path, max_bytes=3)


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    def lowest_free_descriptor() -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor

    before = lowest_free_descriptor()
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            open_regular_file(tmp_path)
    assert lowest_free_descriptor() == before


def test_lines_are_appended_to_regular_files_only(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        with append_to_regular_file(tmp_path / "lines") as file:
            size = file.tell()
            file.write(line)
    assert size == 4
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("fifo", "link"):
        with pytest.raises(OSError, match=r"regular file|No such device"):
            append_to_regular_file(tmp_path / name)
