"""What every picture is made of: plain arrays with their labels, which the terminal, a figure and
JSON render alike."""

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
SHOWN_TEXT = 90  # characters of a text in a caption


@dataclass(frozen=True, slots=True)
class View:
    """One picture. `values` is `[rows, columns]`, NaN where a token may not look; of `heads`,
    `[layers, heads, rows, columns]`.

    `across` is how many tokens share a row and how many share a column. `extra` holds what a view
    has besides: the lengths of `geometry`, the points of `sphere`. `cells` are the words of
    `logit-lens`, `notes` lines that belong under the picture. `high` is what the brightest colour
    stands for, where it is not the greatest value.
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

    @property
    def limits(self) -> tuple[float, float]:
        """The values that the darkest and the brightest colour stand for."""
        shown = np.abs(self.values[np.isfinite(self.values)])
        high = self.high or (float(shown.max()) if shown.size and shown.max() > 0 else 1.0)
        return -high if self.signed else 0.0, high


def label(text: str) -> str:
    """A token as a heading: without the space before it, and nothing invisible."""
    shown = text.strip(" ▁").replace("\n", "⏎").replace("\t", "⇥") or ("␣" if text else "∅")
    return "".join(sign if sign.isprintable() else "�" for sign in shown)


def labels(tokens: Sequence[Token], step: int = 1) -> tuple[str, ...]:
    """Of tokens that share a place, the first speaks for all."""
    return tuple(label(token.text) for token in tokens[::step])


def caption(trace: Trace, where: str) -> str:
    """Model, place and text, in one line."""
    text = trace.text or "".join(token.text for token in trace.tokens)
    read = f"“{cut(trace.source_text)}” → “{cut(text)}”" if trace.source_text else f"“{cut(text)}”"
    return " · ".join(part for part in (trace.name, where, read) if part)


def cut(text: str, most: int = SHOWN_TEXT) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def map_of(look: Look, head: int | None, *, at_most: int | None) -> tuple[Array, tuple[int, int]]:
    """One head's map, or the mean of a layer's, in at most so many rows and columns, and how many
    tokens share one of each.

    A cell of a smaller map is the mean over its queries of the sum over its keys, so that rows
    still sum to 1.
    """
    queries = look.queries
    keys = look.key.shape[2]
    down = step_of(queries, at_most)
    along = step_of(keys, at_most)
    band = max(1, TILE // max(1, keys * (look.heads if head is None else 1)) // down) * down
    found = [
        _band(look.only(head), slice(begin, min(begin + band, queries)), down, along)
        for begin in range(0, queries, band)
    ]
    return np.concatenate(found), (down, along)


def step_of(count: int, at_most: int | None) -> int:
    """How many share a place."""
    return 1 if at_most is None else max(1, -(-count // at_most))


def _band(look: Look, rows: slice, down: int, along: int) -> Array:
    """Some rows of a map, tokens taken together."""
    weights = look.weights(rows=rows).mean(0).float().cpu().numpy()
    scoring = look.scoring.tile(rows, slice(0, look.key.shape[2]))
    allowed = np.broadcast_to(scoring.mask.allowed()[0, 0].cpu().numpy(), weights.shape)
    return pooled(np.where(allowed, weights, np.nan).astype(np.float32), (down, along))


def pooled(values: Array, across: tuple[int, int], *, add: bool = True) -> Array:
    """The mean over rows taken together, the sum (or mean) over columns; NaN only where nothing
    was."""
    down, along = across
    if down == along == 1:
        return values
    there = np.isfinite(values)
    filled = np.where(there, values, 0.0)
    starts = np.arange(0, values.shape[0], down), np.arange(0, values.shape[1], along)
    total = np.add.reduceat(np.add.reduceat(filled, starts[1], axis=1), starts[0], axis=0)
    counted = np.add.reduceat(
        np.add.reduceat(there, starts[1], axis=1, dtype=np.int64), starts[0], axis=0, dtype=np.int64
    )
    rows = np.add.reduceat(np.ones(len(values), dtype=np.int64), starts[0])[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counted > 0, total / (rows if add else counted), np.nan).astype(np.float32)
