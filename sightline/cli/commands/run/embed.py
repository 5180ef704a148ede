"""`sightline embed`: one vector for each text, and how alike the texts are."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from sightline.cli.ui.arguments import Dtype, IgnoreTensors, OneText, Strict
from sightline.cli.ui.input import read_file, read_input
from sightline.cli.ui.output import bar, note, remark, show, write, write_json
from sightline.errors import InputError, nearest

if TYPE_CHECKING:
    from torch import Tensor

COMPARED = 20  # texts that a screen has room to compare
BAR_ABOVE = 100  # texts
FIRST = 8  # numbers of a vector that are shown


def embed(
    model: str,
    /,
    *texts: OneText,
    file: Path | None = None,
    out: Path | None = None,
    engine: Literal["auto", "native", "torch"] = "torch",
    dtype: Dtype = "float32",
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """One vector for each text. Shows the cosine between any two of them; --json or --out gives the
    vectors.

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    texts
        The texts; - reads standard input, one text a line.
    file
        Read the texts from a file, one a line.
    out
        Write the vectors into this .npy file, float32, one row a text.
    engine
        native runs the model on Sightline's own engine, in any --dtype.
    json
        Write JSON: each text with its vector.
    """
    from sightline.cli.ui.loading import load_shown

    wanted = read_texts(texts, file, command="embed")
    check_out(out)
    loaded = load_shown(
        model, engine=engine, dtype=dtype, strict=strict, ignore_tensors=ignore_tensors
    )
    started = time.perf_counter()
    with notes_shown(), progress_of(len(wanted)) as advance:
        vectors = loaded.embed(wanted, progress=advance).float()
    seconds = time.perf_counter() - started
    write_vectors(wanted, vectors, out, json=json)
    say_speed(len(wanted), seconds)


# ---------------------------------------------------------------------------------------- reading


def read_texts(texts: Sequence[str], file: Path | None, *, command: str) -> list[str]:
    """The texts, from wherever they come: one a line in a file and on standard input."""
    if bool(texts) == (file is not None):
        raise InputError(
            "texts and a file" if texts else "no text",
            expected="texts, --file FILE, or - for standard input",
            fix=f'sightline {command} MODEL "One text" "and another"',
        )
    refuse_options(texts)
    if file is not None:
        return lines_of(read_file(file), str(file))
    return lines_of(read_input(), "standard input") if list(texts) == ["-"] else list(texts)


def refuse_options(texts: Sequence[str]) -> None:
    """What begins with a hyphen is more likely an option misspelt than a text."""
    for text in texts:
        if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", text):
            raise InputError(
                f"no option is called {text[:40]!r}",
                fix=nearest(text[:40], ("--file", "--out", "--json", "--top-k", "--help")),
            )


def lines_of(text: str, where: str) -> list[str]:
    """One text a line; an empty line among them counts, so that the n-th answer belongs to the n-th
    line."""
    lines = text.removesuffix("\n").split("\n")
    if not text.strip():
        raise InputError(f"no text in {where}", expected="one text a line")
    return [line.removesuffix("\r") for line in lines]


def check_out(out: Path | None) -> None:
    """A place that cannot be written to is said before anything is computed."""
    if out is None:
        return
    if out.suffix != ".npy":
        raise InputError(
            f"--out {out}",
            expected="a name that ends in .npy",
            fix=f"--out {out.with_suffix('.npy')}",
        )
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise InputError(
            f"{out} cannot be written",
            expected="a file in a folder that is there",
            fix=f"mkdir -p {out.parent}",
        )


# --------------------------------------------------------------------------------- while it works


@contextmanager
def progress_of(total: int) -> Generator[Callable[[int], None]]:
    """A bar on stderr, for many texts and on a terminal only."""
    with bar(shown=total > BAR_ABOVE) as progress:
        task = progress.add_task("reading", total=total)
        yield lambda done: progress.advance(task, done)


@contextmanager
def notes_shown() -> Generator[None]:
    """What the work had to warn of, each a line on stderr."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in said:
        note(warning.message)


def say_speed(texts: int, seconds: float) -> None:
    """How quick it was, on stderr."""
    count = "1 text" if texts == 1 else f"{texts} texts"
    remark(f"{count}, {texts / seconds:.1f} a second")


# ---------------------------------------------------------------------------------------- results


def write_vectors(texts: list[str], vectors: Tensor, out: Path | None, *, json: bool) -> None:
    """The vectors as a file, as JSON, or a look at them."""
    if out is not None:
        save(vectors, out)
    if json:
        write_json(plain(texts, vectors, out), indent=None)
    elif out is not None:
        write(out)
    else:
        show(lambda width: look(texts, vectors, width))


def save(vectors: Tensor, out: Path) -> None:
    """Whole or not at all: written beside it, then put in place."""
    import numpy as np

    part = out.with_name(f".{out.name}.{os.getpid()}.npy")
    try:
        np.save(part, vectors.cpu().numpy())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def plain(texts: list[str], vectors: Tensor, out: Path | None) -> Any:
    """Each text with its vector, every number with the nine digits that give float32 back exactly;
    or where they were written."""
    if out is not None:
        return {"path": str(out), "texts": len(texts), "width": vectors.shape[1]}
    rows = ([float(f"{number:.9g}") for number in row] for row in vectors.tolist())
    return [{"text": text, "vector": row} for text, row in zip(texts, rows, strict=True)]


def look(texts: list[str], vectors: Tensor, width: int) -> list[Text]:
    """What the vectors are, and how alike."""
    lengths = vectors.norm(dim=1)
    shortest, longest = (f"{float(length):.3f}" for length in (lengths.min(), lengths.max()))
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    count = "1 vector" if len(texts) == 1 else f"{len(texts)} vectors"
    head = Text(f"{count} of {vectors.shape[1]} numbers, length {span}", "dim")
    if len(texts) == 1:
        numbers = " ".join(f"{number:.4f}" for number in vectors[0, :FIRST].tolist())
        return [head, Text(f"{numbers}{' …' if vectors.shape[1] > FIRST else ''}")]
    if len(texts) > COMPARED:
        return [
            head,
            Text("--json or --out vectors.npy gives them; up to 20 texts are compared here", "dim"),
        ]
    return [head, Text(), *cosines(texts, vectors, width)]


def cosines(texts: list[str], vectors: Tensor, width: int) -> list[Text]:
    """The cosine of each text with each, the stronger the greener; a text of no tokens has none."""
    import torch

    units = torch.nn.functional.normalize(vectors, dim=1)
    rows = (units @ units.T).tolist()
    lines = [
        Text(" " * 3 + "".join(f"{n:>7}" for n in range(1, len(texts) + 1)) + "   cosine", "dim")
    ]
    for n, (text, row) in enumerate(zip(texts, rows, strict=True), start=1):
        line = Text().append(f"{n:>3}", "dim")
        for value in row:
            line.append(f"{value:7.2f}", "green" if value > 0.5 else "" if value > 0.2 else "dim")
        name = Text(f"   {' '.join(text.split())}")
        name.truncate(max(20, width - line.cell_len), overflow="ellipsis")
        lines.append(line.append_text(name))
    return lines
