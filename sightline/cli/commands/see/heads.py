"""`sightline heads`: what every head of a model does, as a map of letters, a table, a picture; and
which of them find which relation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sightline.cli.ui.arguments import Count, IgnoreTensors, Strict, Words
from sightline.cli.ui.input import read_input
from sightline.cli.ui.output import bar, write, write_json
from sightline.errors import InputError
from sightline.escapes import escape_line
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.lens.heads.profile import HeadMap, HeadRole
    from sightline.lens.heads.relations import Relation, Relations
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
COLOURS = {  # Okabe and Ito's, which everyone can tell apart
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
FEW = 8  # links that say nothing


def heads(
    model: str,
    text: Words = None,
    /,
    *,
    relations: bool = False,
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
    seed: Count = None,
    out: Path | None = None,
) -> None:
    """What every head does: its role, how sure that is, and how much of its attention rests on the
    first or special tokens.

    Heads are judged on a text and on random tokens that are repeated once. What they look at is
    compared with what evenly spread attention would look at.

    Parameters
    ----------
    model
        A folder, a name of `sightline models`, or OWNER/NAME of the hub.
    text
        A text of a few sentences; - reads standard input. By default one of ours. An
        encoder–decoder translates it.
    relations
        Also find the heads that link a pronoun to its referent, a verb to its subject, an adjective
        to its noun.
    json
        Write JSON: the role and every score of every head.
    seed
        Draw other random tokens.
    out
        Draw the map into a file: .svg, .png, .pdf.
    """
    from sightline.cli.ui.heads_figure import checked_file
    from sightline.cli.ui.loading import load_shown
    from sightline.lens.heads.profile import heads_of

    if out is not None:
        checked_file(out)
    given = read_input() if text == "-" else text
    if given is not None and not given.strip():
        raise InputError(
            "an empty text",
            expected="some words, or none at all",
            fix="sightline heads MODEL, for a text of ours",
        )
    loaded = load_shown(model, strict=strict, ignore_tensors=ignore_tensors)
    found = heads_of(loaded, given, seed=seed or 0)
    linked = related(loaded) if relations else None
    if json:
        write_json(plain(found, linked))
    else:
        show(Console(), found, linked)
    if out is not None:
        from sightline.cli.ui.heads_figure import save

        save(found, out)
        if not json:
            write("", f"drawn into {out}")


def related(loaded: Model) -> Relations:
    """The relations, with a bar."""
    from sightline.lens.heads.relations import relations_of

    with bar() as shown:
        task = shown.add_task("reading sentences", total=None)
        return relations_of(
            loaded, progress=lambda done, total: shown.update(task, completed=done, total=total)
        )


def plain(found: HeadMap, linked: Relations | None) -> dict[str, Any]:
    """The answer as JSON has it."""
    return (
        found.to_dict()
        if linked is None
        else {**found.to_dict(), "relations": linked.to_dict()["relations"]}
    )


def show(out: Console, found: HeadMap, linked: Relations | None) -> None:
    """Map, legend, the best of each role, relations."""
    for stack, cross in found.parts:
        out.print(*grid(found, stack, cross=cross), sep="\n", soft_wrap=True)
        out.print()
    out.print(*legend(found), sep="\n", soft_wrap=True)
    out.print()
    out.print(*best(found), sep="\n", soft_wrap=True)
    out.print(f"\njudged on: {sources(found)}", style="dim", soft_wrap=True)
    for relation in () if linked is None else linked.relations:
        out.print()
        out.print(*relation_lines(relation), sep="\n", soft_wrap=True)
    if linked is not None and linked.causal:
        out.print(
            "\na causal model looks back only: nouns are asked for their adjectives", style="dim"
        )


def grid(found: HeadMap, stack: str, *, cross: bool) -> Iterator[Text]:
    """A letter for each head, a line for each layer; bold where it is sure. At the end the mean
    sink of the layer."""
    rows = found.grid(stack, cross=cross)
    title = (
        f"{escape_line(found.name)} · {stack}{', cross-attention' if cross else ''}: layers down,"
        " heads across"
    )
    yield Text(title, style="bold")
    yield Text(f"     {''.join(f'{head:>3}' for head in range(len(rows[0])))}    sink", style="dim")
    for row in rows:
        line = Text(f"{row[0].layer:>4} ", style="dim")
        for head in row:
            line.append("  ")
            line.append(LETTERS[head.role], style=style(head))
        sink = sum(head.sink for head in row) / len(row)
        yield line.append(f"    {'–' if sink != sink else f'{sink:.0%}':>4}", style="dim")


def style(head: HeadRole) -> str:
    return (
        "dim"
        if head.role == "unclear"
        else f"{'bold ' if head.confidence >= 0.6 else ''}{COLOURS[head.role]}"
    )


def legend(found: HeadMap) -> Iterator[Text]:
    """The letters that are on the map, what they mean, and how many."""
    from sightline.lens.heads.roles import MEANING

    count = Counter(head.role for head in found.heads)
    for role, letter in LETTERS.items():
        if count[role]:
            shown = Text(
                f"{letter}  {role:<12}", style="dim" if role == "unclear" else COLOURS[role]
            )
            yield shown.append(f"{count[role]:>4}  {MEANING[role]}", style="default")


def best(found: HeadMap) -> Iterator[Text]:
    """The surest heads of each role that some head has."""
    yield Text(f"{'role':<13}{'head':<20}{'score':>6}{'confidence':>12}{'sink':>7}", style="bold")
    there = {head.role for head in found.heads} - {"unclear"}
    for role in (role for role in LETTERS if role in there):
        for place, head in enumerate(found.top(role, TOP)):
            name = (
                f"{head} ({head.offset:+d})"
                if role == "offset" and head.offset is not None
                else str(head)
            )
            score = found.score(head, role)
            confidence = found.confidence(head, role)
            figures = f"{score:>6.2f}{confidence:>12.2f}{head.sink:>7.0%}"
            yield Text(f"{role if place == 0 else '':<13}{name:<20}{figures}")


def sources(found: HeadMap) -> str:
    """What the heads were judged by."""
    text = found.texts.get("text")
    probes = (
        "random tokens, repeated"
        f" ({', '.join(shown for name, shown in found.texts.items() if name != 'text')})"
    )
    return probes if text is None else f"{text!r} and {probes}"


def relation_lines(relation: Relation) -> Iterator[Text]:
    """The best heads of a relation beside the baselines."""
    yield Text(f"{relation.title}: {relation.links} links", style="bold")
    if relation.links < FEW:
        yield Text(
            f"  too few to say: the tokenizer cannot show {relation.skipped} others", style="dim"
        )
        return
    skipped = f"; {relation.skipped} links the tokenizer cannot show" if relation.skipped else ""
    offset = f"always {relation.offset:+d} tokens away {relation.offset_rate:.0%}"
    yield Text(
        f"  blind choice {relation.chance:.0%}; {offset}; all heads {relation.mean:.0%} ±"
        f" {relation.spread:.0%}{skipped}",
        style="dim",
    )
    for head in relation.top[:TOP]:
        p = max(head.p_chance, head.p_offset)
        said = (
            "found"
            if head.found
            else "may be luck"
            if head.p_chance >= 0.05
            else "may be a fixed offset"
        )
        yield Text(
            f"  {head.stack} {head.layer}.{head.head}".ljust(18)
            + f"{head.rate:>5.0%}   p {p:<8.2g} {said}"
        )
