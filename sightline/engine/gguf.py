"""Weights that are already quantized, as GGUF's Q8_0, Q5_0, Q4_0 and Q4_1 are, keep their integers:
they are repacked, not requantized.

A group of 32 inputs qualifies if W = scale · q (+ minimum) bit for bit, with float16 scales and
integers q in the range of the precision. Its largest number is then scale · m for a small m, or the
distance between its ends scale · n: every m or n is tried, and no other group passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.engine.matrices import GROUP, TILE, Packed, Precision

# Possible values of a group's largest integer, the common ones first: Q8_0's, Q5_0's, Q4_0's. With
# 8 bits its sign does not matter.
LARGEST: dict[str, tuple[tuple[int, ...], ...]] = {
    "int8_groups": ((127,), (16,), (8,), tuple(range(126, 0, -1))),
    "int4": ((-8,), (7, 6, 5, 4, 3, 2, 1)),
}
HELD: dict[str, tuple[str, ...]] = {
    "int8_groups": ("Q8_0", "Q5_0", "Q4_0"),
    "int4": ("Q4_0",),
    "int4_min": ("Q4_1",),
}
PLAIN = ("", "F32", "F16", "BF16")
SENSITIVE = (  # at 8 bits with int4, too
    "embed_tokens.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "wte.weight",
    "lm_head.weight",
    "embed_out.weight",
)
SAMPLE, SHARE = (
    64,
    1 / 16,
)  # rows that are tried first; with fewer groups of integers among them, those are chance
AT_ONCE = 1 << 18  # numbers


def pack(engine: Any, number: int, weight: Tensor, into: Packed) -> tuple[int, int]:
    """Pack a float32 matrix [rows, inputs]; groups that are already integers times a scale are kept
    exactly. Returns the rows that packing destroyed."""
    scales = scales_of(weight, into.precision)
    damage = (0, -1)
    if scales is None or bool(scales.isnan().any()):
        damage = engine.pack(number, weight)
    if scales is not None:
        write(weight, scales, into)
    return damage


def scales_of(weight: Tensor, precision: Precision) -> Tensor | None:
    """The scale of each group (int4_min: and its minimum), [rows, groups, 1 or 2] in float16, NaN
    for groups without integers; None if hardly any group has them."""
    if precision not in HELD:
        return None
    sample = scales_in(weight[:: max(1, len(weight) // SAMPLE)], precision)[..., 0]
    some = int((sample != 0).sum())
    if some - int(sample.isnan().sum()) <= SHARE * some:
        return None
    return torch.cat([scales_in(part, precision) for part in weight.split(rows_at_once(weight))])


def scales_in(weight: Tensor, precision: Precision) -> Tensor:
    """Scales of some rows."""
    groups = grouped(weight)
    return (
        group_lines(groups)
        if precision == "int4_min"
        else group_scales(groups, LARGEST[precision])[..., None]
    )


def rows_at_once(weight: Tensor) -> int:
    """The number of rows (in pairs of tiles) that fit into the processor's cache."""
    return max(1, AT_ONCE // weight.shape[1] // (2 * TILE)) * 2 * TILE


def grouped(weight: Tensor) -> Tensor:
    """[rows, groups, 32], filled with zeros."""
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % GROUP)).unflatten(-1, (-1, GROUP))


def group_scales(groups: Tensor, largest: Sequence[Sequence[int]]) -> Tensor:
    """For each group the first scale that gives integers; 0 for a group of zeros, NaN if there is
    none."""
    rows = groups.reshape(-1, GROUP)
    edge = rows.gather(1, rows.abs().argmax(1, keepdim=True))[:, 0]
    scales = torch.where(edge == 0, 0.0, torch.nan).half()
    for tried in largest:
        left = scales.isnan().nonzero()[:, 0]
        which, scale = scales_that_fit(rows[left], edge[left], torch.tensor(tried))
        scales[left[which]] = scale
    return scales.view(groups.shape[:2])


def scales_that_fit(rows: Tensor, edge: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are integers if their edge is one of `largest`, and the scale of each, in
    float16."""
    scales = torch.where(largest < 0, edge[:, None], edge[:, None].abs()) / largest
    which, tried = (scales.half() == scales).nonzero(as_tuple=True)
    scale = scales[which, tried]
    high = torch.maximum(largest, -largest - 1)[tried]
    numbers = (rows[which] / scale[:, None]).round()
    fits = ((numbers * scale[:, None] == rows[which]) & (numbers <= high[:, None])).all(1)
    which = which[fits]
    scale = scale[fits].half()
    first = which.diff(prepend=which.new_tensor([-1])) != 0
    return which[first], scale[first]


def group_lines(groups: Tensor) -> Tensor:
    """The scale and minimum of each group for which W = scale · q + minimum, q from 0 to 15; NaN
    where there are none."""
    rows = groups.reshape(-1, GROUP)
    low, high = rows.aminmax(dim=1)
    lines = torch.stack(
        (torch.where(low == high, 0.0, torch.nan), low), dim=1
    ).half()  # one number only: the minimum
    lines[(low == high) & (lines[:, 1].float() != low)] = torch.nan
    rounding = 2.0**-22 * torch.maximum(low.abs(), high.abs())  # by rounding the ends
    for span in range(15, 0, -1):
        left = lines[:, 0].isnan().nonzero()[:, 0]
        scale = ((high - low)[left] / span).half()
        near = ((scale.float() * span - (high - low)[left]).abs() <= rounding[left]) & (scale > 0)
        left = left[near]
        scale = scale[near]
        for first in range(16 - span):  # the q of the smallest number
            minimum = (low[left] - scale.float() * first).half()
            numbers = ((rows[left] - minimum.float()[:, None]) / scale.float()[:, None]).round()
            fits = (numbers * scale.float()[:, None] + minimum.float()[:, None] == rows[left]).all(
                1
            )
            lines[left[fits]] = torch.stack((scale, minimum), dim=1)[fits]
            left = left[~fits]
            scale = scale[~fits]
    return lines.view(*groups.shape[:2], 2)


def write(weight: Tensor, scales: Tensor, into: Packed) -> None:
    """Write the groups that have a scale to their positions."""
    step = rows_at_once(weight)
    end = into.tiles * TILE
    for first in range(0, end, step):
        part = grouped(weight[first : first + step])
        some = scales[first : first + step]
        rows = min(step, end - first)
        part = torch.nn.functional.pad(part, (0, 0, 0, 0, 0, rows - len(part)))
        some = torch.nn.functional.pad(some, (0, 0, 0, 0, 0, rows - len(some)))
        write_rows(part, some, into, first)


def write_rows(groups: Tensor, scales: Tensor, into: Packed, first: int) -> None:
    """Write rows from `first` on, in pairs of tiles."""
    has_scale, (data, places) = ~scales[..., 0].isnan(), places_of(into, first, len(groups))
    scale = scales[..., :1].float()
    minimum = scales[..., 1:].float().sum(-1, keepdim=True)
    numbers = (
        ((groups - minimum) / scale).nan_to_num(0.0, 0.0, 0.0).round().to(torch.int8)
    )  # 0 / 0 where all values are equal
    if into.precision in ("int4", "int4_min"):
        halves = (
            (numbers + (8 if into.precision == "int4" else 0))
            .view(torch.uint8)
            .unflatten(-1, (4, 2, 4))
        )
        numbers = halves[..., 0, :] | halves[..., 1, :] << 4
    in_tiles = numbers.view(torch.uint8).reshape(data.shape)
    mask = has_scale.view(places.shape[:-1])
    data.copy_(torch.where(mask[..., None, None], in_tiles, data))
    places.copy_(torch.where(mask[..., None], scales.view(places.shape), places))


def places_of(into: Packed, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Views of the rows: their bytes [pair, 2, 8, group, vectors, 4] and their scales [pair, 2, 8,
    group, 1 or 2]."""
    pairs = into.tiles // 2
    groups = into.depth // GROUP
    vectors = 8 if into.precision == "int8_groups" else 4
    parts = 2 if into.precision == "int4_min" else 1
    some = slice(first // (2 * TILE), (first + rows) // (2 * TILE))
    data = into.data[: pairs * groups * vectors * 2 * TILE * 4].view(
        pairs, groups, vectors, 2, TILE, 4
    )
    scales = (
        into.scales[: pairs * groups * parts * 2 * TILE * 2]
        .view(torch.float16)
        .view(pairs, groups, parts, 2, TILE)
    )
    return data.permute(0, 3, 4, 1, 2, 5)[some], scales.permute(0, 3, 4, 1, 2)[some]


def four_bits(kinds: Mapping[str, str]) -> Precision:
    """The variant of int4 that preserves more of a file's matrices exactly."""
    counts = Counter(kind for name, kind in kinds.items() if not name.endswith(SENSITIVE))
    return "int4_min" if counts["Q4_1"] > counts["Q4_0"] else "int4"


def notes(kinds: Mapping[str, str], precision: Precision) -> list[str]:
    """One line on how a file's quantized matrices (name → GGUF's type) are packed in a precision;
    empty if it has none."""
    whole = {name: kind for name, kind in kinds.items() if kind not in PLAIN}
    if not whole or precision.startswith("float"):
        return []
    preserved = Counter[str]()
    again = Counter[str]()
    for name, kind in whole.items():
        form = (
            "int8_groups"
            if precision in ("int4", "int4_min") and name.endswith(SENSITIVE)
            else precision
        )
        (preserved if kind in HELD.get(form, ()) else again)[kind] += 1
    parts = [
        f"{listed(preserved)} kept as the file has them" if preserved else "",
        f"{listed(again)} requantized" if again else "",
    ]
    return [f"{precision}: {'; '.join(part for part in parts if part)}"]


def listed(counts: Counter[str]) -> str:
    return ", ".join(
        f"{count} {kind} {'matrix' if count == 1 else 'matrices'}"
        for kind, count in sorted(counts.items())
    )
