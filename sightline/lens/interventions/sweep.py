"""Sweeps: activation patching and ablation, one cell (layer × head or position) at a time.

    metric = logit_difference(model, " Paris", " Rome")   (or any function of logits)
    result = sweep(model, "The capital of France is", "The capital of Italy is", metric)
    result.values                     [layers, heads]: 0 is the corrupted run, 1 the clean one
    result.top(3)                    the cells with the largest effect

    value = (patched − corrupted) / (clean − corrupted)

Cells are batched, each row with its own patch, so that a map costs few passes.
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
from sightline.lens.interventions.edits import (
    Edits,
    Positions,
    ablate,
    patch,
    position_indices,
    run_with_edits,
)
from sightline.lens.interventions.metrics import (
    Metric,
    evaluate_metric,
    logit_difference,
    metric_name,
    probability,
)
from sightline.lens.trace.prompt import Prompt, Text, prompt_of
from sightline.lens.trace.subject import Subject, Token, read_tokens
from sightline.lens.trace.trace import Trace
from sightline.record import Edit, Place, Recorder

__all__ = ["Sweep", "ablation_sweep", "logit_difference", "probability", "sweep"]

What = Literal["heads", "cross_heads", "residual", "attention", "cross_attention", "feed_forward"]
Progress = Callable[[int, int], None]  # cells done, cells in all
Cell = tuple[int, int]  # layer, and head or position
HEADS = ("heads", "cross_heads")
STREAM = ("residual", "attention", "cross_attention", "feed_forward")
MAX_TOKENS_PER_PASS = 512  # over all rows of a batch


@dataclass(frozen=True, slots=True)
class Sweep:
    """One number per layer and head, or per layer and position. `clean` and `corrupted` are the
    metrics of the two runs, `raw` that of each patched run; cells that an interrupted sweep (not
    `complete`) did not reach are NaN. `tokens` are those of the patched run."""

    name: str
    what: str
    stack: str
    metric: str
    raw: Float[Tensor, "layers columns"]
    clean: float
    corrupted: float | None  # None for an ablation
    columns: tuple[int, ...]
    tokens: tuple[Token, ...]
    complete: bool

    @property
    def values(self) -> Float[Tensor, "layers columns"]:
        """Patching: 0 is the corrupted run, 1 the clean one. Ablation: the change of the metric."""
        if self.corrupted is None:
            return self.raw - self.clean
        return (self.raw - self.corrupted) / (self.clean - self.corrupted)

    def __repr__(self) -> str:
        layers, columns = self.raw.shape
        unit = "heads" if self.what in HEADS else "positions"
        state = "" if self.complete else ", interrupted"
        sizes = f"{layers} layers × {columns} {unit}"
        return f"<Sweep of {self.name or 'a model'} {self.stack} {self.what}: {sizes}{state}>"

    def _repr_html_(self) -> str:
        """The cells with the largest effect, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        rows = [(layer, self.label(column), value) for layer, column, value in self.top(20)]
        return result_table(self.summary(0)[0], ("layer", "cell", "value"), rows)

    def top(self, count: int = 5) -> list[tuple[int, int, float]]:
        """The cells with the largest absolute values, as (layer, head or position, value)."""
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
        """The runs, and the cells with the largest effect, one line each."""
        done = int(self.raw.isfinite().sum())
        runs = (
            f"intact {self.clean:+.3f}"
            if self.corrupted is None
            else f"corrupted {self.corrupted:+.3f} → 0, clean {self.clean:+.3f} → 1"
        )
        stopped = "" if self.complete else f"; interrupted after {done} cells"
        first = f"{self.name} {self.stack} {self.what}: {self.metric}, {runs}{stopped}"
        return [
            first,
            *(
                f"layer {layer:2d} {self.label(column)}  {value:+.3f}"
                for layer, column, value in self.top(count)
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict; cells that were not measured are null."""
        facts = {
            name: getattr(self, name)
            for name in ("name", "what", "stack", "metric", "clean", "corrupted", "complete")
        }
        tables = {"values": _nan_to_none(self.values), "raw": _nan_to_none(self.raw)}
        return (
            facts
            | tables
            | {
                "columns": list(self.columns),
                "tokens": [token.text for token in self.tokens],
            }
        )


def _nan_to_none(table: Tensor) -> list[list[float | None]]:
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
    """Activation patching: run the corrupted text once per cell, with that activation replaced by
    the clean run's.

    Heads are patched at all positions, or at `positions`; the stream and the layers' updates at one
    position per cell, over all positions or `positions`. An encoder–decoder takes traces, or ids
    and the `sources` of both. `batch` is the number of cells per pass (by default as many as fit).
    Ctrl-C ends the sweep and keeps the measured cells.
    """
    target = sweep_target(subject, what, stack)
    clean_prompt, corrupted_prompt = (
        prompt_of(subject, text, source)
        for text, source in zip((clean, corrupted), sources or (None, None), strict=True)
    )
    check_same_length(
        target.tokens(subject, clean_prompt), target.tokens(subject, corrupted_prompt)
    )
    recorder = Recorder({what})
    clean_value = evaluate_metric(metric, run_with_edits(subject, clean_prompt, recorder)[0])
    corrupted_value = evaluate_metric(
        metric, run_with_edits(subject, corrupted_prompt, Recorder())[0]
    )
    if math.isclose(clean_value, corrupted_value, rel_tol=1e-6, abs_tol=1e-7):
        values = f"a metric of {clean_value:.6g} for the clean and the corrupted text"
        fix = "choose texts for which the metric differs"
        raise InputError(values, expected="two different numbers", fix=fix)
    columns = (
        target.heads
        if what in HEADS
        else tuple(position_indices(positions, recorder[target.place(0)]))
    )

    def patch_cell(layer: int, column: int) -> Edits:
        place = target.place(layer)
        return (
            patch(place, recorder[place], head=column, positions=positions)
            if what in HEADS
            else patch(place, recorder[place], positions=column)
        )

    cells = {cell: patch_cell(*cell) for cell in target.cells(columns)}
    raw, complete = run_cells(
        subject, corrupted_prompt, metric, cells, batch=batch, progress=progress
    )
    table = target.table(raw, columns)
    return Sweep(
        subject.name,
        what,
        target.stack,
        metric_name(metric),
        table,
        clean_value,
        corrupted_value,
        columns,
        target.tokens(subject, corrupted_prompt),
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
    """Run the text once per head with that head ablated, and measure the change of the metric."""
    if what not in HEADS:
        raise InputError(
            f"what={short_repr(what)}",
            expected="heads or cross_heads",
            fix='ablation_sweep(…, what="heads")',
        )
    prompt = prompt_of(subject, text, source)
    target = sweep_target(subject, what, stack)
    intact = evaluate_metric(metric, run_with_edits(subject, prompt, Recorder())[0])
    cross = what == "cross_heads"
    columns = target.heads
    cells = {
        cell: ablate(*cell, stack=target.stack, cross=cross, by=by)
        for cell in target.cells(columns)
    }
    raw, complete = run_cells(subject, prompt, metric, cells, batch=batch, progress=progress)
    table = target.table(raw, columns)
    tokens = target.tokens(subject, prompt)
    return Sweep(
        subject.name,
        what,
        target.stack,
        metric_name(metric),
        table,
        intact,
        None,
        columns,
        tokens,
        complete,
    )


def run_cells(
    subject: Subject,
    prompt: Prompt,
    metric: Metric,
    cells: Mapping[Cell, Edits],
    *,
    batch: int | None,
    progress: Progress | None,
) -> tuple[dict[Cell, float], bool]:
    """The metric with each cell's edits, several cells per pass; and whether all were measured."""
    values = dict[Cell, float]()
    all_cells = list(cells)
    rows = batch or max(1, MAX_TOKENS_PER_PASS // (len(prompt.ids) + len(prompt.source or ())))
    try:
        for first in range(0, len(all_cells), rows):
            group = all_cells[first : first + rows]
            edits = Edits()
            for row, cell in enumerate(group):
                edits = edits | {place: edit_row(row, edit) for place, edit in cells[cell].items()}
            logits = run_with_edits(subject, prompt, Recorder(edits=edits), rows=len(group))
            values |= {cell: evaluate_metric(metric, logits[row]) for row, cell in enumerate(group)}
            if progress is not None:
                progress(len(values), len(all_cells))
    except KeyboardInterrupt:
        return values, len(values) == len(all_cells)
    return values, True


def edit_row(row: int, edit: Edit) -> Edit:
    """The edit, applied to one row of the batch."""

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[row : row + 1] = edit(value[row : row + 1])
        return value

    return change


def check_same_length(clean: Sequence[Token], corrupted: Sequence[Token]) -> None:
    """Patching needs the same positions in both texts."""
    if len(clean) != len(corrupted):
        texts = [" ".join(repr(token.text) for token in tokens) for tokens in (clean, corrupted)]
        counts = (
            f"{len(clean)} clean tokens ({texts[0]}) and {len(corrupted)} corrupted ({texts[1]})"
        )
        raise InputError(
            counts, expected="the same number", fix="choose words with the same number of tokens"
        )


# ----------------------------------------------------------------------------------------- target


@dataclass(frozen=True, slots=True)
class SweepTarget:
    """The layers of one stack, and the quantity that is edited in them."""

    what: str
    stack: str
    heads_per_layer: tuple[int, ...]

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(range(max(self.heads_per_layer)))

    def place(self, layer: int) -> Place:
        return self.stack, layer, self.what

    def cells(self, columns: Sequence[int]) -> list[Cell]:
        """Every (layer, head) that exists, or every (layer, position)."""
        every = [
            (layer, column) for layer in range(len(self.heads_per_layer)) for column in columns
        ]
        return [
            (layer, column)
            for layer, column in every
            if self.what not in HEADS or column < self.heads_per_layer[layer]
        ]

    def tokens(self, subject: Subject, prompt: Prompt) -> tuple[Token, ...]:
        """The tokens that the stack reads."""
        if self.stack == "encoder" and prompt.source is not None:
            return read_tokens(
                subject.tokenizer, prompt.source, prompt.source_text or None, source=True
            )
        return read_tokens(
            subject.tokenizer, prompt.ids, prompt.text or None, source=prompt.source is None
        )

    def table(
        self, values: Mapping[Cell, float], columns: Sequence[int]
    ) -> Float[Tensor, "layers columns"]:
        """The values as a table; NaN where missing."""
        return torch.tensor(
            [
                [values.get((layer, column), math.nan) for column in columns]
                for layer in range(len(self.heads_per_layer))
            ]
        )


def sweep_target(subject: Subject, what: str, stack: str | None) -> SweepTarget:
    """The named stack (the last by default), if it has the quantity."""
    stacks = subject.transformer.config.stacks
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
    return SweepTarget(what, stack, heads)
