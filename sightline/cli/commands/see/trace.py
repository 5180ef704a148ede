"""`sightline trace`: see where a model attends while it reads a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sightline.cli.ui.options.groups import OPTIONS, OUTPUT
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import Index, ModelName, OptionalText
from sightline.cli.ui.output import remark, write, write_json
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.lens.trace.trace import Trace
    from sightline.model import Model

EXAMPLE = 'sightline trace MODEL "The animal didn\'t cross the street because it was too tired"'
VIEWS = ("map", "heads", "lines", "geometry", "sphere", "logit-lens", "alignment", "rollout")
ONE_HEAD = ("map", "lines", "geometry", "sphere")  # views of one head, or of a layer's mean
NEEDS_HEAD = ("geometry", "sphere")


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """What to draw, and of which head."""

    view: Annotated[
        str | None,
        Parameter(choices=VIEWS, show_default="map; alignment for an encoder–decoder"),
    ] = None
    """What to draw."""

    layer: Index = None
    """Layer, counted from 0, or from the end if negative. Without --head, the mean of its heads."""

    head: Index = None
    """Head, counted in the same way. Without --layer and --head, the head with the most structure
    is drawn."""

    layers: str | None = None
    """Record only these layers, such as 0,5,11."""

    stack: Annotated[str | None, Parameter(choices=Literal["encoder", "decoder"])] = None
    """Which stack of an encoder–decoder."""


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class TraceOutputOptions(OutputOptions):
    """The drawing in the terminal, in a file, or as JSON."""

    out: Path | None = None
    """Write a file: .html (interactive, works offline), .svg, .png, .pdf, .json, or .safetensors
    (the trace itself)."""


def trace(
    model: ModelName,
    text: OptionalText = None,
    /,
    *,
    source: str | None = None,
    input: InputOptions = InputOptions(),
    drawing: ViewOptions = ViewOptions(),
    running: RunOptions = RunOptions(),
    output: TraceOutputOptions = TraceOutputOptions(),
) -> None:
    """See where a model attends while it reads a text.

    An encoder–decoder translates the text first, unless --source gives the text's source.

    Parameters
    ----------
    text
        The text; - reads standard input.
    source
        The source sentence, for an encoder–decoder; the text is then its translation.
    output.json
        Write JSON: the tokens and the numbers of the view.
    """
    from sightline.lens.draw.show import checked_view, checked_view_file

    out = None if output.out is None else checked_view_file(output.out)
    view = None if drawing.view is None else checked_view(drawing.view)
    layers = parse_layers(drawing.layers)
    content = input.read_prompt(text, fix=EXAMPLE)
    loaded = running.load(model)
    is_pair = loaded.config.encoder is not None and loaded.config.decoder is not None
    view = view or ("alignment" if is_pair else "map")
    refuse_source(loaded, source)
    check_choice(loaded, view, drawing, layers)
    recording = loaded.trace(content, source=source, layers=layers)
    layer, head = choose_head(recording, view, drawing)
    where = Place(view=view, layer=layer, head=head, stack=drawing.stack)
    if out is not None:
        write_file(recording, loaded, where, out, json=output.json)
    if output.json or out is None:
        show_view(recording, loaded, where, json=output.json)


@dataclass(frozen=True, slots=True)
class Place:
    """What is drawn."""

    view: str
    layer: int | None
    head: int | None
    stack: str | None


def write_file(recording: Trace, loaded: Model, place: Place, out: Path, *, json: bool) -> None:
    """Draw into a file; its name goes to stdout, or to stderr if stdout has the JSON."""
    from sightline.lens.draw.show import write_view as write_drawing

    write_drawing(
        recording,
        out,
        view=place.view,
        layer=place.layer,
        head=place.head,
        stack=place.stack,
        subject=loaded,
    )
    if json:
        remark(out, style="")
    else:
        write(out)


def show_view(recording: Trace, loaded: Model, place: Place, *, json: bool) -> None:
    """The view in the terminal, or its numbers as JSON."""
    from sightline.lens.draw.selection import MAX_SIZE
    from sightline.lens.draw.show import view_json
    from sightline.lens.draw.terminal import print_view
    from sightline.lens.draw.views import view_of

    drawing = view_of(
        recording,
        place.view,
        layer=place.layer,
        head=place.head,
        stack=place.stack,
        subject=loaded,
        max_size=None if json else MAX_SIZE,
    )
    if json:
        write_json(view_json(recording, drawing), indent=None)
    else:
        print_view(drawing)


def parse_layers(layers: str | None) -> list[int] | None:
    """`0,5,11` as integers."""
    if layers is None:
        return None
    parts = layers.replace(" ", "").split(",")
    if not all(part.lstrip("-").isdecimal() for part in parts):
        raise InputError(
            f"--layers {layers}", expected="integers separated by commas", fix="--layers 0,5,11"
        )
    return [int(part) for part in parts]


def refuse_source(loaded: Model, source: str | None) -> None:
    """A model with one stack has no source."""
    if source is not None and len(loaded.config.stacks) < 2:
        raise InputError(
            "--source, for a model with one stack",
            expected="an encoder–decoder",
            fix="leave --source out",
        )


def check_choice(loaded: Model, view: str, drawing: ViewOptions, layers: list[int] | None) -> None:
    """Refuse a stack, view, layer or head that the model does not have, before it runs."""
    from sightline.lens.trace.layer import checked_index

    stacks = loaded.config.stacks
    stack = drawing.stack or ("decoder" if "decoder" in stacks else "encoder")
    if stack not in stacks:
        raise InputError(
            f"--stack {stack}", expected=" or ".join(stacks), fix=f"--stack {next(iter(stacks))}"
        )
    if view == "alignment" and len(stacks) < 2:
        raise InputError(
            "an alignment of a model with one stack",
            expected="an encoder–decoder",
            fix="--view map",
        )
    config = stacks[stack]
    layer = None if drawing.layer is None else checked_index("layer", drawing.layer, config.layers)
    if drawing.head is not None:
        checked_index("head", drawing.head, config.block(layer or 0).attention.heads)
    if layers is None or layer is None:
        return
    if layer not in {checked_index("layer", number, config.layers) for number in layers}:
        raise InputError(
            f"--layer {drawing.layer}, which is not among --layers",
            expected="one of these",
            fix=f"--layer {layers[0]}",
        )


def choose_head(recording: Trace, view: str, drawing: ViewOptions) -> tuple[int | None, int | None]:
    """The layer and head to draw: those given, or the head with the most structure, with a
    remark."""
    from sightline.lens.draw.default_head import most_structured

    layer, head = drawing.layer, drawing.head
    is_complete = layer is not None and (head is not None or view not in NEEDS_HEAD)
    if view not in ONE_HEAD or is_complete:
        return layer, head
    layer, head = most_structured(recording, stack=drawing.stack, layer=layer, head=head)
    remark(
        f"layer {layer}, head {head} has the most structure beside sinks and neighbours; choose"
        " with --layer N --head N, or see all: --view heads"
    )
    return layer, head
