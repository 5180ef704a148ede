"""`sightline check`: the laws, measured on one very checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sightline.cli.ui.arguments import IgnoreTensors, Strict
from sightline.cli.ui.loading import load_shown
from sightline.cli.ui.output import remark, write_json
from sightline.escapes import escape_line
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.laws import Measured


def check(
    model: str,
    /,
    *,
    seed: int = 0,
    json: bool = False,
    reference: bool = True,
    strict: Strict = False,
    verify: bool = False,
    ignore_tensors: IgnoreTensors = (),
) -> None:
    """Measure on this checkpoint what should be equal: cache, batch, padding, kernels, saving, and
    transformers' own numbers.

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    seed
        Of the random tokens.
    json
        Write JSON.
    reference
        Compare with transformers, where it is installed.
    verify
        First hold every file against the checksums in the folder's sightline.json.
    """
    from sightline import laws

    loaded = load_shown(model, verify=verify, strict=strict, ignore_tensors=ignore_tensors)
    found: list[Measured] = []
    for measured in laws.check(loaded, seed=seed, reference=reference):
        found.append(measured)
        remark(f"  {'holds' if measured.holds else 'BROKEN'}  {measured.law}")
    if json:
        rows = [
            {
                "law": m.law,
                "difference": m.difference,
                "allowed": m.allowed,
                "holds": m.holds,
                "note": m.note,
            }
            for m in found
        ]
        write_json({"model": model, "holds": all(m.holds for m in found), "laws": rows})
    else:
        Console().print(table_of(found))
    if not all(m.holds for m in found):
        sys.exit(1)


def table_of(found: list[Measured]) -> Table:
    """The laws as a table."""
    table = Table(box=None, pad_edge=False)
    for heading in ("law", "difference", "allowed", "", ""):
        table.add_column(
            heading, justify="right" if heading in ("difference", "allowed") else "left"
        )
    for m in found:
        difference = (
            "–" if m.difference is None else "0" if m.difference == 0 else f"{m.difference:.1e}"
        )
        verdict = (
            "not measured"
            if m.difference is None
            else "holds"
            if m.holds
            else Text("broken", "bold red")
        )
        table.add_row(
            m.law,
            difference,
            "0" if m.allowed == 0 else f"{m.allowed:.0e}",
            verdict,
            Text(escape_line(m.note), "dim"),
        )
    return table
