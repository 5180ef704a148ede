"""`sightline models`: the catalogue of models, which of them are on this disk, and downloads."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len
from rich.text import Text

from sightline.checkpoints.sources import fetch, hub
from sightline.checkpoints.sources.catalogue import CATALOGUE, CatalogueEntry
from sightline.cli.ui.completion import catalogue_names
from sightline.cli.ui.options.groups import command_with_actions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.output import UNLIMITED, show_lines, write, write_json
from sightline.errors import CheckpointError, InputError, nearest
from sightline.terminal.progress import megabytes

ACTIONS = ("get", "where", "remove")
HEADINGS = ("name", "family", "parameters", "size", "licence", "on disk", "what")
RIGHT = ("parameters", "size")
STYLES = {"name": "bold", "parameters": "cyan", "size": "cyan"}
GAP = "   "
NARROWEST = 30  # columns of a description beside the rest
HubOrName = Annotated[str, Parameter(completer=catalogue_names)]

models = command_with_actions("models")


@models.default
def list_models(
    *words: Annotated[str, Parameter(show=False)], output: OutputOptions = OutputOptions()
) -> None:
    """List the models known by name: size, licence, and whether each is on this disk.

    A model of the list is downloaded when a command first uses it, or by `sightline models get`.

    Parameters
    ----------
    output.json
        Write JSON: one object per model.
    """
    if words:
        raise InputError(
            f"sightline models has no command {words[0][:100]!r}",
            fix=nearest(words[0][:100], ACTIONS),
        )
    if output.json:
        write_json([entry_dict(entry) for entry in CATALOGUE.values()])
    else:
        entries = list(CATALOGUE.values())
        show_lines(lambda width: catalogue_table(entries, width=width), pipe_width=UNLIMITED)


@models.command
def get(name: HubOrName, /, *, pickles: bool = False) -> None:
    """Download a model, and print its path.

    Parameters
    ----------
    name
        A name of the list, or OWNER/NAME[@REVISION] on the Hugging Face Hub.
    pickles
        Also download pytorch_model.bin from the Hub. Pickles can contain code: only use them from
        owners you trust.
    """
    if "/" in name:
        write(hub.snapshot(name, pickles=pickles))
    elif pickles:
        raise InputError(
            "--pickles for a model of the catalogue",
            expected="OWNER/NAME of the hub",
            fix="leave --pickles out",
        )
    else:
        write(fetch.get(name))


@models.command
def where(name: HubOrName, /) -> None:
    """Print the path of a model on this disk.

    Parameters
    ----------
    name
        A name of the list, or OWNER/NAME[@REVISION] on the Hugging Face Hub.
    """
    write(hub_path(name) if "/" in name else fetch.where(name))


@models.command
def remove(name: HubOrName, /, *, yes: bool = False) -> None:
    """Delete a model from this disk.

    Parameters
    ----------
    name
        A name of the list.
    yes
        Delete without confirmation.
    """
    if "/" in name:
        raise CheckpointError(
            f"{name[:100]} is in the Hugging Face cache",
            fix=f"hf cache rm model/{name.partition('@')[0][:100]}",
        )
    place = fetch.folder(name)
    if not yes and fetch.on_disk(name) and not confirm(f"delete {place}?"):
        raise InputError(f"{name} was not deleted", fix=f"sightline models remove {name} --yes")
    write(f"deleted {place}, {megabytes(fetch.remove(name))}")


def hub_path(name: str) -> Path:
    """The path of a Hub model in the local cache."""
    reference = hub.parse(name)
    path = hub.find_cached(reference) if reference else None
    if path is None:
        raise CheckpointError(
            f"{name[:100]} is not on this disk", fix=f"sightline models get {name[:100]}"
        )
    return path


def confirm(question: str) -> bool:
    """Ask on a terminal; no terminal means no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def entry_dict(entry: CatalogueEntry) -> dict[str, Any]:
    """One model as a JSON object."""
    here = fetch.on_disk(entry.name)
    return {
        "name": entry.name,
        "what": entry.what,
        "family": entry.family,
        "parameters": entry.parameters,
        "bytes": entry.size,
        "licence": entry.licence,
        "package": entry.package.pin,
        "hub": entry.hub or None,
        "answer": entry.answer,
        "on_disk": here,
        "path": str(fetch.folder(entry.name) / entry.opens) if here else None,
    }


def catalogue_table(entries: list[CatalogueEntry], *, width: int) -> list[Text]:
    """One row per model, with the description wrapped in its column; on a narrow terminal a
    paragraph per model."""
    rows = [HEADINGS, *map(entry_cells, entries)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(HEADINGS) - 1)]
    left = width - sum(widths) - len(GAP) * len(widths)
    if left < NARROWEST:
        return [line for entry in entries for line in entry_paragraph(entry, width)]
    return [line for row in rows for line in row_lines(row, widths, left, head=row is HEADINGS)]


def entry_cells(entry: CatalogueEntry) -> tuple[str, ...]:
    here = "yes" if fetch.on_disk(entry.name) else "no"
    return (
        entry.name,
        entry.family,
        f"{entry.parameters:,}",
        megabytes(entry.size),
        entry.licence,
        here,
        entry.what,
    )


def row_lines(row: tuple[str, ...], widths: list[int], left: int, *, head: bool) -> list[Text]:
    """Columns side by side, numbers right-aligned; the last column continues on further lines."""
    parts: list[Text] = []
    for title, cell, size in zip(HEADINGS[:-1], row[:-1], widths, strict=True):
        part = Text(cell, "dim" if head else STYLES.get(title, ""))
        part.align("right" if title in RIGHT else "left", size)
        parts.append(part)
    first, *more = textwrap.wrap(row[-1], left, break_on_hyphens=False)
    indent = " " * (sum(widths) + len(GAP) * len(widths))
    return [
        Text(GAP).join([*parts, Text(first, "dim")]),
        *(Text(indent).append(line, "dim") for line in more),
    ]


def entry_paragraph(entry: CatalogueEntry, width: int) -> list[Text]:
    """The name, and the rest in lines below it."""
    _, family, parameters, size, licence, _, what = entry_cells(entry)
    here = "on this disk" if fetch.on_disk(entry.name) else "not on this disk"
    facts = f"{family}, {parameters} parameters, {size}, {licence}, {here}"
    lines = [*wrap_indented(facts, width), *wrap_indented(what, width)]
    return [Text(entry.name, "bold"), *(Text(line, "dim") for line in lines), Text()]


def wrap_indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, max(width, 20), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
