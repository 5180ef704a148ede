"""Weights that are whole numbers already, as GGUF's Q8_0, Q5_0 and Q4_0 are, keep them: they are packed again, not quantised again.

A group of 32 inputs is such when W = scale · q, to the bit, with one float16 scale and whole numbers q that the precision has room for.
Its largest number is then scale · m for a small m, so the scale is found by trying every m; no other group passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.native.matrices import GROUP, TILE, Packed, Precision

# What the largest number of a group may be, the usual first: Q8_0's, Q5_0's, Q4_0's. With 8 bits its sign does not matter.
LARGEST: dict[str, tuple[tuple[int, ...], ...]] = {
    "int8_groups": ((127,), (16,), (8,), tuple(range(126, 0, -1))),
    "int4": ((-8,), (7, 6, 5, 4, 3, 2, 1)),
}
HELD: dict[str, tuple[str, ...]] = {"int8_groups": ("Q8_0", "Q5_0", "Q4_0"), "int4": ("Q4_0",)}
PLAIN = ("", "F32", "F16", "BF16")
SENSITIVE = ("embed_tokens.weight", "wte.weight", "lm_head.weight")  # at 8 bits with int4, too
SAMPLE, SHARE = 64, 1 / 64  # rows that are looked at first; whole numbers in fewer groups of them are chance
AT_ONCE = 1 << 18  # numbers


def pack(engine: Any, number: int, weight: Tensor, into: Packed) -> None:
    """Pack a matrix [rows, inputs] in float32, and keep what is whole numbers already."""
    scales = scales_of(weight, into.precision)
    if scales is None or bool(scales.isnan().any()):
        engine.pack(number, weight.data_ptr(), weight.shape[1])
    if scales is not None:
        write(weight, scales, into)


def scales_of(weight: Tensor, precision: Precision) -> Tensor | None:
    """The scale of each group, [rows, groups] in float16, NaN where it is no whole numbers; None if hardly any is."""
    if precision not in LARGEST:
        return None
    sample = group_scales(grouped(weight[:: max(1, len(weight) // SAMPLE)]), LARGEST[precision])
    some = int((sample != 0).sum())
    if some - int(sample.isnan().sum()) <= SHARE * some:
        return None
    return torch.cat([group_scales(grouped(part), LARGEST[precision]) for part in weight.split(rows_at_once(weight))])


def rows_at_once(weight: Tensor) -> int:
    """Whole pairs of tiles that the processor's cache has room for."""
    return max(1, AT_ONCE // weight.shape[1] // (2 * TILE)) * 2 * TILE


def grouped(weight: Tensor) -> Tensor:
    """[rows, groups, 32], filled with zeros."""
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % GROUP)).unflatten(-1, (-1, GROUP))


def group_scales(groups: Tensor, largest: Sequence[Sequence[int]]) -> Tensor:
    """The first scale that makes whole numbers of a group, for each; 0 for zeros, NaN where there is none."""
    rows = groups.reshape(-1, GROUP)
    edge = rows.gather(1, rows.abs().argmax(1, keepdim=True))[:, 0]
    found = torch.where(edge == 0, 0.0, torch.nan).half()
    for tried in largest:
        left = found.isnan().nonzero()[:, 0]
        which, scale = scales_that_fit(rows[left], edge[left], torch.tensor(tried))
        found[left[which]] = scale
    return found.view(groups.shape[:2])


def scales_that_fit(rows: Tensor, edge: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are whole numbers if their edge is one of `largest`, and the scale of each, in float16."""
    scales = torch.where(largest < 0, edge[:, None], edge[:, None].abs()) / largest
    which, tried = (scales.half() == scales).nonzero(as_tuple=True)
    scale, high = scales[which, tried], torch.maximum(largest, -largest - 1)[tried]
    numbers = (rows[which] / scale[:, None]).round()
    fits = ((numbers * scale[:, None] == rows[which]) & (numbers <= high[:, None])).all(1)
    which, scale = which[fits], scale[fits].half()
    first = which.diff(prepend=which.new_tensor([-1])) != 0
    return which[first], scale[first]


def write(weight: Tensor, scales: Tensor, into: Packed) -> None:
    """Put the groups that have a scale in their places."""
    step, end = rows_at_once(weight), into.tiles * TILE
    for first in range(0, end, step):
        part, some, rows = grouped(weight[first : first + step]), scales[first : first + step], min(step, end - first)
        part = torch.nn.functional.pad(part, (0, 0, 0, 0, 0, rows - len(part)))
        some = torch.nn.functional.pad(some, (0, 0, 0, rows - len(some)))
        write_rows(part, some, into, first)


def write_rows(groups: Tensor, scales: Tensor, into: Packed, first: int) -> None:
    """Rows from `first` on, whole pairs of tiles of them."""
    kept, (data, places) = ~scales.isnan(), places_of(into, first, len(groups))
    numbers = (groups / scales.float()[..., None]).nan_to_num(0.0, 0.0, 0.0).round().to(torch.int8)  # 0 / 0 where all is 0
    if into.precision == "int4":
        halves = (numbers + 8).view(torch.uint8).unflatten(-1, (4, 2, 4))
        numbers = halves[..., 0, :] | halves[..., 1, :] << 4
    in_tiles = numbers.view(torch.uint8).reshape(data.shape)
    mask = kept.view(places.shape)
    data.copy_(torch.where(mask[..., None, None], in_tiles, data))
    places.copy_(torch.where(mask, scales.view(places.shape), places))


def places_of(into: Packed, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Where rows stand: their bytes [pair, 2, 8, group, vectors, 4] and their scales [pair, 2, 8, group]."""
    pairs, groups, vectors = into.tiles // 2, into.depth // GROUP, 4 if into.precision == "int4" else 8
    some = slice(first // (2 * TILE), (first + rows) // (2 * TILE))
    data = into.data[: pairs * groups * vectors * 2 * TILE * 4].view(pairs, groups, vectors, 2, TILE, 4)
    scales = into.scales[: pairs * groups * 2 * TILE * 2].view(torch.float16).view(pairs, groups, 2, TILE)
    return data.permute(0, 3, 4, 1, 2, 5)[some], scales.permute(0, 2, 3, 1)[some]


def notes(kinds: Mapping[str, str], precision: Precision) -> list[str]:
    """What becomes of a file's quantised matrices (name → GGUF's type) in a precision, in a line; nothing if it has none."""
    whole = {name: kind for name, kind in kinds.items() if kind not in PLAIN}
    if not whole or precision.startswith("float"):
        return []
    kept, again = Counter[str](), Counter[str]()
    for name, kind in whole.items():
        form = "int8_groups" if precision == "int4" and name.endswith(SENSITIVE) else precision
        (kept if kind in HELD.get(form, ()) else again)[kind] += 1
    said = [f"{listed(kept)} kept as the file has them" if kept else "", f"{listed(again)} quantised again" if again else ""]
    return [f"{precision}: {'; '.join(part for part in said if part)}"]


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind} {'matrix' if count == 1 else 'matrices'}" for kind, count in sorted(counts.items()))
