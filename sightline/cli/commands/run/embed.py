"""`sightline embed`: one vector per text, and their cosine similarities."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter
from rich.text import Text as StyledText

from sightline.cli.ui.input import read_texts
from sightline.cli.ui.options.groups import OUTPUT
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import ModelName, Text
from sightline.cli.ui.output import (
    counted,
    progress_bar,
    report_speed,
    show_lines,
    warnings_as_notes,
    write,
    write_json,
)
from sightline.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

COMPARED = 20  # texts whose similarities fit on a screen
BAR_ABOVE = 100  # texts
SHOWN_NUMBERS = 8  # of a vector


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class VectorOutputOptions(OutputOptions):
    """The similarities on the screen, or the vectors as JSON or NumPy file."""

    out: Path | None = None
    """Write the vectors to this .npy file, float32, one row per text."""


def embed(
    model: ModelName,
    /,
    *texts: Text,
    input: InputOptions = InputOptions(),
    running: RunOptions = RunOptions(),
    output: VectorOutputOptions = VectorOutputOptions(),
) -> None:
    """Embed texts: one vector per text.

    Shows the cosine similarity of every pair; --json or --out writes the vectors.

    Parameters
    ----------
    texts
        The texts; - reads standard input, one text per line.
    input.file
        Read the texts from a UTF-8 file, one per line.
    output.json
        Write JSON: each text with its vector, and the runner.
    """
    inputs = read_texts(texts, input.file, command="embed")
    check_out(output.out)
    loaded = running.load(model)
    started = time.perf_counter()
    with warnings_as_notes(), texts_bar(len(inputs)) as advance:
        vectors = loaded.embed(inputs, progress=advance).float()
    seconds = time.perf_counter() - started
    write_vectors(inputs, vectors, output, runner=loaded.runner.name)
    report_speed(len(inputs), seconds)


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written before anything is computed."""
    if out is None:
        return
    if out.suffix != ".npy":
        raise InputError(
            f"--out {out}",
            expected="a name that ends in .npy",
            fix=f"--out {out.with_suffix('.npy')}",
        )
    is_writable = out.parent.is_dir() and os.access(out.parent, os.W_OK) and not out.is_dir()
    if not is_writable:
        raise InputError(
            f"{out} cannot be written",
            expected="a file in an existing folder",
            fix=f"mkdir -p {out.parent}",
        )


@contextmanager
def texts_bar(total: int) -> Generator[Callable[[int], None]]:
    """A progress bar for many texts."""
    with progress_bar(shown=total > BAR_ABOVE) as progress:
        task = progress.add_task("embedding", total=total)
        yield lambda done: progress.advance(task, done)


# ---------------------------------------------------------------------------------------- results


def write_vectors(
    texts: list[str], vectors: Tensor, output: VectorOutputOptions, *, runner: str
) -> None:
    """The vectors as a file or as JSON, or a summary of them."""
    out = output.out
    if out is not None:
        save_vectors(vectors, out)
    if output.json:
        write_json(embeddings_json(texts, vectors, out, runner=runner), indent=None)
    elif out is not None:
        write(out)
    else:
        show_lines(lambda width: summary_lines(texts, vectors, width))


def save_vectors(vectors: Tensor, out: Path) -> None:
    """Write atomically: beside the file, then renamed."""
    import numpy as np

    part = out.with_name(f".{out.name}.{os.getpid()}.npy")
    try:
        np.save(part, vectors.cpu().numpy())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def embeddings_json(texts: list[str], vectors: Tensor, out: Path | None, *, runner: str) -> Any:
    """Each text with its vector, numbers with the nine digits that restore float32 exactly; or the
    file they were written to."""
    if out is not None:
        width = vectors.shape[1]
        return {"path": str(out), "texts": len(texts), "width": width, "runner": runner}
    rows = ([float(f"{number:.9g}") for number in row] for row in vectors.tolist())
    return [
        {"text": text, "vector": row, "runner": runner}
        for text, row in zip(texts, rows, strict=True)
    ]


def summary_lines(texts: list[str], vectors: Tensor, width: int) -> list[StyledText]:
    """Number, size and norms of the vectors, and their similarities."""
    norms = vectors.norm(dim=1)
    smallest = f"{float(norms.min()):.3f}"
    largest = f"{float(norms.max()):.3f}"
    span = smallest if smallest == largest else f"{smallest} to {largest}"
    head = StyledText(
        f"{counted(len(texts), 'vector')} of {vectors.shape[1]} dimensions, norm {span}", "dim"
    )
    if len(texts) == 1:
        numbers = " ".join(f"{number:.4f}" for number in vectors[0, :SHOWN_NUMBERS].tolist())
        more = " …" if vectors.shape[1] > SHOWN_NUMBERS else ""
        return [head, StyledText(numbers + more)]
    if len(texts) > COMPARED:
        hint = f"similarities are shown for up to {COMPARED} texts; --json or --out writes them all"
        return [head, StyledText(hint, "dim")]
    return [head, StyledText(), *similarity_lines(texts, vectors, width)]


def similarity_lines(texts: list[str], vectors: Tensor, width: int) -> list[StyledText]:
    """The cosine similarity of every pair, green above 0.5, dim below 0.2; 0 for a text without
    tokens."""
    import torch

    units = torch.nn.functional.normalize(vectors, dim=1)
    rows = (units @ units.T).tolist()
    numbers = "".join(f"{n:>7}" for n in range(1, len(texts) + 1))
    lines = [StyledText(f"   {numbers}   cosine", "dim")]
    for n, (text, row) in enumerate(zip(texts, rows, strict=True), start=1):
        line = StyledText().append(f"{n:>3}", "dim")
        for value in row:
            line.append(f"{value:7.2f}", similarity_style(value))
        name = StyledText(f"   {' '.join(text.split())}")
        name.truncate(max(20, width - line.cell_len), overflow="ellipsis")
        lines.append(line.append_text(name))
    return lines


def similarity_style(value: float) -> str:
    if value > 0.5:
        return "green"
    return "" if value > 0.2 else "dim"
