"""Loading a model with its progress on stderr: what most commands begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.cli.ui.output import note
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.checkpoints.engine_choice import Engine
    from sightline.model import Model

SHOWN_ABOVE = 25_000_000  # numbers: about 100 MB in float32


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
    """Load, with a bar for large models and every note of the reader in a line of its own."""
    from sightline.checkpoints.open import open_source
    from sightline.checkpoints.sources.reference import resolve
    from sightline.model import called, load_opened

    source = open_source(
        resolve(reference),
        verify=verify,
        allow_pickle_weights=from_pickle,
        ignore_tensors=ignore_tensors,
    )
    total = sum(entry.numbers for entry in source.tensors.values())
    screen = Console(stderr=True)
    columns = (
        TextColumn("loading"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=screen,
        transient=True,
        disable=total < SHOWN_ABOVE or not screen.is_terminal,
    ) as bar:
        task = bar.add_task("loading", total=total)
        model = load_opened(
            source,
            dtype=dtype,
            engine=engine,
            strict=strict,
            progress=lambda name, numbers: bar.advance(task, numbers),
            name=called(reference),
        )
    for text in model.notes:
        note(text, style="yellow" if text.startswith("warning") else "dim")
    return model
