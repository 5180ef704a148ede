"""`sightline heads`: the role of every attention head, as a map of letters, a table and a figure;
and which heads find which relation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from sightline.cli.ui.input import read_input
from sightline.cli.ui.options.groups import OUTPUT
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count, ModelName, OptionalText
from sightline.cli.ui.output import note, progress_bar, write, write_json
from sightline.errors import InputError
from sightline.escapes import escape_line
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.lens.heads.profile import HeadMap, HeadRole
    from sightline.lens.heads.relations import Relation, RelationHead, Relations
    from sightline.model import Model

LETTERS = {
    "previous": "P",
    "next": "N",
    "self": "S",
    "duplicate": "D",
    "induction": "I",
    "offset": "O",
    "punctuation": "T",
    "monotone": "M",
    "sink": "F",
    "broad": "B",
    "unclear": "·",
}
COLOURS = {  # Okabe and Ito's palette, safe for colour-blind readers
    "previous": "#56b4e9",
    "next": "#0072b2",
    "self": "#f0e442",
    "duplicate": "#e69f00",
    "induction": "#d55e00",
    "offset": "#cc79a7",
    "punctuation": "#009e73",
    "monotone": "#aa4499",
    "sink": "#8c8c8c",
    "broad": "#c8c8c8",
    "unclear": "#f2f2f2",
}
TOP = 3
FEW = 8  # links, too few for a verdict
CHANCE = 0.05  # significance
SURE = 0.6  # confidence from which a letter is bold


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class HeadsOutputOptions(OutputOptions):
    """The map in the terminal, as a figure, or as JSON."""

    out: Path | None = None
    """Draw the map into a file: .svg, .png or .pdf."""


def heads(
    model: ModelName,
    text: OptionalText = None,
    /,
    *,
    relations: bool = False,
    seed: Annotated[Count, Parameter(show_default="0")] = None,
    running: RunOptions = RunOptions(),
    output: HeadsOutputOptions = HeadsOutputOptions(),
) -> None:
    """Show the role of every attention head, and how much of its attention is a sink.

    Each head is measured on a text and on random tokens repeated once. Its attention is compared
    with uniform attention; attention on the first or special tokens counts as a sink.

    Parameters
    ----------
    text
        A text of a few sentences; - reads standard input. By default a built-in text. An
        encoder–decoder translates it.
    relations
        Also find the heads that link a pronoun to its referent, a verb to its subject, an adjective
        to its noun.
    seed
        Random seed of the repeated tokens.
    output.json
        Write JSON: the role and every score of every head.
    """
    from sightline.cli.ui.heads_figure import check_figure_file, save_heads_figure
    from sightline.lens.heads.profile import heads_of
    from sightline.lens.trace.native import BY_TORCH

    if output.out is not None:
        check_figure_file(output.out)
    content = read_input() if text == "-" else text
    if content is not None and not content.strip():
        raise InputError(
            "an empty text",
            expected="some words, or no text at all",
            fix="sightline heads MODEL, for the built-in text",
        )
    loaded = running.load(model)
    if runs_on_torch(loaded) and loaded.precision is not None:
        note(BY_TORCH)
    head_map = heads_of(loaded, content, seed=seed or 0)
    links = find_relations(loaded) if relations else None
    if output.json:
        runner = "torch" if runs_on_torch(loaded) else loaded.runner.name
        write_json({**heads_dict(head_map, links), "runner": runner})
    else:
        show_heads(Console(), head_map, links)
    if output.out is not None:
        save_heads_figure(head_map, output.out)
        if not output.json:
            write("", f"drawn into {output.out}")


def runs_on_torch(loaded: Model) -> bool:
    """Whether torch computes the attention: the engine shows a decoder's only."""
    return loaded.precision is None or loaded.config.encoder is not None


def find_relations(loaded: Model) -> Relations:
    """The relations, with a progress bar."""
    from sightline.lens.heads.relations import relations_of

    with progress_bar() as bar:
        task = bar.add_task("reading sentences", total=None)
        return relations_of(
            loaded, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def heads_dict(head_map: HeadMap, links: Relations | None) -> dict[str, Any]:
    """The result as a JSON object."""
    values = head_map.to_dict()
    return values if links is None else {**values, "relations": links.to_dict()["relations"]}


def show_heads(out: Console, head_map: HeadMap, links: Relations | None) -> None:
    """Map, legend, the best heads of each role, relations."""
    for stack, cross in head_map.parts:
        out.print(*grid_lines(head_map, stack, cross=cross), sep="\n", soft_wrap=True)
        out.print()
    out.print(*role_legend(head_map), sep="\n", soft_wrap=True)
    out.print()
    out.print(*best_heads(head_map), sep="\n", soft_wrap=True)
    out.print(f"\nmeasured on: {measured_on(head_map)}", style="dim", soft_wrap=True)
    for relation in () if links is None else links.relations:
        out.print()
        out.print(*relation_lines(relation), sep="\n", soft_wrap=True)
    if links is not None and links.causal:
        out.print(
            "\na causal model attends only backwards: attention from the noun to its adjective",
            style="dim",
        )


def grid_lines(head_map: HeadMap, stack: str, *, cross: bool) -> Iterator[Text]:
    """A letter per head, a line per layer; bold where the confidence is high. At the end the
    layer's mean sink."""
    rows = head_map.grid(stack, cross=cross)
    part = f"{stack}{', cross-attention' if cross else ''}"
    yield Text(f"{escape_line(head_map.name)} · {part}: layers down, heads across", style="bold")
    yield Text(f"     {''.join(f'{head:>3}' for head in range(len(rows[0])))}    sink", style="dim")
    for row in rows:
        line = Text(f"{row[0].layer:>4} ", style="dim")
        for head in row:
            line.append("  ")
            line.append(LETTERS[head.role], style=head_style(head))
        sink = sum(head.sink for head in row) / len(row)
        percent = "–" if math.isnan(sink) else f"{sink:.0%}"
        yield line.append(f"    {percent:>4}", style="dim")


def head_style(head: HeadRole) -> str:
    if head.role == "unclear":
        return "dim"
    return f"bold {COLOURS[head.role]}" if head.confidence >= SURE else COLOURS[head.role]


def role_legend(head_map: HeadMap) -> Iterator[Text]:
    """The letters on the map, their roles, and how many heads have each."""
    from sightline.lens.heads.roles import MEANING

    count = Counter(head.role for head in head_map.heads)
    for role, letter in LETTERS.items():
        if count[role]:
            colour = "dim" if role == "unclear" else COLOURS[role]
            line = Text(f"{letter}  {role:<12}", style=colour)
            yield line.append(f"{count[role]:>4}  {MEANING[role]}", style="default")


def best_heads(head_map: HeadMap) -> Iterator[Text]:
    """The heads with the highest confidence for each role on the map."""
    yield Text(f"{'role':<13}{'head':<20}{'score':>6}{'confidence':>12}{'sink':>7}", style="bold")
    present = {head.role for head in head_map.heads} - {"unclear"}
    for role in (role for role in LETTERS if role in present):
        for rank, head in enumerate(head_map.top(role, TOP)):
            has_offset = role == "offset" and head.offset is not None
            name = f"{head} ({head.offset:+d})" if has_offset else str(head)
            score = head_map.score(head, role)
            confidence = head_map.confidence(head, role)
            figures = f"{score:>6.2f}{confidence:>12.2f}{head.sink:>7.0%}"
            yield Text(f"{role if rank == 0 else '':<13}{name:<20}{figures}")


def measured_on(head_map: HeadMap) -> str:
    """The text and the random tokens that the roles were measured on."""
    text = head_map.texts.get("text")
    lengths = ", ".join(value for name, value in head_map.texts.items() if name != "text")
    probes = f"random tokens, repeated ({lengths})"
    return probes if text is None else f"{text!r} and {probes}"


def relation_lines(relation: Relation) -> Iterator[Text]:
    """The best heads of a relation, with the baselines."""
    yield Text(f"{relation.title}: {relation.links} links", style="bold")
    if relation.links < FEW:
        yield Text(
            f"  too few for a verdict: {relation.skipped} others do not fall on token boundaries",
            style="dim",
        )
        return
    skipped = ""
    if relation.skipped:
        skipped = f"; {relation.skipped} links do not fall on token boundaries"
    offset = f"fixed offset {relation.offset:+d} {relation.offset_rate:.0%}"
    position = f"fixed position {relation.position} {relation.position_rate:.0%}"
    nearest = ""
    if relation.nearest_rate is not None:
        nearest = f"; nearest noun that agrees {relation.nearest_rate:.0%}"
    mean = f"all heads {relation.mean:.0%} ± {relation.spread:.0%}"
    baselines = f"chance {relation.chance:.0%}; {offset}; {position}{nearest}"
    yield Text(f"  {baselines}; {mean}{skipped}", style="dim")
    for head in relation.top[:TOP]:
        name = f"  {head.stack} {head.layer}.{head.head}".ljust(18)
        yield Text(f"{name}{head.rate:>5.0%}   p {head.p:<8.2g} {relation_verdict(head)}")


def relation_verdict(head: RelationHead) -> str:
    if head.is_significant:
        return "found"
    if head.p_chance >= CHANCE:
        return "may be chance"
    return "may be a fixed offset" if head.p_offset >= CHANCE else "may be a fixed position"
