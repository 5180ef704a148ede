"""Text files: read in bounded memory; a file that is not text is an error that names it."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.training.data import documents as reading
from sightline.training.data.documents import READ, documents, examine, parts

PLAIN = st.text(
    st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), min_size=1, max_size=60
)


def file_of(folder: Path, data: bytes, name: str = "text.txt") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def whole(path: Path, separator: str = "") -> list[str]:
    """The documents, each joined from its parts."""
    texts = [""]
    for part in documents(examine(path), separator):
        if part is None:
            texts.append("")
        else:
            texts[-1] += part
    assert texts.pop() == ""
    return texts


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=PLAIN,
    separator=st.sampled_from(["", "a", "\n\n", "<|endoftext|>", " "]),
    read=st.integers(1, 40),
)
def test_documents_are_those_of_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, separator: str, read: int
) -> None:
    """For any read size: a separator or a character may lie across two reads."""
    monkeypatch.setattr(reading, "READ", read)
    text = text.lstrip("\ufeff") or "x"
    expected = [
        document for document in (text.split(separator) if separator else [text]) if document
    ]
    assert whole(file_of(tmp_path, text.encode()), separator) == expected


def test_byte_order_mark_and_other_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRLF and CR become \\n, also where CRLF lies across two reads."""
    path = file_of(tmp_path, b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\n")
    for read in (1, 2, 5, READ):
        monkeypatch.setattr(reading, "READ", read)
        assert whole(path) == ["one\ntwo\nthree\n\n"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (
            "Häuser".encode("utf-16"),
            r"is UTF-16; expected text in UTF-8. Fix: iconv -f utf-16 -t utf-8 text.txt",
        ),
        (
            "Häuser".encode("utf-16-le"),
            r"byte 1 is zero: this is binary, or text in UTF-16 or UTF-32",
        ),
        (gzip.compress(b"text", mtime=0), r"this is a gzip archive"),
        (b"\x7fELF\2\1\1\0", r"byte 7 is zero: this is a program"),
        (
            "abc naïve".encode("latin1"),
            r"byte 6 is not UTF-8; expected text in UTF-8. Fix: iconv -f latin1",
        ),
        (b"cut \xe6\x97", r"byte 4 is not UTF-8"),
    ],
)
def test_files_that_are_not_text(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(
        InputError, match=rf"text\.txt: {message}" if "this is" not in message else message
    ) as error:
        examine(file_of(tmp_path, data))
    assert "\n" not in str(error.value)


def test_the_position_of_an_invalid_byte_across_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ", 4)
    with pytest.raises(InputError, match=r"byte 10 is not UTF-8"):
        examine(file_of(tmp_path, "日本日".encode() + b"x\xff"))
    with pytest.raises(InputError, match=r"byte 3 is not UTF-8"):
        examine(file_of(tmp_path, b"abc\xe6xyz"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.txt: cannot be read \(No such file"):
        examine(tmp_path / "nothing.txt")
    with pytest.raises(InputError, match=r"is not a file"):
        examine(tmp_path)


@pytest.mark.parametrize("word", ["é", "word "])
def test_one_long_line_takes_little_memory(tmp_path: Path, word: str) -> None:
    """64 MB without a newline, with and without spaces: the memory is that of a few reads."""
    path = tmp_path / "line.txt"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(64):
            file.write(word * (1_000_000 // len(word.encode())))
    tracemalloc.start()
    source = examine(path)
    longest = max(len(part) for part in parts(source, "<|endoftext|>") if part is not None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest <= 2 * READ
    assert peak < 20 * READ < source.size


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"document text")
    source = examine(path)
    path.write_bytes(b"another text")
    with pytest.raises(InputError, match=r"text.txt: changed while it was read"):
        list(parts(source, ""))
    path.unlink()
    with pytest.raises(InputError, match=r"text.txt: cannot be read"):
        list(parts(source, ""))
