"""Everything that commands print: results on stdout, notes and progress on stderr.

Text from a model or a file can contain control characters. They are escaped here, and only here:

- names, notes, tables and errors: escaped (`\\x1b`), wherever the output goes;
- generated text: escaped on a terminal, unchanged into a pipe or file, byte for byte;
- JSON: exact, with the characters that control a terminal as `\\uXXXX`.

A lint rule bans `print` and rich's own Console from the commands.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len, get_character_cell_size
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sightline.escapes import escape_controls, escape_json, escape_line
from sightline.terminal.console import Console

PIPE_WIDTH = 140  # columns where the output is not a terminal
UNLIMITED = 10_000  # columns: a line never wraps
TAB = 8


def write(*lines: object) -> None:
    """Lines on stdout."""
    sys.stdout.write("".join(f"{escape_controls(str(line))}\n" for line in lines))
    sys.stdout.flush()


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """JSON on stdout; one line of it with `indent=None`."""
    sys.stdout.write(escape_json(json.dumps(value, ensure_ascii=False, indent=indent)) + "\n")
    sys.stdout.flush()


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity and no NaN: they become null."""
    return value if math.isfinite(value) else None


def show_lines(render: Callable[[int], list[Text]], *, pipe_width: int = PIPE_WIDTH) -> None:
    """Lines rendered for a width, in colour on a terminal (unless NO_COLOR), plain in a pipe."""
    console = Console()
    has_width = console.is_terminal or "COLUMNS" in os.environ
    for line in render(console.width if has_width else pipe_width):
        console.print(line, soft_wrap=True)


def counted(count: int, what: str) -> str:
    """1 token, 2 tokens."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def note(text: object, *, style: str = "yellow") -> None:
    """Something that the user should know, in one line on stderr."""
    remark(f"note: {text}", style=style)


@contextmanager
def warnings_as_notes() -> Generator[None]:
    """Show every UserWarning of the block as a note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        note(warning.message)


def remark(text: object, *, style: str = "dim") -> None:
    """A line on stderr beside the result; on a terminal it wraps between words."""
    console = Console(stderr=True)
    console.print(escape_line(str(text)), style=style, soft_wrap=not console.is_terminal)


def report_speed(texts: int, seconds: float) -> None:
    """Texts per second, on stderr."""
    remark(f"{counted(texts, 'text')}, {texts / seconds:.1f} texts/s")


def write_error(text: str) -> None:
    """An error, in one line on stderr. It is not wrapped, so that its fix can be copied."""
    sys.stderr.write(f"error: {escape_line(' '.join(text.split()))}\n")
    sys.stderr.flush()


def progress_bar(*, shown: bool = True) -> Progress:
    """A transient progress bar on stderr, on a terminal only. What is printed meanwhile stays on
    stdout."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    hidden = not shown or not console.is_terminal
    return Progress(
        *columns,
        console=console,
        transient=True,
        disable=hidden,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class TextWriter:
    """Streams generated text to stdout: unchanged into a pipe, escaped and wrapped between words
    on a terminal.

    A terminal breaks lines within words. So a word is held back until it is complete, and starts a
    new line where it does not fit. Double-width characters (Japanese, Chinese) may break anywhere:
    the terminal wraps them.
    """

    PARTS = re.compile(r"\n|[ \t]+|[^ \t\n]+")
    RUNS = re.compile(r"[\u1100-\U0003ffff]|[^\u1100-\U0003ffff]+")

    def __init__(self) -> None:
        self.console = Console()
        self.column = 0
        self.space = ""
        self.word: list[tuple[str, str]] = []

    @property
    def colours(self) -> bool:
        return self.console.color_system is not None

    def write(self, text: str, style: str = "") -> None:
        if not self.console.is_terminal:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        for part in self.PARTS.findall(escape_controls(text)):
            if part == "\n":
                self.put_word()
                self.put("\n")
            elif part[0] in " \t":
                self.put_word()
                self.space += part
            else:
                self.add(part, style)

    def add(self, letters: str, style: str) -> None:
        """Characters of a word; a double-width character is a word by itself."""
        for run in self.RUNS.findall(letters):
            if len(run) == 1 and cell_len(run) == 2:
                self.put_word()
                self.put(run, style)
            else:
                self.word.append((run, style))

    def put_word(self) -> None:
        """Write the word held back, on a new line if it does not fit on this one."""
        size = cell_len("".join(text for text, _ in self.word))
        width = self.console.width
        has_room = self.column + cell_len(self.space.expandtabs(TAB)) + size <= width
        longer_than_lines = size > width
        self.put(self.space if has_room or longer_than_lines or self.column == 0 else "\n")
        for text, style in self.word:
            self.put(text, style)
        self.space = ""
        self.word = []

    def put(self, text: str, style: str = "") -> None:
        if style:
            self.console.print(Text(text, style=style), end="", soft_wrap=True)
        else:
            sys.stdout.write(text)
        sys.stdout.flush()
        for letter in text:
            self.column = self.after(letter)

    def after(self, letter: str) -> int:
        """The cursor's column after this character; it wraps to the next line if this one is
        full."""
        if letter == "\n":
            return 0
        size = TAB - self.column % TAB if letter == "\t" else get_character_cell_size(letter)
        return size if self.column + size > self.console.width else self.column + size

    def end(self) -> None:
        """Write the last word and end its line."""
        if self.console.is_terminal:
            self.put_word()
        sys.stdout.write("\n")
        sys.stdout.flush()
