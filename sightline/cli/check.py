"""`sightline check`: the laws, measured on one very checkpoint."""

from __future__ import annotations

import json as text_of
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from sightline.cli.arguments import IgnoreTensors, Strict
from sightline.cli.loading import load_shown

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
    """Measure on this checkpoint what should be equal: cache, batch, padding, kernels, saving, and transformers' own numbers.

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
    notes, found = Console(stderr=True, highlight=False), list["Measured"]()
    for measured in laws.check(loaded, seed=seed, reference=reference):
        found.append(measured)
        notes.print(f"  {'holds' if measured.holds else 'BROKEN'}  {measured.law}", style="dim", highlight=False)
    if json:
        rows = [{"law": m.law, "difference": m.difference, "allowed": m.allowed, "holds": m.holds, "note": m.note} for m in found]
        print(text_of.dumps({"model": model, "holds": all(m.holds for m in found), "laws": rows}, indent=2))
    else:
        Console(highlight=False).print(table_of(found))
    if not all(m.holds for m in found):
        sys.exit(1)


def table_of(found: list[Measured]) -> Table:
    """The laws as a table."""
    table = Table(box=None, pad_edge=False)
    for heading in ("law", "difference", "allowed", "", ""):
        table.add_column(heading, justify="right" if heading in ("difference", "allowed") else "left")
    for m in found:
        difference = "–" if m.difference is None else "0" if m.difference == 0 else f"{m.difference:.1e}"
        verdict = "not measured" if m.difference is None else "holds" if m.holds else "[bold red]broken[/]"
        table.add_row(m.law, difference, "0" if m.allowed == 0 else f"{m.allowed:.0e}", verdict, f"[dim]{m.note}[/]")
    return table
