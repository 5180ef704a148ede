"""Text from arguments, from a file or from standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sightline.errors import InputError, nearest

OPTION = re.compile(r"--[a-z][a-z-]*(=.*)?")
TEXT_OPTIONS = ("--file", "--out", "--json", "--top-k", "--engine", "--dtype", "--help")


def read_text(text: str | None, file: Path | None, *, what: str = "text", fix: str) -> str:
    """The argument, the file's content, or standard input for -, unchanged."""
    if (text is None) == (file is None):
        raise InputError(
            f"no {what}" if text is None else f"a {what} and a file",
            expected=f"a {what}, --file FILE, or - for standard input",
            fix=fix,
        )
    if file is not None:
        return read_file(file)
    return read_input() if text == "-" else str(text)


def read_texts(texts: Sequence[str], file: Path | None, *, command: str) -> list[str]:
    """The arguments, or one text per line of a file or of standard input."""
    if bool(texts) == (file is not None):
        raise InputError(
            "texts and a file" if texts else "no text",
            expected="texts, --file FILE, or - for standard input",
            fix=f'sightline {command} MODEL "One text" "and another"',
        )
    refuse_misspelt_options(texts)
    if file is not None:
        return texts_in(read_file(file), str(file))
    return texts_in(read_input(), "standard input") if list(texts) == ["-"] else list(texts)


def refuse_misspelt_options(texts: Sequence[str]) -> None:
    """A text that looks like an option is taken for a misspelt option."""
    for text in texts:
        if OPTION.fullmatch(text):
            raise InputError(
                f"no option is called {text[:40]!r}", fix=nearest(text[:40], TEXT_OPTIONS)
            )


def texts_in(content: str, where: str) -> list[str]:
    """One text per line. Empty lines count, so that the n-th result belongs to the n-th line."""
    if not content.strip():
        raise InputError(f"no text in {where}", expected="one text per line")
    lines = content.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def split_lines(text: str) -> list[str]:
    """The lines without their ends; only a line feed ends a line."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


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
    """The text of a UTF-8 file, without its byte order mark."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(
            f"{file} cannot be read as text: {reason}",
            expected="a UTF-8 file",
            fix="check the path, or iconv -t utf-8",
        ) from None
