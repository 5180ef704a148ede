"""`sightline trace`: where a model looks while it reads a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sightline.cli.ui.arguments import Count, IgnoreTensors, Strict, Words
from sightline.cli.ui.input import read_text
from sightline.cli.ui.output import remark, write_json
from sightline.cli.ui.output import write as write_line
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.lens.draw.view import View
    from sightline.lens.trace.trace import Trace
    from sightline.model import Model

Number = Annotated[Count, Parameter(allow_leading_hyphen=True)]


def trace(
    model: str,
    text: Words = None,
    /,
    *,
    file: Path | None = None,
    source: str | None = None,
    view: str | None = None,
    layer: Number = None,
    head: Number = None,
    layers: str | None = None,
    stack: str | None = None,
    out: Path | None = None,
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """See where a model looks while it reads a text. Without layer and head, the head that has most
    to show is drawn.

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    text
        The text; - reads standard input. An encoder–decoder translates it first, unless --source is
        given.
    file
        Read the text from a file.
    source
        What the text is the translation of, for an encoder–decoder.
    view
        map, heads, lines, geometry, sphere, logit-lens, alignment or rollout. By default map;
        alignment for an encoder–decoder.
    layer
        The layer, counted from 0, or from the end when negative. Without --head, the mean of its
        heads.
    head
        The head, counted likewise.
    layers
        Keep only these layers, such as 0,5,11.
    stack
        encoder or decoder, for a model with both.
    out
        Write a file: .html (to walk through, offline), .svg, .png, .pdf, .json, or .safetensors
        (the trace itself).
    json
        Write JSON: the tokens, and the numbers of what was asked.
    """
    from sightline.cli.ui.loading import load_shown
    from sightline.lens.draw.show import checked_file, checked_view, plain, write
    from sightline.lens.draw.terminal import print_view
    from sightline.lens.draw.views import view_of

    out = None if out is None else checked_file(out)
    seen = None if view is None else checked_view(view)
    kept = layers_in(layers)
    given = read_text(
        text,
        file,
        fix='sightline trace MODEL "The animal didn\'t cross the street because it was too tired"',
    )
    given = (
        given if text not in (None, "-") else given.removesuffix("\n")
    )  # files and pipes end in a line's end
    loaded = load_shown(model, strict=strict, ignore_tensors=ignore_tensors)
    seen = seen or (
        "alignment"
        if loaded.config.encoder is not None and loaded.config.decoder is not None
        else "map"
    )
    refuse_source(loaded, source)
    check_asked(loaded, seen, layer, head, kept, stack)
    found = loaded.trace(given, source=source, layers=kept)
    layer, head = choose(found, seen, layer, head, stack)
    if out is not None:
        write(found, out, view=seen, layer=layer, head=head, stack=stack, subject=loaded)
        remark(out, style="") if json else write_line(out)
    if json or out is None:
        drawn: View = view_of(
            found,
            seen,
            layer=layer,
            head=head,
            stack=stack,
            subject=loaded,
            **({"most": None} if json else {}),
        )
        if json:
            write_json(plain(found, drawn), indent=None)
        else:
            print_view(drawn)


def layers_in(layers: str | None) -> list[int] | None:
    """0,5,11 as numbers."""
    parts = None if layers is None else layers.replace(" ", "").split(",")
    if parts is None:
        return None
    if not all(part.lstrip("-").isdecimal() for part in parts):
        raise InputError(
            f"--layers {layers}", expected="numbers with commas between them", fix="--layers 0,5,11"
        )
    return [int(part) for part in parts]


def refuse_source(loaded: Model, source: str | None) -> None:
    """One stack reads one text."""
    if source is not None and len(loaded.config.stacks) < 2:
        raise InputError(
            "--source, for a model with one stack",
            expected="an encoder–decoder",
            fix="leave --source out",
        )


def check_asked(
    loaded: Model,
    view: str,
    layer: int | None,
    head: int | None,
    kept: list[int] | None,
    stack: str | None,
) -> None:
    """What the model does not have is said before it runs."""
    from sightline.lens.trace.layer import checked

    stacks = loaded.config.stacks
    if stack is not None and stack not in stacks:
        raise InputError(
            f"--stack {stack}", expected=" or ".join(stacks), fix=f"--stack {next(iter(stacks))}"
        )
    if view == "alignment" and len(stacks) < 2:
        raise InputError(
            "an alignment of a model with one stack",
            expected="an encoder–decoder",
            fix="--view map",
        )
    config = stacks[stack or ("decoder" if "decoder" in stacks else "encoder")]
    number = None if layer is None else checked("layer", layer, config.layers)
    if head is not None:
        checked("head", head, config.block(number or 0).attention.heads)
    if (
        kept is not None
        and number is not None
        and number not in {checked("layer", one, config.layers) for one in kept}
    ):
        raise InputError(
            f"--layer {layer}, which --layers leaves out",
            expected="one of these",
            fix=f"--layer {kept[0]}",
        )


def choose(
    found: Trace, view: str, layer: int | None, head: int | None, stack: str | None
) -> tuple[int | None, int | None]:
    """The head that has most to show, where none was named; said on stderr."""
    from sightline.lens.draw.default_head import most_structured

    needs_head = view in ("geometry", "sphere")
    if view not in ("map", "lines", "geometry", "sphere") or (
        layer is not None and (head is not None or not needs_head)
    ):
        return layer, head
    layer, head = most_structured(found, stack=stack, layer=layer, head=head)
    note = (
        f"layer {layer}, head {head} has most to show, sinks and neighbours apart; another: --layer"
        " N --head N, all: --view heads"
    )
    remark(note)
    return layer, head
