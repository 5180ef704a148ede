"""Interventions: functions that change a quantity on its way through the model, made here and
applied by the recorder.

    quiet = ablate(5, 1) | ablate(5, 2)                        two heads of layer 5 say nothing
    logits_with(model, "The cat sat", quiet)                   [time, vocab_size]
    trace_of(model, ids, edits=steer(8, vector, scale=4.0))    the same run, watched
    patch(("decoder", 3, "residual"), other["residual", 3])    another run's stream from layer 3 on

A layer counts from 0; heads and positions from 0, or from the end when negative. An edit whose
place the model never computes raises when the run is over, so none is silently without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import InputError, RecordError, nearest, short_repr
from sightline.lens.trace.layer import checked
from sightline.lens.trace.prompt import Question, Text, question_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace
from sightline.record import QUANTITIES, Edit, Place, Recorder

Positions = int | Sequence[int] | None
NO_TENSORS = frozenset({"mask", "bias", "cross_mask", "cross_bias"})
ROUNDING = 1e-5  # a row of weights that lacks less than this to 1 has no sink


@dataclass(frozen=True, slots=True)
class Edits(Mapping[Place, Edit]):
    """Edits by place. `first | then` holds both, and where they meet, `then` changes what `first`
    left."""

    at: Mapping[Place, Edit] = field(default_factory=dict[Place, Edit])

    def __getitem__(self, place: Place) -> Edit:
        return self.at[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self.at)

    def __len__(self) -> int:
        return len(self.at)

    def __or__(self, then: Mapping[Place, Edit]) -> Edits:
        both = dict(self.at)
        for place, edit in then.items():
            both[place] = in_order(both[place], edit) if place in both else edit
        return Edits(both)


def in_order(first: Edit, then: Edit) -> Edit:
    """then(first(x))"""
    return lambda value: then(first(value))


# --------------------------------------------------------------------------------------- one head


def ablate(
    layer: int,
    head: int,
    *,
    stack: str = "decoder",
    cross: bool = False,
    by: Literal["zero", "mean"] = "zero",
) -> Edits:
    """The head says nothing (`zero`), or at every position what it says on average over this text
    (`mean`): which hides where it looked but lets later tokens speak through the average."""
    if by not in ("zero", "mean"):
        raise InputError(
            f"by={short_repr(by)}", expected="zero or mean", fix='ablate(layer, head, by="zero")'
        )
    change = torch.zeros_like if by == "zero" else averaged
    return Edits({heads_at(stack, layer, cross=cross): on_head(head, change)})


def averaged(mixed: Tensor) -> Tensor:
    """The mean over the queries, at each of them; batch rows are texts of their own."""
    return mixed.mean(-2, keepdim=True).expand_as(mixed)


def scale(
    layer: int, head: int, factor: float, *, stack: str = "decoder", cross: bool = False
) -> Edits:
    """factor · what the head says."""
    return Edits({heads_at(stack, layer, cross=cross): on_head(head, lambda mixed: mixed * factor)})


def replace(
    layer: int, head: int, tensor: Tensor, *, stack: str = "decoder", cross: bool = False
) -> Edits:
    """What the head says, as given: `[query, value_dim]`, or one vector `[value_dim]` for all
    queries; before the output projection."""
    if tensor.dim() not in (1, 2):
        raise InputError(
            f"a tensor of shape {list(tensor.shape)}",
            expected="[query, value_dim] or [value_dim]",
            fix="tensor[0]",
        )

    def change(mixed: Tensor) -> Tensor:
        wanted = mixed.shape[-2:] if tensor.dim() == 2 else mixed.shape[-1:]
        refuse_unless(tensor.shape == wanted, tensor, wanted, "what the head says")
        return tensor.to(mixed).expand_as(mixed)

    return Edits({heads_at(stack, layer, cross=cross): on_head(head, change)})


def mask_cell(
    layer: int, head: int, query: int, key: int, *, stack: str = "decoder", cross: bool = False
) -> Edits:
    """The query may not look at that key: w_key ← 0 and the rest of its row divided by 1 − w_key,
    as if the score had been −∞.

    A row with nothing left is all zeros. This edits `weights`, so the layer leaves the fused kernel
    for the equation's (`Recorder.equation_layers` says so), and numbers may differ in their last
    bits even where the cell was invisible before.
    """

    def change(weights: Tensor) -> Tensor:
        row = checked("query", query, weights.shape[-2])
        column = checked("key", key, weights.shape[-1])
        weights = weights.clone()
        weights[..., row, :] = without(weights[..., row, :], column)
        return weights

    return Edits(
        {(stack, counted(layer), "cross_weights" if cross else "weights"): on_head(head, change)}
    )


def without(row: Tensor, column: int) -> Tensor:
    """A row of weights without one of them, renormalised; what a learned sink takes (1 − Σ w) stays
    the sink's."""
    if not bool(row[..., column].any()):
        return row
    sink = 1 - row.sum(-1, keepdim=True)
    left = row.clone()
    left[..., column] = 0
    total = left.sum(-1, keepdim=True) + sink.where(sink > ROUNDING, torch.zeros_like(sink))
    return torch.where(total > 0, left / total, left)


def on_head(head: int, change: Callable[[Tensor], Tensor]) -> Edit:
    """The change for one head of `[batch, heads, …]`."""

    def edit(value: Tensor) -> Tensor:
        number = checked("head", head, value.shape[1])
        value = value.clone()
        value[:, number] = change(value[:, number])
        return value

    return edit


def heads_at(stack: str, layer: int, *, cross: bool) -> Place:
    """Where a layer's heads speak, before the output projection."""
    return stack, counted(layer), "cross_heads" if cross else "heads"


# -------------------------------------------------------------------------------- the whole layer


def patch(
    place: Place, recorded_value: Tensor, *, positions: Positions = None, head: int | None = None
) -> Edits:
    """The value of another run, at all positions or at some (each counted in its own run), of all
    heads or of one.

    It may have its batch of one, as a `Recorder` keeps it, or not, as a `Trace` does. Without
    `positions` the lengths must be equal.
    """
    stack, layer, name = place
    axes = axes_of(name)
    given = recorded_value if recorded_value.dim() == len(axes) else recorded_value[None]
    if given.dim() != len(axes) or given.shape[0] != 1:
        raise InputError(
            f"a value of shape {list(recorded_value.shape)}",
            expected=f"[{', '.join(axes[1:])}]",
            fix="patch one text's value",
        )
    if head is not None and len(axes) != 4:
        raise InputError(
            f"head={head} of {name!r}, which has no heads",
            expected="head=None",
            fix=f"patch({place}, …) without head",
        )

    def edit(value: Tensor) -> Tensor:
        lengths = (
            slice(None) if positions is None else slice(-1, None)
        )  # elsewhere than at all positions, the lengths may differ
        fits = (*given.shape[1:-2], *given.shape[-2:][lengths]) == (
            *value.shape[1:-2],
            *value.shape[-2:][lengths],
        )
        refuse_unless(fits, given[0], value.shape[1:], name)
        ours = value.clone()
        theirs = given.to(value)
        heads = slice(None) if head is None else checked("head", head, value.shape[1])
        where = (slice(None), heads) if len(axes) == 4 else (slice(None),)
        ours[*where, rows_of(positions, ours)] = theirs[*where, rows_of(positions, theirs)]
        return ours

    return Edits({(stack, None if layer is None else counted(layer), name): edit})


def steer(
    layer: int,
    vector: Tensor,
    *,
    scale: float = 1.0,
    positions: Positions = None,
    stack: str = "decoder",
) -> Edits:
    """x ← x + scale · vector where the stream enters the layer: one vector `[width]` for all
    positions, or `[time, width]`."""
    if vector.dim() not in (1, 2):
        raise InputError(
            f"a vector of shape {list(vector.shape)}",
            expected="[width] or [time, width]",
            fix="steer(layer, vector.flatten())",
        )

    def edit(stream: Tensor) -> Tensor:
        wanted = stream.shape[-2:] if vector.dim() == 2 else stream.shape[-1:]
        refuse_unless(vector.shape == wanted, vector, wanted, "the residual stream")
        added = (scale * vector).to(stream).expand_as(stream)
        rows = rows_of(positions, stream)
        stream = stream.clone()
        stream[:, rows] += added[:, rows]
        return stream

    return Edits({(stack, counted(layer), "residual"): edit})


def axes_of(name: str) -> list[str]:
    """The axes of a quantity that is a tensor."""
    if name not in QUANTITIES:
        raise RecordError(f"nothing named {name!r} can be patched", fix=nearest(name, QUANTITIES))
    if name in NO_TENSORS:
        raise InputError(
            f"{name!r}, which is a function of positions and no tensor",
            expected="'weights'",
            fix="mask_cell(layer, head, …)",
        )
    return QUANTITIES[name].axes.split()


def rows_of(positions: Positions, value: Tensor) -> list[int]:
    """The positions that are meant; they stand on the last axis but one of every quantity."""
    count = value.shape[-2]
    if positions is None:
        return list(range(count))
    return [
        checked("position", position, count)
        for position in ([positions] if isinstance(positions, int) else positions)
    ]


def counted(layer: int) -> int:
    """A layer, from 0: an edit does not know how many the model has."""
    if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
        raise InputError(
            f"layer {short_repr(layer)} of an edit",
            expected="0 or more",
            fix="layer=config.decoder.layers - 1 for the last",
        )
    return layer


def refuse_unless(fits: bool, given: Tensor, wanted: Sequence[int], name: str) -> None:
    """Both shapes, if they are not one."""
    if not fits:
        fix = (
            "use the same number of tokens, or positions=…"
            if given.shape[-1] == wanted[-1]
            else "take it from the same model and place"
        )
        raise InputError(
            f"a tensor of shape {list(given.shape)} for {name}", expected=f"{list(wanted)}", fix=fix
        )


# ---------------------------------------------------------------------------------------- the run


def logits_with(
    subject: Subject,
    asked: Text | Trace,
    edits: Mapping[Place, Edit],
    *,
    source: Text | None = None,
) -> Tensor:
    """The logits of one text, `[time, vocab_size]`, with the edits in force; the model itself is
    not changed."""
    return run(subject, question_of(subject, asked, source), Recorder(edits=edits))[0]


@torch.no_grad()
def run(subject: Subject, question: Question, recorder: Recorder, *, rows: int = 1) -> Tensor:
    """The logits `[rows, time, vocab_size]` of one text in so many equal rows, which the recorder's
    edits may tell apart."""
    transformer = subject.running
    tokens = torch.tensor([question.ids] * rows, device=transformer.device)
    source = (
        None
        if question.source is None
        else torch.tensor([question.source] * rows, device=transformer.device)
    )
    logits = transformer(tokens, source=source, record=recorder)
    recorder.finish()
    return logits
