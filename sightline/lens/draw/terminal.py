"""A view in a terminal: blocks of colour, or shades where there are none, as wide as there is room.

A map that is too large is drawn smaller: tokens share a column or a row, and a line says so. Two
rows share a line where there are colours (▀, with a colour above and one below), when one line each
would be too long a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from rich.cells import cell_len
from rich.console import Console as RichConsole  # noqa: TID251
from rich.text import Text

from sightline.escapes import escape_controls
from sightline.lens.draw.view import View, pooled
from sightline.terminal.console import Console
from sightline.terminal.ink import (
    bar,
    colour,
    colour_count,
    fitted,
    legend,
    on_colour,
    right,
    shade,
    widest,
)

MARGIN, TALL, HEADING = (
    16,
    48,
    10,
)  # the most cells of a row's label, lines of a map, letters of a column's label
TOP = 4  # of `lines`: keys of a token, and the cells of a key's name and bar
KEY = 10
BAR = 8
WORD = 9  # cells of a word in the logit lens


def print_view(view: View, console: RichConsole | None = None) -> None:
    """The view on a console; on stdout unless another is given."""
    console = console or Console()
    for line in drawn(view, width=console.width, colours=colour_count(console)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False)


def drawn(view: View, *, width: int, colours: int) -> Iterator[Text]:
    """Title, picture, legend, caption, notes."""
    yield from folded(Text(escape_controls(view.title), style="bold"), width)
    body, more = DRAWN[view.kind](view, width, colours)
    yield from body
    for text in (view.caption, *view.notes, *more):
        yield from folded(Text(escape_controls(text), style="dim"), width)


def folded(text: Text, width: int) -> list[Text]:
    """Lines of so many cells."""
    return list(text.wrap(Console(width=width), width))


Drawing = tuple[list[Text], list[str]]  # the lines, and what has to be said of them


def draw_map(view: View, width: int, colours: int, tall: int = TALL) -> Drawing:
    """Rows are the tokens that look."""
    small, half = resized(view, width, colours, tall)
    margin = row_margin(small)
    cell = 2 if 2 * small.values.shape[1] + margin + 1 <= width and not half else 1
    lines = [*column_labels(small, margin, cell)]
    lines += half_rows(small, margin, colours) if half else whole_rows(small, margin, cell, colours)
    lines += [Text(), *folded(legend(small, colours=colours), width)]
    across = small.across
    said = (
        ""
        if across == view.across
        else f"to fit the terminal, {across[0]} tokens share a row and {across[1]} a column"
    )
    return lines, [said] if said else []


def resized(view: View, width: int, colours: int, tall: int = TALL) -> tuple[View, bool]:
    """The view in as many rows and columns as there is room for, and whether two rows share a
    line."""
    rows, columns = view.values.shape
    room = max(4, width - MARGIN - 2)
    along = -(-columns // room)
    half = bool(colours) and rows > tall
    down = -(-rows // (2 * tall if half else tall))
    if half and columns * 2 <= room and rows <= 2 * tall:
        half = False  # few columns: rows are a line each, and cells stay square
        down = 1
    if down == along == 1:
        return view, half
    values = pooled(view.values, (down, along), add=not view.signed)
    smaller = replace(view, values=values, rows=view.rows[::down], columns=view.columns[::along])
    return replace(smaller, across=(view.across[0] * down, view.across[1] * along)), half


def numbered(view: View) -> bool:
    """Whether labels have numbers: where columns are too many to have names."""
    return view.values.shape[1] > 40 or view.across != (1, 1)


def row_label(view: View, row: int) -> str:
    name = view.rows[row]
    return f"{row * view.across[0]} {name}" if numbered(view) else name


def row_margin(view: View) -> int:
    return widest([row_label(view, n) for n in range(len(view.rows))], MARGIN)


def column_labels(view: View, margin: int, cell: int) -> Iterator[Text]:
    """Names from top to bottom where a column has two cells, else a ruler of numbers."""
    if cell == 2:
        names = [
            fitted(name, HEADING).rstrip() if cell_len(name) > HEADING else name
            for name in view.columns
        ]
        high = max(map(len, names), default=0)
        for letters in zip_longest(
            *(" " * (high - len(name)) + name for name in names), fillvalue=" "
        ):
            yield Text(
                " " * (margin + 1) + "".join(fitted(letter, 2) for letter in letters).rstrip(),
                style="dim",
            )
        return
    ruler = ""
    step = 10
    for column in range(0, len(view.columns), step):
        ruler = ruler.ljust(column) + f"╷{column * view.across[1]}"
    yield Text(" " * (margin + 1) + ruler, style="dim")


def whole_rows(view: View, margin: int, cell: int, colours: int) -> Iterator[Text]:
    """A line for each row."""
    for row, values in enumerate(view.values.tolist()):
        line = Text(right(row_label(view, row), margin) + " ")
        for value in values:
            if colours and value == value:
                line.append(" " * cell, style=f"on {colour(view, value, colours)}")
            else:
                line.append((" " if colours else shade(view, value)) * cell)
        yield line


def half_rows(view: View, margin: int, colours: int) -> Iterator[Text]:
    """Two rows in a line: the upper half of a cell is the first."""
    values = view.values.tolist()
    for row in range(0, len(values), 2):
        line = Text(right(row_label(view, row), margin) + " ")
        under = values[row + 1] if row + 1 < len(values) else [float("nan")] * len(values[row])
        for upper, lower in zip(values[row], under, strict=True):
            if upper != upper and lower != lower:
                line.append(" ")
            elif upper != upper:
                line.append("▄", style=colour(view, lower, colours))
            else:
                line.append(
                    "▀",
                    style=colour(view, upper, colours)
                    + ("" if lower != lower else f" on {colour(view, lower, colours)}"),
                )
        yield line


def draw_lines(view: View, width: int, colours: int) -> Drawing:
    """For each token the keys it looks at most, with bars."""
    margin = widest(view.rows, MARGIN)
    count = max(1, min(TOP, view.values.shape[1], (width - margin - 3) // (KEY + BAR + 8)))
    lines = list[Text]()
    for name, values in zip(view.rows, np.nan_to_num(view.values, nan=-1.0), strict=True):
        line = Text(right(name, margin) + " →")
        for key in np.argsort(-values, kind="stable")[:count]:
            weight = float(values[key])
            if weight < 0.005:
                break
            line.append(f" {fitted(view.columns[key], KEY)} ")
            line.append(bar(weight, BAR), style=colour(view, weight, colours) if colours else "")
            line.append(f"{weight:>5.0%} ", style="dim")
        lines.append(line)
    return lines, [f"the {count} keys that each token looks at most"]


def draw_heads(view: View, width: int, colours: int) -> Drawing:
    """A row of small maps for each layer."""
    layers, heads = view.values.shape[:2]
    size = min(16, max(6, (width - 4) // min(heads, 12) - 1) // 2 * 2, view.values.shape[2])
    together = max(1, (width - 4) // (size + 1))
    lines = list[Text]()
    for first in range(0, heads, together):
        shown = range(first, min(heads, first + together))
        lines.append(
            Text(
                "    " + " ".join(fitted(view.columns[n], size) for n in shown).rstrip(),
                style="dim",
            )
        )
        for layer in range(layers):
            small = [list(tile(view, layer, head, size, colours)) for head in shown]
            for number, parts in enumerate(zip(*small, strict=True)):
                lines.append(
                    Text(f"{view.rows[layer] if number == 0 else '':>3} ").append_text(
                        Text(" ").join(parts)
                    )
                )
            lines.append(Text())
    return [*lines, *folded(legend(view, colours=colours), width)], [
        (
            f"each small map has {size} columns at most"
            if view.values.shape[3] > size
            else "layers down, heads across"
        )
    ]


def tile(view: View, layer: int, head: int, size: int, colours: int) -> Iterator[Text]:
    """One head in so many cells across and half as many lines: a half of a cell is a square."""
    values = view.values[layer, head]
    step = -(-values.shape[0] // size), -(-values.shape[1] // size)
    one = replace(view, values=pooled(values, step if colours else (2 * step[0], step[1])))
    limits = replace(view, values=view.values)
    rows = (
        half_rows(_like(limits, one), 0, colours)
        if colours
        else whole_rows(_like(limits, one), 0, 1, 0)
    )
    for line in rows:
        shown = line[1:]
        shown.pad_right(max(0, size - shown.cell_len))
        yield shown


def _like(whole: View, part: View) -> View:
    """A part whose colours mean what the whole's do."""
    blank = tuple("" for _ in part.values)
    return replace(part, rows=blank, columns=(), across=(1, 1), high=whole.limits[1])


def draw_geometry(view: View, width: int, colours: int) -> Drawing:
    """The lengths as bars, then the map of cosines."""
    query = view.extra["query"]
    key = view.extra["key"]
    lines = folded(Text(f"|q| {spread(query)}    |k| {spread(key)}"), width)
    if view.rows == view.columns and len(view.rows) <= TALL and width >= MARGIN + 32:
        margin = widest(view.rows, MARGIN)
        cells = max(4, min(24, (width - MARGIN - 24) // 2))
        for name, q, k in zip(view.rows, query.tolist(), key.tolist(), strict=True):
            line = Text(f"{right(name, margin)} |q| ")
            line.append(
                bar(q / float(query.max()), cells), style="#6fa8dc" if colours else ""
            ).append(f" {q:<6.3g} |k| ")
            lines.append(
                line.append(
                    bar(k / float(key.max()), cells), style="#e0a84a" if colours else ""
                ).append(f" {k:.3g}")
            )
    body, more = draw_map(view, width, colours)
    return [*lines, Text(), *body], more


def spread(lengths: Sequence[float] | np.ndarray) -> str:
    """Least, mean and greatest."""
    return f"{np.min(lengths):.3g} to {np.max(lengths):.3g}, mean {np.mean(lengths):.3g}"


def draw_logit_lens(view: View, width: int, colours: int) -> Drawing:
    """The likeliest token after each layer; columns that do not fit go on below."""
    margin = widest(view.rows, MARGIN)
    cell = WORD if colours else WORD + 4
    together = max(1, (width - margin - 1) // (cell + 1))
    lines = list[Text]()
    for first in range(0, len(view.columns), together):
        shown = range(first, min(len(view.columns), first + together))
        lines.append(
            Text(
                " " * (margin + 1)
                + " ".join(fitted(view.columns[n], cell) for n in shown).rstrip(),
                style="bold",
            )
        )
        for row, name in enumerate(view.rows):
            line = Text(right(name, margin))
            for column in shown:
                value = float(view.values[row, column])
                word = view.cells[row][column]
                line.append(" ")
                line.append(
                    *(
                        (fitted(word, cell), on_colour(view, value, colours))
                        if colours
                        else (f"{fitted(word, WORD)}{value:>4.0%}", "")
                    )
                )
            lines.append(line)
        lines.append(Text())
    return [*lines, *(folded(legend(view, colours=colours), width) if colours else [])], [
        "bold: the token that was read; below it, what would be said next"
    ]


def draw_sphere(view: View, width: int, colours: int) -> Drawing:
    from sightline.lens.draw.night_sky import night_sky

    return night_sky(view, width=width, colours=bool(colours)), (
        [] if colours else ["✦ key, ○ query, dots: attention of 10 % and more"]
    )


DRAWN: dict[str, Callable[[View, int, int], Drawing]] = {
    "map": draw_map,
    "alignment": draw_map,
    "rollout": draw_map,
    "lines": draw_lines,
    "heads": draw_heads,
    "geometry": draw_geometry,
    "sphere": draw_sphere,
    "logit-lens": draw_logit_lens,
}
