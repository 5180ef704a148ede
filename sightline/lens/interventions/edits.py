"""Interventions: edits of quantities during a forward pass, applied by the recorder.

    quiet = ablate(5, 1) | ablate(5, 2)                        two heads of layer 5 set to zero
    logits_with(model, "The cat sat", quiet)                   [time, vocab_size]
    trace_of(model, ids, edits=steer(8, vector, scale=4.0))    the same run, traced
    patch(("decoder", 3, "residual"), other["residual", 3])    another run's stream from layer 3 on

A layer counts from 0; heads and positions from 0, or from the end when negative. An edit of a place
that the model never computes raises at the end of the run, so no edit is silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import InputError, RecordError, nearest, short_repr
from sightline.lens.trace.layer import checked_index
from sightline.lens.trace.prompt import Prompt, Text, prompt_of
from sightline.lens.trace.subject import Subject, eval_transformer
from sightline.lens.trace.trace import Trace
from sightline.record import QUANTITIES, Edit, Place, Recorder

Positions = int | Sequence[int] | None
NOT_TENSORS = frozenset({"mask", "bias", "cross_mask", "cross_bias"})
ROUNDING = 1e-5  # rows of weights that sum to 1 within this have no learned sink


@dataclass(frozen=True, slots=True)
class Edits(Mapping[Place, Edit]):
    """Edits by place. `first | then` holds both; where both edit one place, `then` is applied after
    `first`."""

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
            both[place] = compose(both[place], edit) if place in both else edit
        return Edits(both)


def compose(first: Edit, then: Edit) -> Edit:
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
    """Set the head's output to zero (`zero`), or at every position to its mean over this text
    (`mean`). The mean removes the attention pattern but leaks information from later tokens."""
    if by not in ("zero", "mean"):
        raise InputError(
            f"by={short_repr(by)}", expected="zero or mean", fix='ablate(layer, head, by="zero")'
        )
    change = torch.zeros_like if by == "zero" else mean_over_queries
    return Edits({heads_place(stack, layer, cross=cross): edit_head(head, change)})


def mean_over_queries(mixed: Tensor) -> Tensor:
    """The mean over queries, broadcast to each of them; batch rows are separate texts."""
    return mixed.mean(-2, keepdim=True).expand_as(mixed)


def scale(
    layer: int, head: int, factor: float, *, stack: str = "decoder", cross: bool = False
) -> Edits:
    """factor · the head's output."""
    return Edits(
        {heads_place(stack, layer, cross=cross): edit_head(head, lambda mixed: mixed * factor)}
    )


def replace(
    layer: int, head: int, tensor: Tensor, *, stack: str = "decoder", cross: bool = False
) -> Edits:
    """Replace the head's output before the output projection: `[query, value_dim]`, or one vector
    `[value_dim]` for all queries."""
    if tensor.dim() not in (1, 2):
        raise InputError(
            f"a tensor of shape {list(tensor.shape)}",
            expected="[query, value_dim] or [value_dim]",
            fix="tensor[0]",
        )

    def change(mixed: Tensor) -> Tensor:
        expected = mixed.shape[-2:] if tensor.dim() == 2 else mixed.shape[-1:]
        check_shape(tensor.shape == expected, tensor, expected, "the head's output")
        return tensor.to(mixed).expand_as(mixed)

    return Edits({heads_place(stack, layer, cross=cross): edit_head(head, change)})


def mask_cell(
    layer: int, head: int, query: int, key: int, *, stack: str = "decoder", cross: bool = False
) -> Edits:
    """Mask one key for one query: w_key ← 0 and the rest of the row divided by 1 − w_key, as if the
    score had been −∞.

    A row with no key left is all zeros. This edits `weights`, so the layer runs the equation
    instead of the fused kernel (listed in `Recorder.equation_layers`), and results may differ in
    the last bits even if the cell was masked before.
    """

    def change(weights: Tensor) -> Tensor:
        row = checked_index("query", query, weights.shape[-2])
        column = checked_index("key", key, weights.shape[-1])
        weights = weights.clone()
        weights[..., row, :] = renormalized_without(weights[..., row, :], column)
        return weights

    return Edits(
        {
            (stack, checked_layer(layer), "cross_weights" if cross else "weights"): edit_head(
                head, change
            )
        }
    )


def renormalized_without(row: Tensor, column: int) -> Tensor:
    """A row of weights without one of them, renormalized; the share of a learned sink (1 − Σ w) is
    kept."""
    if not bool(row[..., column].any()):
        return row
    sink = 1 - row.sum(-1, keepdim=True)
    rest = row.clone()
    rest[..., column] = 0
    total = rest.sum(-1, keepdim=True) + sink.where(sink > ROUNDING, torch.zeros_like(sink))
    return torch.where(total > 0, rest / total, rest)


def edit_head(head: int, change: Callable[[Tensor], Tensor]) -> Edit:
    """An edit of one head of `[batch, heads, …]`."""

    def edit(value: Tensor) -> Tensor:
        number = checked_index("head", head, value.shape[1])
        value = value.clone()
        value[:, number] = change(value[:, number])
        return value

    return edit


def heads_place(stack: str, layer: int, *, cross: bool) -> Place:
    """The place of a layer's head outputs, before the output projection."""
    return stack, checked_layer(layer), "cross_heads" if cross else "heads"


# -------------------------------------------------------------------------------- the whole layer


def patch(
    place: Place, recorded_value: Tensor, *, positions: Positions = None, head: int | None = None
) -> Edits:
    """Patch in the value of another run, at all or some positions (counted in each run separately),
    for all heads or one.

    The value may have a batch axis of one, as in a `Recorder`, or none, as in a `Trace`. Without
    `positions` the lengths must be equal.
    """
    stack, layer, name = place
    axes = axes_of(name)
    patched = recorded_value if recorded_value.dim() == len(axes) else recorded_value[None]
    if patched.dim() != len(axes) or patched.shape[0] != 1:
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
        compared = (
            slice(None) if positions is None else slice(-1, None)
        )  # with `positions`, the lengths may differ
        fits = (*patched.shape[1:-2], *patched.shape[-2:][compared]) == (
            *value.shape[1:-2],
            *value.shape[-2:][compared],
        )
        check_shape(fits, patched[0], value.shape[1:], name)
        result = value.clone()
        donor = patched.to(value)
        heads = slice(None) if head is None else checked_index("head", head, value.shape[1])
        where = (slice(None), heads) if len(axes) == 4 else (slice(None),)
        result[*where, position_indices(positions, result)] = donor[
            *where, position_indices(positions, donor)
        ]
        return result

    return Edits({(stack, None if layer is None else checked_layer(layer), name): edit})


def steer(
    layer: int,
    vector: Tensor,
    *,
    scale: float = 1.0,
    positions: Positions = None,
    stack: str = "decoder",
) -> Edits:
    """x ← x + scale · vector on the stream that enters the layer: one vector `[width]` for all
    positions, or `[time, width]`."""
    if vector.dim() not in (1, 2):
        raise InputError(
            f"a vector of shape {list(vector.shape)}",
            expected="[width] or [time, width]",
            fix="steer(layer, vector.flatten())",
        )

    def edit(stream: Tensor) -> Tensor:
        expected = stream.shape[-2:] if vector.dim() == 2 else stream.shape[-1:]
        check_shape(vector.shape == expected, vector, expected, "the residual stream")
        added = (scale * vector).to(stream).expand_as(stream)
        rows = position_indices(positions, stream)
        stream = stream.clone()
        stream[:, rows] += added[:, rows]
        return stream

    return Edits({(stack, checked_layer(layer), "residual"): edit})


def axes_of(name: str) -> list[str]:
    """The axes of a quantity that is a tensor."""
    if name not in QUANTITIES:
        raise RecordError(f"nothing named {name!r} can be patched", fix=nearest(name, QUANTITIES))
    if name in NOT_TENSORS:
        raise InputError(
            f"{name!r}, which is a function of positions and no tensor",
            expected="'weights'",
            fix="mask_cell(layer, head, …)",
        )
    return QUANTITIES[name].axes.split()


def position_indices(positions: Positions, value: Tensor) -> list[int]:
    """The selected positions, on the second-to-last axis of the value."""
    count = value.shape[-2]
    if positions is None:
        return list(range(count))
    return [
        checked_index("position", position, count)
        for position in ([positions] if isinstance(positions, int) else positions)
    ]


def checked_layer(layer: int) -> int:
    """The layer, counted from 0: an edit does not know the model's depth."""
    if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
        raise InputError(
            f"layer {short_repr(layer)} of an edit",
            expected="0 or more",
            fix="layer=config.decoder.layers - 1 for the last",
        )
    return layer


def check_shape(fits: bool, tensor: Tensor, expected: Sequence[int], name: str) -> None:
    """Raise with both shapes if they do not match."""
    if not fits:
        fix = (
            "use the same number of tokens, or positions=…"
            if tensor.shape[-1] == expected[-1]
            else "take it from the same model and place"
        )
        raise InputError(
            f"a tensor of shape {list(tensor.shape)} for {name}",
            expected=f"{list(expected)}",
            fix=fix,
        )


# ---------------------------------------------------------------------------------------- the run


def logits_with(
    subject: Subject,
    text: Text | Trace,
    edits: Mapping[Place, Edit],
    *,
    source: Text | None = None,
) -> Tensor:
    """The logits of one text, `[time, vocab_size]`, with the edits applied; the model's weights do
    not change."""
    return run_with_edits(subject, prompt_of(subject, text, source), Recorder(edits=edits))[0]


@torch.no_grad()
def run_with_edits(
    subject: Subject, prompt: Prompt, recorder: Recorder, *, rows: int = 1
) -> Tensor:
    """The logits `[rows, time, vocab_size]` of a batch of equal rows, which the recorder's edits
    may change separately."""
    transformer = eval_transformer(subject)
    tokens = torch.tensor([prompt.ids] * rows, device=transformer.device)
    source = (
        None
        if prompt.source is None
        else torch.tensor([prompt.source] * rows, device=transformer.device)
    )
    logits = transformer(tokens, source=source, record=recorder)
    recorder.finish()
    return logits
