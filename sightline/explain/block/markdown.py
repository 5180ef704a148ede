"""A walk through one block as a Markdown page."""

from __future__ import annotations

from sightline.explain.block.page import BlockPage, count
from sightline.explain.block.panels import number_text, panel_matrices, panels_of
from sightline.explain.block.steps import Step, Values
from sightline.explain.lines import size_text, symbol_text
from sightline.explain.markdown import code, markdown_table


def block_markdown(page: BlockPage) -> str:
    """The page: a table of formulas per part, or every step with its numbers."""
    what = "one block" if page.seed is None else f"one block with numbers, seed {page.seed}"
    tensors = " ".join(code(step.symbol) for step in page.weights)
    lines = [
        f"# {page.name}: {what}",
        "",
        " · ".join(code(item) for item in page.legend) + ".",
        "",
        f"{page.parameters:,} parameters in {len(page.weights)} tensors: {tensors}."
        + (f" {page.not_modelled}" if page.not_modelled else ""),
    ]
    for number, part in enumerate(page.parts, 1):
        lines += ["", f"## {number}. {part.title.capitalize()}", ""]
        lines += (
            formula_table(list(part.steps))
            if page.values is None
            else [
                line
                for step in part.steps
                for line in step_with_tables(step, page.values[step.name])
            ][:-1]
        )
    return "\n".join(lines) + "\n"


def formula_table(steps: list[Step]) -> list[str]:
    rows = [
        (
            code(step.formula),
            code(symbol_text(step.shape)),
            size_text(step.shape),
            f"{count(step):,}" if step.is_weight else "",
            remarks(step),
        )
        for step in steps
    ]
    return markdown_table(
        ("formula", "shape", "size", "parameters", ""), rows, right=frozenset({3})
    )


def remarks(step: Step) -> str:
    return "; ".join(text for text in (step.says, step.remark) if text)


def step_with_tables(step: Step, values: Values) -> list[str]:
    """A line with the formula and its shape, then a table per matrix, and a blank line."""
    note = f": {remarks(step)}" if remarks(step) else ""
    signed = panels_of(values)[0].signed
    lines = [f"`{step.formula}` `{symbol_text(step.shape)}` = {size_text(step.shape)}{note}", ""]
    for title, matrix in panel_matrices(values):
        header = (title, *(str(n) for n in range(1, len(matrix[0]) + 1)))
        rows = [
            (
                str(n) if len(matrix) > 1 else "",
                *(number_text(value, signed=signed) for value in row),
            )
            for n, row in enumerate(matrix, 1)
        ]
        right = frozenset(range(1, len(header)))
        lines += [*markdown_table(header, rows, right=right), ""]
    return lines
