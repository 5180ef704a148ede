"""Rows of a table: CSV with a header, or one JSON object per line, each with its line number."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sightline.errors import InputError

Row = tuple[int, dict[str, Any]]
SUFFIXES = (".csv", ".jsonl")


def read_table(path: Path) -> str:
    """A file's text, without a byte order mark."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(
            f"{path} cannot be read as text: {reason}",
            expected="a UTF-8 file",
            fix="check the path, or iconv -t utf-8",
        ) from None
    if "\0" in text:
        raise InputError(f"{path} is not text", expected="a UTF-8 file", fix="check the path")
    return text


def read_rows(path: Path, *, shape: str) -> list[Row]:
    """The rows of a .csv or .jsonl file; `shape` is an example of a row, for error messages."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path}: {path.suffix or 'no ending'}",
            expected="a .csv or .jsonl file",
            fix=f"lines of {shape} in a .jsonl",
        )
    text = read_table(path)
    rows = list(
        csv_rows(path, text)
        if path.suffix.lower() == ".csv"
        else jsonl_rows(path, text, shape=shape)
    )
    if not rows:
        raise InputError(f"{path} has no rows", expected="one or more", fix="check the file")
    return rows


def csv_rows(path: Path, text: str) -> Iterator[Row]:
    """A header with the names of the columns, then the rows, each with the line that it ends on."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        seen = f"{path}, line {reader.reader.line_num}: not CSV: {error}"
        raise InputError(seen, expected="a header and rows", fix="correct the line") from None


def jsonl_rows(path: Path, text: str, *, shape: str) -> Iterator[Row]:
    """One object per line; empty lines are skipped."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InputError(
                f"{path}, line {number}: no JSON object", expected=shape, fix="correct the line"
            )
        yield number, value
