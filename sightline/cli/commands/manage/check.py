"""`sightline check`: the laws, measured on a checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from sightline.cli.ui.options.model import LoadOptions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import ModelName
from sightline.cli.ui.output import remark, write_json
from sightline.escapes import escape_line
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.laws import LawResult


def check(
    model: ModelName,
    /,
    *,
    seed: int = 0,
    reference: Annotated[bool, Parameter(negative="--no-reference")] = True,
    verify: bool = False,
    loading: LoadOptions = LoadOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Check the laws on a checkpoint: what must give equal results, and how far it differs.

    Cached against full decoding, batch against single sequences, padding, kernels against the
    equations, saving and loading, and the numbers of Hugging Face's transformers. Exit code 1 if a
    law is broken.

    Parameters
    ----------
    seed
        Seed of the random tokens.
    reference
        Compare with Hugging Face's transformers, if it is installed.
    verify
        First verify every file against the checksums in the folder's sightline.json.
    output.json
        Write JSON: every law with its difference and tolerance.
    """
    from sightline import laws

    loaded = loading.load(model, verify=verify)
    results: list[LawResult] = []
    for result in laws.check_laws(loaded, seed=seed, reference=reference):
        results.append(result)
        remark(f"  {'holds' if result.holds else 'BROKEN'}  {result.law}")
    all_hold = all(result.holds for result in results)
    if output.json:
        rows = [law_dict(result) for result in results]
        write_json({"model": model, "holds": all_hold, "laws": rows})
    else:
        Console().print(law_table(results))
    if not all_hold:
        sys.exit(1)


def law_dict(result: LawResult) -> dict[str, Any]:
    """A law as a JSON object."""
    names = ("law", "difference", "allowed", "holds", "note")
    return {name: getattr(result, name) for name in names}


def law_table(results: list[LawResult]) -> Table:
    """The laws as a table."""
    table = Table(box=None, pad_edge=False)
    for heading in ("law", "difference", "allowed", "", ""):
        is_number = heading in ("difference", "allowed")
        table.add_column(heading, justify="right" if is_number else "left")
    for result in results:
        table.add_row(
            result.law,
            "–" if result.difference is None else scientific(result.difference, 1),
            scientific(result.allowed, 0),
            law_verdict(result),
            Text(escape_line(result.note), "dim"),
        )
    return table


def scientific(value: float, digits: int) -> str:
    return "0" if value == 0 else f"{value:.{digits}e}"


def law_verdict(result: LawResult) -> Text:
    if result.difference is None:
        return Text("not measured")
    return Text("holds") if result.holds else Text("broken", "bold red")
