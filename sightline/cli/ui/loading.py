"""Loading a model with its progress and its notes on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.cli.ui.output import note
from sightline.terminal.console import Console
from sightline.terminal.progress import waiting

if TYPE_CHECKING:
    from sightline.checkpoints.engine_choice import Engine
    from sightline.config import ModelConfig
    from sightline.model import Model

SHOWN_ABOVE = 25_000_000  # parameters: about 100 MB in float32


def load_shown(
    reference: str,
    *,
    dtype: str = "float32",
    engine: Engine = "torch",
    strict: bool = False,
    verify: bool = False,
    from_pickle: bool = False,
    ignore_tensors: Sequence[str] = (),
) -> Model:
    """Load a model, with a progress bar for large ones and a line for every note of the loader."""
    from sightline.checkpoints.open import open_source
    from sightline.checkpoints.sources.reference import resolve
    from sightline.loading import display_name, load_opened

    source = open_source(
        resolve(reference),
        verify=verify,
        allow_pickle_weights=from_pickle,
        ignore_tensors=ignore_tensors,
    )
    total = sum(entry.numbers for entry in source.tensors.values())
    with loading_bar(total) as bar:
        task = bar.add_task("loading", total=total)
        model = load_opened(
            source,
            dtype=dtype,
            engine=engine,
            strict=strict,
            progress=lambda name, numbers: bar.advance(task, numbers),
            name=display_name(reference),
        )
    if model.precision is not None:
        with waiting("packing weights for the native engine"):
            _ = model.runner  # packs the weights, if that is still to be done
    for text in model.notes:
        note(text, style="yellow" if text.startswith("warning") else "dim")
    return model


def loading_bar(total: int) -> Progress:
    """Shown on a terminal, for a model that takes a while."""
    screen = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=total < SHOWN_ABOVE or not screen.is_terminal,
    )


def checkpoint_config(reference: str) -> ModelConfig:
    """The configuration of a checkpoint, without reading its weights."""
    from sightline.checkpoints.identity import identify
    from sightline.checkpoints.open import open_source
    from sightline.checkpoints.sources.reference import resolve

    return identify(open_source(resolve(reference))).config
