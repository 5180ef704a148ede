"""An explanation as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterable

from sightline.explain import wording
from sightline.explain.lines import Section, size_text, symbol_text
from sightline.explain.summary import Explanation


def to_markdown(explanation: Explanation) -> str:
    """The page: kind, equations with shapes, counts and costs."""
    blocks = [
        [
            f"# {explanation.name}",
            "",
            f"{wording.model_kind(explanation.config)}.",
            "",
            " ".join(
                [
                    f"**{explanation.parameters:,} parameters.**",
                    *wording.paper_sentences(explanation),
                ]
            ),
        ],
        ["## Letters", "", *letter_lines(explanation)],
        [
            "## Equations",
            *(
                line
                for section in explanation.sections
                for line in equation_tables(explanation, section)
            ),
        ],
        ["## Where", "", *markdown_table(("letter", "meaning"), definition_rows(explanation))],
        ["## Parameters and FLOPs by part", "", *part_table(explanation)],
        [
            "## Cost",
            "",
            f"At {wording.length_words(explanation)}:",
            "",
            *markdown_table(("", "", "how"), cost_cells(explanation)),
        ],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def markdown_table(
    header: Iterable[str], rows: Iterable[Iterable[str]], *, right: frozenset[int] = frozenset()
) -> list[str]:
    """A Markdown table; bars inside cells are escaped."""
    titles = list(header)
    rule = ["---:" if n in right else "---" for n in range(len(titles))]
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (titles, rule, *rows)
    ]


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def letter_lines(explanation: Explanation) -> list[str]:
    return [
        " · ".join(code(item) for item in wording.dimension_legend(explanation.letters))
        + ". Shapes are of one sequence; a batch adds an axis in front."
    ]


def equation_tables(explanation: Explanation, section: Section) -> list[str]:
    """A heading and the table of equations of one section."""
    heading = wording.section_heading(explanation, section).capitalize()
    if section.block is not None:
        heading = f"{heading}: {wording.SECTION_NAMES[section.name]}"
    legend = wording.dimension_legend(explanation.letters_of(section))
    rows = [
        (code(line.equation), code(symbol_text(line.shape)), size_text(line.shape), line.counted)
        for line in section.lines
    ]
    local_letters = (
        ["In this section " + " · ".join(code(item) for item in legend) + ".", ""] if legend else []
    )
    return [
        "",
        f"### {heading}",
        "",
        *local_letters,
        *markdown_table(("equation", "shape", "size", "parameters"), rows, right=frozenset({3})),
    ]


def definition_rows(explanation: Explanation) -> list[tuple[str, str]]:
    return [(code(name), text) for name, text in (*explanation.definitions, wording.SMALL_LETTERS)]


def part_table(explanation: Explanation) -> list[str]:
    """Every part with its formula; `×` is the number of layers."""
    rows = [
        (
            code(part.path),
            code(part.formula),
            f"{part.each:,}" if part.each else "",
            str(part.times),
            f"{part.parameters:,}" if part.each else "",
            wording.share_text(part.parameters, explanation.parameters),
            wording.with_unit(explanation.batch * part.flops, "FLOP") if part.flops else "",
        )
        for part in explanation.parts
    ]
    total = (
        "**total**",
        "",
        "",
        "",
        f"**{explanation.parameters:,}**",
        "",
        f"**{wording.with_unit(explanation.forward_flops, 'FLOP')}**",
    )
    return markdown_table(
        ("part", "formula", "each", "×", "parameters", "share", "forward"),
        [*rows, total],
        right=frozenset({2, 3, 4, 5, 6}),
    )


def cost_cells(explanation: Explanation) -> list[tuple[str, str, str]]:
    return [(cost.name, cost.value, cost.how) for cost in wording.cost_rows(explanation)]
