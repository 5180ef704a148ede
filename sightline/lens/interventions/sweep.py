"""Sweeps: change one thing at a time and see what a number does. Which activation of the clean run
brings the clean answer back?

    metric = logit_difference(model, " Paris", " Rome")   (lens.metrics, or any function of logits)
    found = sweep(model, "The capital of France is", "The capital of Italy is", metric)
    found.values                     [layers, heads]: 0 is the corrupted run, 1 the clean one
    found.top(3)                     the cells that matter most

    value = (patched − corrupted) / (clean − corrupted)

Several cells are rows of one batch, each with its own patch, so that a map costs few passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError, short_repr
from sightline.lens.interventions.edits import Edits, Positions, ablate, patch, rows_of, run
from sightline.lens.interventions.metrics import (
    Metric,
    logit_difference,
    measured,
    named,
    probability,
)
from sightline.lens.trace.prompt import Question, Text, question_of
from sightline.lens.trace.subject import Subject, Token, read_tokens
from sightline.lens.trace.trace import Trace
from sightline.record import Edit, Place, Recorder

__all__ = ["Sweep", "ablation_sweep", "logit_difference", "probability", "sweep"]

What = Literal["heads", "cross_heads", "residual", "attention", "cross_attention", "feed_forward"]
Progress = Callable[[int, int], None]  # cells done, cells in all
Cell = tuple[int, int]  # layer, and head or position
HEADS = ("heads", "cross_heads")
STREAM = ("residual", "attention", "cross_attention", "feed_forward")
TOKENS = 512  # of one pass, over all its rows


@dataclass(frozen=True, slots=True)
class Sweep:
    """A number for each layer and head, or layer and position. `clean` and `corrupted` are the
    metric of the two runs, `raw` that of each changed run; where a sweep was stopped (not
    `complete`), what is missing is NaN. `tokens` are the ones that were changed."""

    name: str
    what: str
    stack: str
    metric: str
    raw: Float[Tensor, "layers columns"]
    clean: float
    corrupted: float | None  # None where a run was not patched but ablated
    columns: tuple[int, ...]
    tokens: tuple[Token, ...]
    complete: bool

    @property
    def values(self) -> Float[Tensor, "layers columns"]:
        """Patched: 0 is the corrupted run, 1 the clean one. Ablated: by how much the metric
        changed."""
        if self.corrupted is None:
            return self.raw - self.clean
        return (self.raw - self.corrupted) / (self.clean - self.corrupted)

    def top(self, count: int = 5) -> list[tuple[int, int, float]]:
        """The cells that matter most, as (layer, head or position, value)."""
        values = self.values
        known = values.isfinite().nonzero().tolist()
        cells = [
            (layer, self.columns[column], float(values[layer, column])) for layer, column in known
        ]
        return sorted(cells, key=lambda cell: -abs(cell[2]))[:count]

    def label(self, column: int) -> str:
        """`head 3`, or a position with its token."""
        return (
            f"head {column}"
            if self.what in HEADS
            else f"position {column} {self.tokens[column].text!r}"
        )

    def summary(self, count: int = 5) -> list[str]:
        """What was done, and the cells that matter most, a line each."""
        done = int(self.raw.isfinite().sum())
        runs = (
            f"intact {self.clean:+.3f}"
            if self.corrupted is None
            else f"corrupted {self.corrupted:+.3f} → 0, clean {self.clean:+.3f} → 1"
        )
        stopped = "" if self.complete else f"; stopped after {done} cells"
        first = f"{self.name} {self.stack} {self.what}: {self.metric}, {runs}{stopped}"
        return [
            first,
            *(
                f"layer {layer:2d} {self.label(column)}  {value:+.3f}"
                for layer, column, value in self.top(count)
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON has it; what was not measured is null."""
        facts = {
            name: getattr(self, name)
            for name in ("name", "what", "stack", "metric", "clean", "corrupted", "complete")
        }
        tables = {"values": _listed(self.values), "raw": _listed(self.raw)}
        return (
            facts
            | tables
            | {
                "columns": list(self.columns),
                "tokens": [token.text for token in self.tokens],
            }
        )


def _listed(table: Tensor) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in row] for row in table.tolist()]


# ----------------------------------------------------------------------------------------- sweeps


def sweep(
    subject: Subject,
    clean: Text | Trace,
    corrupted: Text | Trace,
    metric: Metric,
    *,
    what: What = "heads",
    stack: str | None = None,
    positions: Positions = None,
    sources: tuple[Text, Text] | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Activation patching: the corrupted text once for each cell, with that one activation of the
    clean text in its place.

    Heads are patched at all positions, or at those given; the stream and what a layer adds to it at
    one position each, which may be all of them or those given. An encoder–decoder takes traces, or
    ids and the `sources` of both. `batch` rows share a pass (as many as fit if not said). Ctrl-C
    ends the sweep and keeps what was measured.
    """
    ground = ground_for(subject, what, stack)
    good, bad = (
        question_of(subject, text, source)
        for text, source in zip((clean, corrupted), sources or (None, None), strict=True)
    )
    refuse_other_length(ground.tokens(subject, good), ground.tokens(subject, bad))
    seen = Recorder({what})
    goal = measured(metric, run(subject, good, seen)[0])
    start = measured(metric, run(subject, bad, Recorder())[0])
    if math.isclose(goal, start, rel_tol=1e-6, abs_tol=1e-7):
        seen_both = f"a metric of {goal:.6g} for the clean and the corrupted text"
        fix = "choose texts that the metric tells apart"
        raise InputError(seen_both, expected="two numbers", fix=fix)
    columns = ground.heads if what in HEADS else tuple(rows_of(positions, seen[ground.place(0)]))

    def lent(layer: int, column: int) -> Edits:
        place = ground.place(layer)
        return (
            patch(place, seen[place], head=column, positions=positions)
            if what in HEADS
            else patch(place, seen[place], positions=column)
        )

    cells = {cell: lent(*cell) for cell in ground.cells(columns)}
    raw, complete = run_cells(subject, bad, metric, cells, batch=batch, progress=progress)
    table = ground.table(raw, columns)
    return Sweep(
        subject.name,
        what,
        ground.stack,
        named(metric),
        table,
        goal,
        start,
        columns,
        ground.tokens(subject, bad),
        complete,
    )


def ablation_sweep(
    subject: Subject,
    text: Text | Trace,
    metric: Metric,
    *,
    what: Literal["heads", "cross_heads"] = "heads",
    by: Literal["zero", "mean"] = "zero",
    stack: str | None = None,
    source: Text | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """The text once for each head, without that head: by how much does the metric change?"""
    if what not in HEADS:
        raise InputError(
            f"what={short_repr(what)}",
            expected="heads or cross_heads",
            fix='ablation_sweep(…, what="heads")',
        )
    question = question_of(subject, text, source)
    ground = ground_for(subject, what, stack)
    intact = measured(metric, run(subject, question, Recorder())[0])
    cross = what == "cross_heads"
    columns = ground.heads
    cells = {
        cell: ablate(*cell, stack=ground.stack, cross=cross, by=by)
        for cell in ground.cells(columns)
    }
    raw, complete = run_cells(subject, question, metric, cells, batch=batch, progress=progress)
    table = ground.table(raw, columns)
    tokens = ground.tokens(subject, question)
    return Sweep(
        subject.name,
        what,
        ground.stack,
        named(metric),
        table,
        intact,
        None,
        columns,
        tokens,
        complete,
    )


def run_cells(
    subject: Subject,
    question: Question,
    metric: Metric,
    cells: Mapping[Cell, Edits],
    *,
    batch: int | None,
    progress: Progress | None,
) -> tuple[dict[Cell, float], bool]:
    """The metric with each cell's edits, several cells a pass; and whether all were measured."""
    found = dict[Cell, float]()
    every = list(cells)
    rows = batch or max(1, TOKENS // (len(question.ids) + len(question.source or ())))
    try:
        for first in range(0, len(every), rows):
            group = every[first : first + rows]
            edits = Edits()
            for row, cell in enumerate(group):
                edits = edits | {place: in_row(row, edit) for place, edit in cells[cell].items()}
            logits = run(subject, question, Recorder(edits=edits), rows=len(group))
            found |= {cell: measured(metric, logits[row]) for row, cell in enumerate(group)}
            if progress is not None:
                progress(len(found), len(every))
    except KeyboardInterrupt:
        return found, len(found) == len(every)
    return found, True


def in_row(row: int, edit: Edit) -> Edit:
    """The edit for one row of the batch."""

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[row : row + 1] = edit(value[row : row + 1])
        return value

    return change


def refuse_other_length(clean: Sequence[Token], corrupted: Sequence[Token]) -> None:
    """An activation has a place in the other text only if both have the same places."""
    if len(clean) != len(corrupted):
        shown = [" ".join(repr(token.text) for token in tokens) for tokens in (clean, corrupted)]
        seen = f"{len(clean)} clean tokens ({shown[0]}) and {len(corrupted)} corrupted ({shown[1]})"
        raise InputError(seen, expected="the same number", fix="choose words of as many tokens")


# ------------------------------------------------------------------------------- where it is done


@dataclass(frozen=True, slots=True)
class Ground:
    """The layers of one stack, and the quantity that is changed in them."""

    what: str
    stack: str
    heads_of: tuple[int, ...]  # of each layer

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(range(max(self.heads_of)))

    def place(self, layer: int) -> Place:
        return self.stack, layer, self.what

    def cells(self, columns: Sequence[int]) -> list[Cell]:
        """Every layer with every head that it has, or with every position."""
        every = [(layer, column) for layer in range(len(self.heads_of)) for column in columns]
        return [
            (layer, column)
            for layer, column in every
            if self.what not in HEADS or column < self.heads_of[layer]
        ]

    def tokens(self, subject: Subject, question: Question) -> tuple[Token, ...]:
        """What the stack reads."""
        if self.stack == "encoder" and question.source is not None:
            return read_tokens(
                subject.tokenizer, question.source, question.source_text or None, source=True
            )
        return read_tokens(
            subject.tokenizer, question.ids, question.text or None, source=question.source is None
        )

    def table(
        self, found: Mapping[Cell, float], columns: Sequence[int]
    ) -> Float[Tensor, "layers columns"]:
        """What was found, by layer and column."""
        return torch.tensor(
            [
                [found.get((layer, column), math.nan) for column in columns]
                for layer in range(len(self.heads_of))
            ]
        )


def ground_for(subject: Subject, what: str, stack: str | None) -> Ground:
    """The stack that is meant (the last, unless one is named), if it has such a part."""
    stacks = subject.running.config.stacks
    if what not in (*HEADS, *STREAM):
        raise InputError(
            f"what={short_repr(what)}",
            expected=", ".join((*HEADS, *STREAM)),
            fix='sweep(…, what="heads")',
        )
    if stack is not None and stack not in stacks:
        raise InputError(
            f"a stack named {short_repr(stack)}",
            expected=" or ".join(stacks),
            fix=f"stack={next(iter(stacks))!r}",
        )
    stack = stack or list(stacks)[-1]
    cross = what.startswith("cross_")
    blocks = [stacks[stack].block(layer) for layer in range(stacks[stack].layers)]
    forms = [block.cross_attention if cross else block.attention for block in blocks]
    heads = tuple(form.heads for form in forms if form is not None)
    if not heads:
        raise InputError(
            f"{what} of the {stack}, which has no cross-attention",
            expected="an encoder–decoder",
            fix=f"what={what[6:]!r}",
        )
    return Ground(what, stack, heads)
