"""Text from a file or from standard input, for the commands that read some."""

from __future__ import annotations

import sys
from pathlib import Path

from sightline.errors import InputError


def read_text(text: str | None, file: Path | None, *, what: str = "text", fix: str) -> str:
    """The text, from wherever it comes, to the byte."""
    if (text is None) == (file is None):
        raise InputError(
            f"no {what}" if text is None else f"a {what} and a file",
            expected=f"a {what}, --file FILE, or - for standard input",
            fix=fix,
        )
    if file is not None:
        return read_file(file)
    return read_input() if text == "-" else str(text)


def read_input() -> str:
    """Standard input as text."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise InputError(
            "standard input is closed",
            expected="text",
            fix="give the text as an argument, or --file FILE",
        )
    try:
        binary = getattr(sys.stdin, "buffer", None)
        return sys.stdin.read() if binary is None else binary.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            "standard input is not UTF-8", expected="text", fix="iconv -t utf-8"
        ) from None


def read_file(file: Path) -> str:
    """A file's text. A byte order mark is none of it."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(
            f"{file} cannot be read as text: {reason}",
            expected="a UTF-8 file",
            fix="check the path, or iconv -t utf-8",
        ) from None
