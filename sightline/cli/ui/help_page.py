"""The layout of `--help`: headings, names in one column, descriptions in the next.

On a narrow terminal the descriptions stand below the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from sightline.terminal.console import Console

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel

INDENT = 2
GAP = 2
LONGEST_NAME = 27  # cells; the description of a longer name starts on the next line
NARROW = 60  # columns, below which every description starts on the next line
WIDEST = 100  # columns: longer lines are hard to read


class HelpPage:
    """Renders cyclopts' help without boxes, on our own console."""

    def __call__(self, console: object, options: object, panel: HelpPanel) -> None:
        if not panel.entries:
            return
        screen = Console()
        width = min(screen.width, WIDEST)
        names = [entry_name(entry) for entry in panel.entries]
        fitting = [len(name) for name in names if len(name) <= LONGEST_NAME]
        column = 0 if width < NARROW else max(fitting, default=0)
        screen.print()
        screen.print(Text(f"{panel.title}", "bold"))
        for name, entry in zip(names, panel.entries, strict=True):
            for line in entry_lines(screen, name, describe(entry), column=column, width=width):
                screen.print(line)

    def render_usage(self, console: object, options: object, usage: Any) -> None:
        print_lines(f"Usage: {plain_text(usage).removeprefix('Usage: ')}")

    def render_description(self, console: object, options: object, description: Any) -> None:
        text = plain_text(description)
        for paragraph in text.split("\n\n") if text else ():
            Console().print()
            print_lines(reflow(paragraph))


def print_lines(text: str) -> None:
    """A paragraph wrapped to the terminal."""
    screen = Console()
    for line in wrap(screen, Text(text), min(screen.width, WIDEST)):
        screen.print(line)


def entry_name(entry: HelpEntry) -> str:
    """`--top-k INT`, `--help, -h`, `MODEL`."""
    return ", ".join(entry.display_labels_with_metavar)


def describe(entry: HelpEntry) -> Text:
    """The description, the choices and the default."""
    text = Text(reflow(plain_text(entry.description)))
    if entry.choices:
        text.append(f" [choices: {', '.join(entry.choices)}]", "dim")
    if entry.default is not None:
        text.append(f" [default: {entry.default}]", "dim")
    if entry.required:
        text.append(" [required]", "dim")
    return text


def entry_lines(
    screen: Console, name: str, description: Text, *, column: int, width: int
) -> list[Text]:
    """A name with its description beside it, or below it if the name is wider than the column."""
    start = INDENT + column + GAP if column else 2 * INDENT + GAP
    margin = Text(" " * start)
    wrapped = wrap(screen, description, width - start)
    label = Text(" " * INDENT).append(name, "cyan")
    if len(name) > column:
        return [label, *(margin + line for line in wrapped)]
    label.append(" " * (start - INDENT - len(name)))
    return [label + wrapped[0] if wrapped else label, *(margin + line for line in wrapped[1:])]


def wrap(screen: Console, text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, without trailing spaces."""
    lines = list(text.wrap(screen, max(width, 16)))
    for line in lines:
        line.rstrip()
    return lines


def reflow(text: str) -> str:
    """Without the line breaks of the source file."""
    return " ".join(text.split())


def plain_text(value: Any) -> str:
    """The text of one of cyclopts' renderables."""
    text = getattr(value, "primary_renderable", value)
    if isinstance(text, Text):
        return text.plain.strip()
    return "" if text is None else str(text).strip()
