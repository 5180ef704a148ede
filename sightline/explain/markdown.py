"""An explanation as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from sightline.explain import wording
from sightline.explain.lines import Section, sizes, symbols
from sightline.explain.summary import Explanation


def to_markdown(explanation: Explanation) -> str:
    """The page: what it is, its equations with shapes, its counts and costs."""
    blocks = [
        [
            f"# {explanation.name}",
            "",
            f"{wording.kind(explanation.config)}.",
            "",
            f"**{explanation.parameters:,} parameters.**",
        ],
        ["## Letters", "", *letters(explanation)],
        [
            "## Equations",
            *(line for section in explanation.sections for line in equations(explanation, section)),
        ],
        ["## Where", "", *grid(("letter", "meaning"), where(explanation))],
        ["## Parameters and FLOPs by part", "", *parts(explanation)],
        [
            "## Cost",
            "",
            f"At {wording.length(explanation)}:",
            "",
            *grid(("", "", "how"), costs(explanation)),
        ],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def grid(
    header: Iterable[str], rows: Iterable[Iterable[str]], *, right: frozenset[int] = frozenset()
) -> list[str]:
    """A table; bars inside cells are escaped."""
    titles = list(header)
    rule = ["---:" if n in right else "---" for n in range(len(titles))]
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (titles, rule, *rows)
    ]


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def letters(explanation: Explanation) -> list[str]:
    return [
        " · ".join(code(item) for item in wording.legend(explanation.letters))
        + ". Shapes are of one sequence; a batch adds an axis in front."
    ]


def equations(explanation: Explanation, section: Section) -> list[str]:
    """A heading for each stack's part, then its lines."""
    heading = wording.heading(explanation, section).capitalize()
    if section.block is not None:
        heading = f"{heading}: {wording.SECTION_NAMES[section.name]}"
    own = wording.legend(explanation.letters_of(section))
    rows = [
        (code(line.equation), code(symbols(line.shape)), sizes(line.shape), line.counted)
        for line in section.lines
    ]
    here = ["Here " + " · ".join(code(item) for item in own) + ".", ""] if own else []
    return [
        "",
        f"### {heading}",
        "",
        *here,
        *grid(("equation", "shape", "size", "parameters"), rows, right=frozenset({3})),
    ]


def where(explanation: Explanation) -> list[tuple[str, str]]:
    return [(code(name), text) for name, text in (*explanation.definitions, wording.SMALL_LETTERS)]


def parts(explanation: Explanation) -> list[str]:
    """Every part with its formula; `×` is the number of layers."""
    rows = [
        (
            code(part.path),
            code(part.formula),
            f"{part.each:,}" if part.each else "",
            str(part.times),
            f"{part.parameters:,}" if part.each else "",
            wording.share(part.parameters, explanation.parameters),
            wording.scaled(explanation.batch * part.flops, "FLOP") if part.flops else "",
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
        f"**{wording.scaled(explanation.forward_flops, 'FLOP')}**",
    )
    return grid(
        ("part", "formula", "each", "×", "parameters", "share", "forward"),
        [*rows, total],
        right=frozenset({2, 3, 4, 5, 6}),
    )


def costs(explanation: Explanation) -> list[tuple[str, str, str]]:
    return [(cost.name, cost.value, cost.how) for cost in wording.costs(explanation)]
