"""`sightline fill`: the likeliest tokens for the masks of a text."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from sightline.cli.commands.run.embed import refuse_options
from sightline.cli.commands.see.explain import checkpoint_config
from sightline.cli.ui.arguments import Count, Dtype, IgnoreTensors, OneText, Strict
from sightline.cli.ui.input import read_text
from sightline.cli.ui.output import show, write_json
from sightline.config import MaskedHead
from sightline.errors import InputError
from sightline.escapes import escape_line

if TYPE_CHECKING:
    from sightline.tasks.fill import Filling

BAR = 24  # cells of a probability of 1


def fill(
    model: str,
    text: OneText | None = None,
    /,
    *,
    top_k: Count = 5,
    file: Path | None = None,
    engine: Literal["auto", "native", "torch"] = "torch",
    dtype: Dtype = "float32",
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """Fill in the masks of a text.

    Parameters
    ----------
    model
        A folder, a name of `sightline models`, or OWNER/NAME of the hub, of a model of masked
        tokens (BERT and its kin).
    text
        The text, such as "The capital of [MASK] is Paris."; - reads standard input. A mask is
        [MASK], <mask>, ___ (three underscores or more), or as the model's tokenizer writes it.
    top_k
        How many tokens for each mask; by default 5.
    file
        Read the text from a file.
    engine
        native runs the model on Sightline's own engine, in any --dtype.
    json
        Write JSON: for each mask its place, the candidates with id and probability, and the text
        with all masks filled.
    """
    from sightline.cli.ui.loading import load_shown

    refuse_options([] if text is None else [text])
    wanted = read_text(text, file, fix='sightline fill MODEL "The capital of [MASK] is Paris."')
    wanted = (
        wanted if text not in (None, "-") else wanted.removesuffix("\n")
    )  # files and pipes end in a line's end
    refuse_unfit(model)
    loaded = load_shown(
        model, engine=engine, dtype=dtype, strict=strict, ignore_tensors=ignore_tensors
    )
    found = loaded.fill(wanted, top_k=5 if top_k is None else top_k)
    if json:
        write_json([asdict(filling) for filling in found])
    else:
        show(lambda width: lines_of(found))


def refuse_unfit(model: str) -> None:
    """A model without masks is refused by its config, before its weights are read."""
    from sightline.tasks.purpose import purpose

    config = checkpoint_config(model)
    if isinstance(config.head, MaskedHead):
        return
    kind, command = purpose(config)
    fix = (
        "sightline train bert-tiny makes one; this one answers"
        f" {command.replace('MODEL', shlex.quote(model))}"
    )
    raise InputError(
        f"filling in masks with {kind}", expected="a model of masked tokens, such as BERT", fix=fix
    )


def lines_of(found: list[Filling]) -> list[Text]:
    """The text with its best words, then the candidates of each mask."""
    lines = [Text(found[0].text, "bold")]
    for number, filling in enumerate(found, start=1):
        which = (
            f"mask {number}, characters {filling.start} to {filling.end}" if len(found) > 1 else ""
        )
        lines += [
            Text(which, "dim"),
            *(bar_line(repr(one.text), one.probability) for one in filling.candidates),
        ]
    return lines


def bar_line(name: str, value: float) -> Text:
    """`  63.2%  ███████████████          name`; a number that is no probability without its bar."""
    name = escape_line(name)
    if not 0 <= value <= 1:
        return Text(f"{value:8.3f}  {' ' * BAR}  {name}")
    filled = round(value * BAR)
    return (
        Text(f"{value:8.1%}  ")
        .append("█" * filled, "green")
        .append("·" * (BAR - filled), "dim")
        .append(f"  {name}")
    )
