"""Views: arrays with labels, which the terminal, figures and JSON render alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.core.attention import TILE
from sightline.lens.trace.layer import Look
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace

Array = NDArray[np.float32]
CAPTION_LENGTH = 90  # of a text in a caption


@dataclass(frozen=True, slots=True)
class View:
    """The data of one picture. `values` is `[rows, columns]`, NaN where masked; for `heads`,
    `[layers, heads, rows, columns]`.

    `across` is the number of tokens per row and per column. `extra` holds further arrays: the
    lengths of `geometry`, the points of `sphere`. `cells` are the tokens of `logit-lens`, `notes`
    are lines below the picture. `high` is the value of the brightest colour, if not the maximum.
    """

    kind: str
    title: str
    caption: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_axis: str
    column_axis: str
    values: Array
    value_name: str = "attention weight"
    signed: bool = False
    high: float | None = None
    across: tuple[int, int] = (1, 1)
    notes: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    extra: Mapping[str, Array] = field(default_factory=dict[str, Array])
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        sizes = " × ".join(map(str, self.values.shape))
        return f"<View {self.kind}: {self.title}, {sizes}>"

    @property
    def limits(self) -> tuple[float, float]:
        """The values of the darkest and the brightest colour."""
        shown = np.abs(self.values[np.isfinite(self.values)])
        high = self.high or (float(shown.max()) if shown.size and shown.max() > 0 else 1.0)
        return -high if self.signed else 0.0, high


def token_label(text: str) -> str:
    """A token as a label: without its leading space, and with marks for invisible characters."""
    shown = text.strip(" ▁").replace("\n", "⏎").replace("\t", "⇥") or ("␣" if text else "∅")
    return "".join(character if character.isprintable() else "�" for character in shown)


def token_labels(tokens: Sequence[Token], step: int = 1) -> tuple[str, ...]:
    """The labels of every `step`-th token."""
    return tuple(token_label(token.text) for token in tokens[::step])


def view_caption(trace: Trace, where: str) -> str:
    """Model, layer and text, in one line."""
    text = trace.text or "".join(token.text for token in trace.tokens)
    read = (
        f"“{shorten(trace.source_text)}” → “{shorten(text)}”"
        if trace.source_text
        else f"“{shorten(text)}”"
    )
    return " · ".join(part for part in (trace.name, where, read) if part)


def shorten(text: str, length: int = CAPTION_LENGTH) -> str:
    """The start of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def attention_map(
    look: Look, head: int | None, *, max_size: int | None
) -> tuple[Array, tuple[int, int]]:
    """One head's map, or the mean over a layer's heads, binned to at most `max_size` rows and
    columns; and the tokens per row and column.

    A cell of a binned map is the mean over its queries of the sum over its keys, so that rows still
    sum to 1.
    """
    queries = look.queries
    keys = look.key.shape[2]
    down = bin_size(queries, max_size)
    along = bin_size(keys, max_size)
    band = max(1, TILE // max(1, keys * (look.heads if head is None else 1)) // down) * down
    bands = [
        _binned_rows(look.only(head), slice(begin, min(begin + band, queries)), down, along)
        for begin in range(0, queries, band)
    ]
    return np.concatenate(bands), (down, along)


def bin_size(count: int, max_size: int | None) -> int:
    """The number of tokens per bin."""
    return 1 if max_size is None else max(1, -(-count // max_size))


def _binned_rows(look: Look, rows: slice, down: int, along: int) -> Array:
    """Some rows of a map, binned."""
    weights = look.weights(rows=rows).mean(0).float().cpu().numpy()
    scoring = look.scoring.tile(rows, slice(0, look.key.shape[2]))
    allowed = np.broadcast_to(scoring.mask.allowed()[0, 0].cpu().numpy(), weights.shape)
    return bin_values(np.where(allowed, weights, np.nan).astype(np.float32), (down, along))


def bin_values(values: Array, across: tuple[int, int], *, add: bool = True) -> Array:
    """Bin an array: the mean over rows, the sum (or mean) over columns; NaN where all cells are
    NaN."""
    down, along = across
    if down == along == 1:
        return values
    finite = np.isfinite(values)
    filled = np.where(finite, values, 0.0)
    starts = np.arange(0, values.shape[0], down), np.arange(0, values.shape[1], along)
    total = np.add.reduceat(np.add.reduceat(filled, starts[1], axis=1), starts[0], axis=0)
    counts = np.add.reduceat(
        np.add.reduceat(finite, starts[1], axis=1, dtype=np.int64),
        starts[0],
        axis=0,
        dtype=np.int64,
    )
    rows = np.add.reduceat(np.ones(len(values), dtype=np.int64), starts[0])[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, total / (rows if add else counts), np.nan).astype(np.float32)
