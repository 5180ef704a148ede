"""Everything that commands print: results on stdout, notes and progress on stderr.

What comes from a model or a file can hold anything. Here, and only here, it meets the terminal:

- names, notes, tables and errors: control characters are written out (`\\x1b`), wherever the output
  goes;
- generated text: written out on a terminal, as it is into a pipe or file, byte for byte;
- JSON: exact, with the characters that steer a terminal as `\\uXXXX`.

`print` and rich's own Console are banned from the commands, so that none can forget it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
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


def show(render: Callable[[int], list[Text]], *, pipe_width: int = PIPE_WIDTH) -> None:
    """Lines made for a width, in colour on a terminal (unless NO_COLOR), plain in a pipe."""
    console = Console()
    wide = console.width if console.is_terminal or "COLUMNS" in os.environ else pipe_width
    for line in render(wide):
        console.print(line, soft_wrap=True)


def note(text: object, *, style: str = "yellow") -> None:
    """Something that the user should know, in one line on stderr."""
    remark(f"note: {text}", style=style)


def remark(text: object, *, style: str = "dim") -> None:
    """A line on stderr beside the result; on a terminal it wraps between words."""
    console = Console(stderr=True)
    console.print(escape_line(str(text)), style=style, soft_wrap=not console.is_terminal)


def complain(text: str) -> None:
    """An error, in one line on stderr. It is not wrapped, for its fix is there to be copied."""
    sys.stderr.write(f"error: {escape_line(' '.join(text.split()))}\n")
    sys.stderr.flush()


def bar(*, shown: bool = True) -> Progress:
    """How far something is, on stderr, where someone is looking. What is printed meanwhile stays on
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
    """Generated text on stdout as it is made: into a pipe exactly, on a terminal escaped and
    wrapped between words.

    A terminal alone would break lines within words. So a word is held back until it is complete,
    and begins a new line where it does not fit. Letters that take two cells (Japanese, Chinese) may
    break anywhere: there, the terminal does it.
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
        """Letters of a word; one that takes two cells belongs to none."""
        for run in self.RUNS.findall(letters):
            if len(run) == 1 and cell_len(run) == 2:
                self.put_word()
                self.put(run, style)
            else:
                self.word.append((run, style))

    def put_word(self) -> None:
        """What was held back, in a new line if this one has no room for it."""
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
        """The column behind a letter that is put here, where a terminal puts it on the next line if
        this one is full."""
        if letter == "\n":
            return 0
        size = TAB - self.column % TAB if letter == "\t" else get_character_cell_size(letter)
        return size if self.column + size > self.console.width else self.column + size

    def end(self) -> None:
        """The last word, and the end of its line."""
        if self.console.is_terminal:
            self.put_word()
        sys.stdout.write("\n")
        sys.stdout.flush()
