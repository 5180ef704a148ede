"""A walk through one block for the terminal: formula, shape, numbers."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len
from rich.text import Text

from sightline.explain.block.page import BlockPage, count
from sightline.explain.block.panels import BETWEEN, Panel, arrange, panels_of
from sightline.explain.block.steps import Part, Step, Values
from sightline.explain.example import SHADES
from sightline.explain.lines import size_text, symbol_text
from sightline.explain.terminal import FUNCTIONS, GAP, INDENT, NARROW, WEIGHTS, flow, pad

LABEL = 6  # block_columns of the indent and a row's number


def render_block(page: BlockPage, *, width: int) -> list[Text]:
    """All lines of the terminal output."""
    width = max(width, NARROW)
    lines = page_heading(page, width)
    for number, part in enumerate(page.parts, 1):
        lines += [Text(), Text(f"{number}. {part.title}", "bold")]
        rows = formula_rows if page.values is None else numbered_part
        lines += rows(page, part, width)
    for line in lines:
        line.rstrip()
    return lines


def page_heading(page: BlockPage, width: int) -> list[Text]:
    """What the page shows, the sizes, the parameters."""
    what = "one block" if page.seed is None else f"one block with numbers, seed {page.seed}"
    symbols = " ".join(step.symbol for step in page.weights)
    tensors = f"{page.parameters:,} parameters in {len(page.weights)} tensors: {symbols}"
    drawn = "X and the parameters are random, rounded to two decimals."
    notes = [tensors, page.not_modelled if page.values is None else drawn]
    return [
        Text.assemble((page.name, "bold"), GAP, (what, "bold cyan")),
        *(Text(line, "cyan") for line in flow(page.legend, width)),
        *(Text(line, "dim") for note in notes for line in textwrap.wrap(note, width)),
    ]


# ----------------------------------------------------------------------------- formulas and shapes


def formula_rows(page: BlockPage, part: Part, width: int) -> list[Text]:
    """One row per step, in columns that are the same for all parts; remarks below their step."""
    most, gap = block_columns([step_cells(step) for step in page.steps], width - len(INDENT))
    lines: list[Text] = []
    for step in part.steps:
        formula, shape, size, counted = step_cells(step)
        line = Text(INDENT).append_text(coloured(pad(formula, most[0])))
        line.append(gap + pad(shape, most[1]), "cyan")
        line.append(gap + pad(size, most[2]) if most[2] else "", "dim")
        line.append(gap + pad(counted, most[3], right=True) if most[3] else "")
        lines += [line, *indented(step.says, "dim", width)]
        lines += indented(step.remark, "yellow", width)
    return lines


def block_columns(rows: list[tuple[str, str, str, str]], width: int) -> tuple[list[int], str]:
    """Widths of formula, shape, size and parameters and the gap between them; on a narrow screen
    parameters are dropped (0), then sizes."""
    natural = [max(cell_len(row[n]) for row in rows) for n in range(4)]
    for kept in (4, 3, 2):
        for gap in (GAP, GAP[1:]):
            if sum(natural[:kept]) + len(gap) * (kept - 1) <= width:
                return [*natural[:kept], 0, 0][:4], gap
    return [*natural[:2], 0, 0], GAP[1:]


def step_cells(step: Step) -> tuple[str, str, str, str]:
    counted = f"{count(step):,}" if step.is_weight else ""
    return step.formula, symbol_text(step.shape), size_text(step.shape), counted


def coloured(formula: str) -> Text:
    text = Text(formula)
    text.highlight_regex(FUNCTIONS, "magenta")
    text.highlight_regex(WEIGHTS, "green")
    return text


def indented(text: str, style: str, width: int) -> list[Text]:
    """A text below its step."""
    indent = 2 * INDENT
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    return [Text(line, style) for line in lines]


# ------------------------------------------------------------------------------------- with numbers


def numbered_part(page: BlockPage, part: Part, width: int) -> list[Text]:
    assert page.values is not None
    return [
        line for step in part.steps for line in numbered_step(step, page.values[step.name], width)
    ]


def numbered_step(step: Step, values: Values, width: int) -> list[Text]:
    """A blank line, formula and shape, what it is, and the numbers."""
    first = Text(INDENT).append_text(coloured(step.formula))
    first.append(f"{GAP}{symbol_text(step.shape)} = {size_text(step.shape)}", "cyan")
    fits = cell_len(first.plain + GAP + step.says) <= width
    if fits:
        first.append(GAP + step.says, "dim")
    bands = arrange(panels_of(values), width - LABEL)
    return [
        Text(),
        first,
        *indented("" if fits else step.says, "dim", width),
        *indented(step.remark, "yellow", width),
        *(line for band in bands for line in band_lines(band, step)),
    ]


def band_lines(band: list[Panel], step: Step) -> list[Text]:
    """Panels side by side: their titles, then their rows."""
    titles = "".join(
        (" " * 2 * BETWEEN + panel.title).ljust(panel.width + BETWEEN) for panel in band
    )
    title = [Text(" " * LABEL + titles, "dim")] if any(p.title for p in band) else []
    lines: list[Text] = []
    for row in range(len(band[0].rows)):
        label = str(row + 1) if len(band[0].rows) > 1 else ""
        line = Text.assemble((label.rjust(LABEL), "dim"))
        for panel in band:
            line.append(" " * BETWEEN)
            for cell, value in zip(panel.rows[row], panel.values[row], strict=True):
                line.append(cell.rjust(panel.cell), style_of(step, value))
        lines.append(line)
    return title + lines


def style_of(step: Step, value: float) -> str:
    """Weights are shaded by size; masked places are dim."""
    if step.name == "weights" and value > 0:
        return SHADES[min(int(value * len(SHADES)), len(SHADES) - 1)]
    return "dim" if value == float("-inf") or step.name == "weights" else ""
