"""An explanation for the terminal: aligned columns, as many as fit, with colour where supported."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len
from rich.text import Text

from sightline.explain import wording
from sightline.explain.lines import Line, Section, size_text, symbol_text
from sightline.explain.summary import Explanation

GAP = "   "
INDENT = "  "
FUNCTIONS = r"\b(?:LN|RMS)(?:[₁₂₃₄₅₆]|_[A-Za-z])?(?=\()|\b[a-z_]+(?=\()"
WEIGHTS = (
    r"\bW_[A-Z0-9]ᵀ?|\bb_[A-Z0-9]\b|\bs_(?:qk|u|v|z)\b|α_[AM]|[γβτσ]|\bB(?=\[)|\bPE(?=\[)|\bR_p\b"
)
BAR = "▏▎▍▌▋▊▉█"
NARROW = 40


def render_explanation(explanation: Explanation, *, width: int) -> list[Text]:
    """All lines of the terminal output."""
    width = max(width, NARROW)
    blocks = (title, equation_lines, definition_lines, count_table, cost_lines)
    lines = [line for block in blocks for line in [*block(explanation, width), Text()]]
    for line in lines:
        line.rstrip()
    return lines[:-1]


def title(explanation: Explanation, width: int) -> list[Text]:
    first = Text.assemble(
        (explanation.name, "bold"), GAP, (f"{explanation.parameters:,} parameters", "bold cyan")
    )
    about = [wording.model_kind(explanation.config), *wording.paper_sentences(explanation)]
    return [
        first,
        *(Text(line, "dim") for text in about for line in textwrap.wrap(text, width)),
        Text(),
        *(
            Text(line, "cyan")
            for line in flow(wording.dimension_legend(explanation.letters), width)
        ),
    ]


def flow(items: list[str], width: int) -> list[str]:
    """Items separated by gaps, wrapped between items."""
    lines = [""]
    for item in items:
        longer = f"{lines[-1]}{GAP}{item}" if lines[-1] else item
        if cell_len(longer) > width and lines[-1]:
            lines.append(item)
        else:
            lines[-1] = longer
    return lines


def pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


# -------------------------------------------------------------------------------------- equations


def equation_lines(explanation: Explanation, width: int) -> list[Text]:
    """The equations of each section under its heading, with aligned columns."""
    lines = [line for section in explanation.sections for line in section.lines]
    at = columns([line_cells(line) for line in lines], width)
    screen: list[Text] = []
    last = None
    for section in explanation.sections:
        block = (section.stack, section.block)
        if section.block is None or block != last:
            heading = wording.section_heading(explanation, section)
            first = equation_row((heading, "shape", "size", "parameters"), at, header=True)
            screen += [Text(), Text(heading, "bold")] if screen else [first]
        last = block
        screen += [
            *subheading(explanation, section),
            *(equation_row(line_cells(line), at) for line in section.lines),
        ]
    return screen


def line_cells(line: Line) -> tuple[str, str, str, str]:
    return 2 * INDENT + line.equation, symbol_text(line.shape), size_text(line.shape), line.counted


def columns(rows: list[tuple[str, str, str, str]], width: int) -> list[int]:
    """Column widths of equation, shape, size and parameters; on a narrow screen first sizes, then
    parameters are dropped (0)."""
    least = (0, len("shape"), len("size"), len("parameters"))
    natural = [max(few, *(cell_len(row[n]) for row in rows)) for n, few in enumerate(least)]
    for dropped in ((), (2,), (2, 3)):
        widths = [0 if n in dropped else size for n, size in enumerate(natural)]
        if sum(widths) + len(GAP) * (3 - len(dropped)) <= width:
            return widths
    return [natural[0], natural[1], 0, 0]


def equation_row(row: tuple[str, str, str, str], at: list[int], *, header: bool = False) -> Text:
    equation = Text(pad(row[0], at[0]), "bold" if header else "")
    if not header:
        equation.highlight_regex(FUNCTIONS, "magenta")
        equation.highlight_regex(WEIGHTS, "green")
    text = Text.assemble(equation, GAP, (pad(row[1], at[1]), "dim" if header else "cyan"))
    if at[2]:
        text.append(GAP + pad(row[2], at[2]), "dim")
    if at[3]:
        text.append(GAP + pad(row[3], at[3], right=True), "dim" if header else "")
    return text


def subheading(explanation: Explanation, section: Section) -> list[Text]:
    """The sub-layer's name and the symbols that are specific to it."""
    legend = GAP.join(wording.dimension_legend(explanation.letters_of(section)))
    name = (
        ""
        if section.block is None
        else wording.SECTION_NAMES[section.name] + (GAP if legend else "")
    )
    return [Text.assemble(INDENT, (name, "italic dim"), (legend, "cyan"))] if name or legend else []


def definition_lines(explanation: Explanation, width: int) -> list[Text]:
    """Definitions of the symbols."""
    definitions = [*explanation.definitions, wording.SMALL_LETTERS]
    return [
        Text("where", "bold"),
        *described_rows([(name, "", text) for name, text in definitions], width, style="green"),
    ]


def described_rows(rows: list[tuple[str, str, str]], width: int, *, style: str) -> list[Text]:
    """Name, value and a text with a hanging indent."""
    first, second = (max(cell_len(row[n]) for row in rows) for n in (0, 1))
    left = len(INDENT) + first + len(GAP) + (second + len(GAP) if second else 0)
    screen: list[Text] = []
    for name, value, text in rows:
        wrapped = textwrap.wrap(text, max(width - left, NARROW // 2)) or [""]
        head = Text.assemble(INDENT, (pad(name, first), style), GAP)
        head.append(pad(value, second, right=True) + GAP if second else "", "bold")
        screen += [head.append(wrapped[0]), *(Text(" " * left + line) for line in wrapped[1:])]
    return screen


# ------------------------------------------------------------------------------- counts and costs


def count_table(explanation: Explanation, width: int) -> list[Text]:
    """Parameters and FLOPs of each sub-layer with percentages and bars."""
    rows = wording.table_rows(explanation)
    parameters = explanation.parameters
    flops = explanation.forward_flops
    body = [tuple(wording.row_cells(row, parameters, flops)) for row in rows]
    cells = [
        ("", "parameters", "share", "FLOP", "share"),
        *body,
        ("total", f"{parameters:,}", "", wording.with_unit(flops, ""), ""),
    ]
    at = [max(cell_len(row[n]) for row in cells) for n in range(5)]
    bars = sum(at) + 6 * len(GAP) + 20 <= width
    screen: list[Text] = []
    for n, row in enumerate(cells):
        style = "dim" if n == 0 else "bold" if n == len(cells) - 1 else ""
        counted = rows[n - 1] if 0 < n <= len(rows) else None
        text = Text(
            INDENT
            + pad(row[0], at[0])
            + GAP
            + pad(row[1], at[1], right=True)
            + GAP
            + pad(row[2], at[2], right=True),
            style,
        )
        text.append(
            GAP + pad(share_bar(counted.parameters / parameters) if counted else "", 10)
            if bars
            else "",
            "cyan",
        )
        text.append(
            GAP + pad(row[3], at[3], right=True) + GAP + pad(row[4], at[4], right=True), style
        )
        text.append(
            GAP + share_bar(counted.flops / flops) if bars and counted and flops else "", "magenta"
        )
        screen.append(text)
    return screen


def share_bar(part: float) -> str:
    """A bar of up to ten cells, to an eighth of a cell."""
    eighths = round(80 * part)
    return "█" * (eighths // 8) + (BAR[eighths % 8 - 1] if eighths % 8 else "")


def cost_lines(explanation: Explanation, width: int) -> list[Text]:
    """Cost of a forward pass, a training step and the KV cache at this length."""
    rows = [(cost.name, cost.value, cost.how) for cost in wording.cost_rows(explanation)]
    return [
        Text(f"cost at {wording.length_words(explanation)}", "bold"),
        *described_rows(rows, width, style=""),
    ]
