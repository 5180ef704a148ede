"""Views in a terminal: coloured blocks, or shades without colours, fitted to the width.

A map that is too large is binned: tokens share a column or a row, with a note. With colours, a tall
map has two rows per line (▀, with a foreground and a background colour).
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
from sightline.lens.draw.view import View, bin_values
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

MARGIN = 16  # most cells of a row label
TALL = 48  # most lines of a map
HEADING = 10  # most letters of a column label
TOP = 4  # keys per token in `lines`
KEY = 10  # cells of a key's label
BAR = 8  # cells of its bar
WORD = 9  # cells of a token in the logit lens


def print_view(view: View, console: RichConsole | None = None) -> None:
    """Print a view to a console, by default stdout."""
    console = console or Console()
    for line in render_view(view, width=console.width, colours=colour_count(console)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False)


def render_view(view: View, *, width: int, colours: int) -> Iterator[Text]:
    """The lines of a view: title, picture, legend, caption, notes."""
    yield from wrap_lines(Text(escape_controls(view.title), style="bold"), width)
    body, more = RENDERERS[view.kind](view, width, colours)
    yield from body
    for text in (view.caption, *view.notes, *more):
        yield from wrap_lines(Text(escape_controls(text), style="dim"), width)


def wrap_lines(text: Text, width: int) -> list[Text]:
    """The text wrapped to `width` cells."""
    return list(text.wrap(Console(width=width), width))


Rendering = tuple[list[Text], list[str]]  # the lines, and notes about them


def map_text(view: View, width: int, colours: int, tall: int = TALL) -> Rendering:
    """The map; rows are queries."""
    small, half = fit_to_terminal(view, width, colours, tall)
    margin = row_margin(small)
    cell = 2 if 2 * small.values.shape[1] + margin + 1 <= width and not half else 1
    lines = [*column_labels(small, margin, cell)]
    lines += half_rows(small, margin, colours) if half else whole_rows(small, margin, cell, colours)
    lines += [Text(), *wrap_lines(legend(small, colours=colours), width)]
    across = small.across
    note = (
        ""
        if across == view.across
        else f"to fit the terminal, {across[0]} tokens share a row and {across[1]} a column"
    )
    return lines, [note] if note else []


def fit_to_terminal(view: View, width: int, colours: int, tall: int = TALL) -> tuple[View, bool]:
    """The view, binned to fit, and whether two rows share a line."""
    rows, columns = view.values.shape
    room = max(4, width - MARGIN - 2)
    along = -(-columns // room)
    half = bool(colours) and rows > tall
    down = -(-rows // (2 * tall if half else tall))
    if half and columns * 2 <= room and rows <= 2 * tall:
        half = False  # few columns: one line per row keeps cells square
        down = 1
    if down == along == 1:
        return view, half
    values = bin_values(view.values, (down, along), add=not view.signed)
    smaller = replace(view, values=values, rows=view.rows[::down], columns=view.columns[::along])
    return replace(smaller, across=(view.across[0] * down, view.across[1] * along)), half


def has_numbered_labels(view: View) -> bool:
    """Whether row labels have numbers: if there are too many columns for names."""
    return view.values.shape[1] > 40 or view.across != (1, 1)


def row_label(view: View, row: int) -> str:
    name = view.rows[row]
    return f"{row * view.across[0]} {name}" if has_numbered_labels(view) else name


def row_margin(view: View) -> int:
    return widest([row_label(view, n) for n in range(len(view.rows))], MARGIN)


def column_labels(view: View, margin: int, cell: int) -> Iterator[Text]:
    """Vertical names where a column has two cells, else a ruler of numbers."""
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
    """One line per row."""
    for row, values in enumerate(view.values.tolist()):
        line = Text(right(row_label(view, row), margin) + " ")
        for value in values:
            if colours and value == value:
                line.append(" " * cell, style=f"on {colour(view, value, colours)}")
            else:
                line.append((" " if colours else shade(view, value)) * cell)
        yield line


def half_rows(view: View, margin: int, colours: int) -> Iterator[Text]:
    """Two rows per line: the upper half of a cell is the first."""
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


def lines_text(view: View, width: int, colours: int) -> Rendering:
    """For each query the keys with the largest weights, with bars."""
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
    return lines, [f"the {count} keys with the largest weights per query"]


def heads_text(view: View, width: int, colours: int) -> Rendering:
    """One row of thumbnails per layer."""
    layers, heads = view.values.shape[:2]
    size = min(16, max(6, (width - 4) // min(heads, 12) - 1) // 2 * 2, view.values.shape[2])
    per_line = max(1, (width - 4) // (size + 1))
    lines = list[Text]()
    for first in range(0, heads, per_line):
        columns_shown = range(first, min(heads, first + per_line))
        lines.append(
            Text(
                "    " + " ".join(fitted(view.columns[n], size) for n in columns_shown).rstrip(),
                style="dim",
            )
        )
        for layer in range(layers):
            small = [list(head_tile(view, layer, head, size, colours)) for head in columns_shown]
            for number, parts in enumerate(zip(*small, strict=True)):
                lines.append(
                    Text(f"{view.rows[layer] if number == 0 else '':>3} ").append_text(
                        Text(" ").join(parts)
                    )
                )
            lines.append(Text())
    return [*lines, *wrap_lines(legend(view, colours=colours), width)], [
        (
            f"each small map has {size} columns at most"
            if view.values.shape[3] > size
            else "layers down, heads across"
        )
    ]


def head_tile(view: View, layer: int, head: int, size: int, colours: int) -> Iterator[Text]:
    """One head as a thumbnail of `size` cells and half as many lines: half a cell is square."""
    values = view.values[layer, head]
    step = -(-values.shape[0] // size), -(-values.shape[1] // size)
    one = replace(view, values=bin_values(values, step if colours else (2 * step[0], step[1])))
    limits = replace(view, values=view.values)
    rows = (
        half_rows(_with_limits_of(limits, one), 0, colours)
        if colours
        else whole_rows(_with_limits_of(limits, one), 0, 1, 0)
    )
    for line in rows:
        cells = line[1:]
        cells.pad_right(max(0, size - cells.cell_len))
        yield cells


def _with_limits_of(whole: View, part: View) -> View:
    """`part` with the colour limits of `whole`."""
    blank = tuple("" for _ in part.values)
    return replace(part, rows=blank, columns=(), across=(1, 1), high=whole.limits[1])


def geometry_text(view: View, width: int, colours: int) -> Rendering:
    """Lengths as bars, then the map of cosines."""
    query = view.extra["query"]
    key = view.extra["key"]
    lines = wrap_lines(Text(f"|q| {range_and_mean(query)}    |k| {range_and_mean(key)}"), width)
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
    body, more = map_text(view, width, colours)
    return [*lines, Text(), *body], more


def range_and_mean(lengths: Sequence[float] | np.ndarray) -> str:
    """Minimum, maximum and mean, in words."""
    return f"{np.min(lengths):.3g} to {np.max(lengths):.3g}, mean {np.mean(lengths):.3g}"


def logit_lens_text(view: View, width: int, colours: int) -> Rendering:
    """The most likely token after each layer; columns that do not fit continue below."""
    margin = widest(view.rows, MARGIN)
    cell = WORD if colours else WORD + 4
    per_line = max(1, (width - margin - 1) // (cell + 1))
    lines = list[Text]()
    for first in range(0, len(view.columns), per_line):
        columns_shown = range(first, min(len(view.columns), first + per_line))
        lines.append(
            Text(
                " " * (margin + 1)
                + " ".join(fitted(view.columns[n], cell) for n in columns_shown).rstrip(),
                style="bold",
            )
        )
        for row, name in enumerate(view.rows):
            line = Text(right(name, margin))
            for column in columns_shown:
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
    return [*lines, *(wrap_lines(legend(view, colours=colours), width) if colours else [])], [
        "bold: the input token; below it, the most likely next token after each layer"
    ]


def sphere_text(view: View, width: int, colours: int) -> Rendering:
    from sightline.lens.draw.sphere_terminal import sphere_lines

    return sphere_lines(view, width=width, colours=bool(colours)), (
        [] if colours else ["✦ key, ○ query, dots: attention of 10 % and more"]
    )


RENDERERS: dict[str, Callable[[View, int, int], Rendering]] = {
    "map": map_text,
    "alignment": map_text,
    "rollout": map_text,
    "lines": lines_text,
    "heads": heads_text,
    "geometry": geometry_text,
    "sphere": sphere_text,
    "logit-lens": logit_lens_text,
}
