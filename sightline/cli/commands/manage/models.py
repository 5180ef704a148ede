"""`sightline models`: the models that can be had by name, what is on this disk, and how more gets
there."""

from __future__ import annotations

import sys
import textwrap
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.cells import cell_len
from rich.text import Text

from sightline.checkpoints.sources import fetch, hub
from sightline.checkpoints.sources.catalogue import CATALOGUE, CatalogueEntry
from sightline.cli.ui.output import UNLIMITED, show, write, write_json
from sightline.errors import CheckpointError, InputError, nearest
from sightline.terminal.progress import megabytes

ACTIONS = ("get", "where", "remove")
HEAD = ("name", "family", "parameters", "size", "licence", "on disk", "what")
RIGHT = ("parameters", "size")
STYLES = {"name": "bold", "parameters": "cyan", "size": "cyan"}
GAP = "   "
LEAST = 30  # columns of a description beside the rest

models = App(name="models", help="The models that can be had by name.")


@models.default
def listing(*words: Annotated[str, Parameter(show=False)], json: bool = False) -> None:
    """The models that can be had by name: what each is, its size and licence, and whether it is on
    this disk.

    Parameters
    ----------
    json
        Write JSON.
    """
    if words:
        raise InputError(
            f"sightline models has no command {words[0][:100]!r}",
            fix=nearest(words[0][:100], ACTIONS),
        )
    if json:
        write_json([to_plain(entry) for entry in CATALOGUE.values()])
    else:
        show(lambda width: table(list(CATALOGUE.values()), width=width), pipe_width=UNLIMITED)


@models.command
def get(name: str, /, *, pickles: bool = False) -> None:
    """Fetch a model, and print its path.

    Parameters
    ----------
    name
        A name of the list, or OWNER/NAME[@REVISION] of the hub.
    pickles
        Take a hub model's pytorch_model.bin too, which can hold code: only from owners that you
        trust.
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
def where(name: str, /) -> None:
    """Print the path of a model that is on this disk.

    Parameters
    ----------
    name
        A name of the list, or OWNER/NAME[@REVISION] of the hub.
    """
    write(hub_path(name) if "/" in name else fetch.where(name))


@models.command
def remove(name: str, /, *, yes: bool = False) -> None:
    """Delete a model from this disk.

    Parameters
    ----------
    name
        A name of the list.
    yes
        Do not ask.
    """
    if "/" in name:
        raise CheckpointError(
            f"{name[:100]} lies in the cache of the hub",
            fix=f"hf cache rm model/{name.partition('@')[0][:100]}",
        )
    place = fetch.folder(name)
    if not yes and fetch.on_disk(name) and not agreed(f"delete {place}?"):
        raise InputError(f"{name} was not deleted", fix=f"sightline models remove {name} --yes")
    write(f"deleted {place}, {megabytes(fetch.remove(name))}")


def hub_path(name: str) -> Any:
    """A model of the hub, from its cache only."""
    reference = hub.parse(name)
    found = hub.cached(reference) if reference else None
    if found is None:
        raise CheckpointError(
            f"{name[:100]} is not on this disk", fix=f"sightline models get {name[:100]}"
        )
    return found


def agreed(question: str) -> bool:
    """Ask, where there is somebody to answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def to_plain(entry: CatalogueEntry) -> dict[str, Any]:
    """One model as plain values."""
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


def table(entries: list[CatalogueEntry], *, width: int) -> list[Text]:
    """One row for each model, whose description wraps in its column; where that would be narrow, a
    paragraph for each."""
    rows = [HEAD, *map(cells, entries)]
    wide = [max(cell_len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    left = width - sum(wide) - len(GAP) * len(wide)
    if left < LEAST:
        return [line for entry in entries for line in paragraph(entry, width)]
    return [line for row in rows for line in row_lines(row, wide, left, head=row is HEAD)]


def cells(entry: CatalogueEntry) -> tuple[str, ...]:
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


def row_lines(row: tuple[str, ...], wide: list[int], left: int, *, head: bool) -> list[Text]:
    """Columns side by side, numbers to the right; further lines hold what is left of the last."""
    parts: list[Text] = []
    for title, cell, size in zip(HEAD[:-1], row[:-1], wide, strict=True):
        part = Text(cell, "dim" if head else STYLES.get(title, ""))
        part.align("right" if title in RIGHT else "left", size)
        parts.append(part)
    first, *more = textwrap.wrap(row[-1], left, break_on_hyphens=False)
    indent = " " * (sum(wide) + len(GAP) * len(wide))
    return [
        Text(GAP).join([*parts, Text(first, "dim")]),
        *(Text(indent).append(line, "dim") for line in more),
    ]


def paragraph(entry: CatalogueEntry, width: int) -> list[Text]:
    """The name, then everything else in lines below it."""
    _, family, parameters, size, licence, _, what = cells(entry)
    here = "on this disk" if fetch.on_disk(entry.name) else "not on this disk"
    facts = f"{family}, {parameters} parameters, {size}, {licence}, {here}"
    lines = [*wrapped(facts, width), *wrapped(what, width)]
    return [Text(entry.name, "bold"), *(Text(line, "dim") for line in lines), Text()]


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, max(width, 20), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
