"""Weights packed for the engine: tiles of 8 rows in reading order, in one of six precisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from sightline.errors import InputError, nearest
from sightline.kernels import library as kernels

Precision = Literal["float32", "float16", "int8", "int8_groups", "int4", "int4_min"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
GROUP = 32
TILE = 8
LINE = 64
PAGE = 1 << 21
BEYOND = 4096  # bytes after the last matrix, for prefetches beyond its end
HALF = 65504.0  # the largest float16
LARGEST = {
    "float16": HALF,
    "int8_groups": 127 * HALF,
    "int4": 7 * HALF,
    "int4_min": HALF,
}  # weights, so that scales are float16


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix as the engine reads it. `data` and `scales` are bytes."""

    precision: Precision
    rows: int
    inputs: int
    data: Tensor
    scales: Tensor

    @property
    def depth(self) -> int:
        return rounded(self.inputs, GROUP)

    @property
    def tiles(self) -> int:
        return rounded(-(-self.rows // TILE), 2)

    @property
    def bytes(self) -> int:
        return self.data.numel() + self.scales.numel()

    @property
    def read_bytes(self) -> int:
        """Bytes read for a single token; int8's group sums are read for many tokens only."""
        return self.data.numel() + (
            4 * TILE * self.tiles if self.precision == "int8" else self.scales.numel()
        )


def rounded(count: int, to: int) -> int:
    return -(-count // to) * to


def check_precision(name: str) -> Precision:
    if name not in PRECISIONS:
        raise InputError(
            f"precision {name!r}", expected=", ".join(PRECISIONS), fix=nearest(name, PRECISIONS)
        )
    return name


def check_fits(name: str, weight: Tensor, precision: Precision) -> None:
    """Integers have no NaN and no infinity; float16 values and float16 scales must be in range."""
    if precision == "float32":
        return
    low, high = (float(x) for x in weight.aminmax())
    finite = math.isfinite(low) and math.isfinite(high)
    if not finite and precision != "float16":
        raise InputError(
            f"{name} holds NaN or infinity, packed as {precision}",
            expected="finite weights",
            fix="dtype='float32' to look at it",
        )
    largest = max(abs(low), abs(high))
    if finite and largest > LARGEST.get(precision, math.inf):
        raise InputError(
            f"{name} holds {largest:.3g}, packed as {precision}",
            expected=f"at most {LARGEST[precision]:,.0f}",
            fix="dtype='float32'",
        )


def damage_notes(name: str, matrix: Packed, rows: int, first: int) -> list[str]:
    """A warning about rows that packing destroyed: more than nine in ten of their weights have a
    relative error above one half."""
    if not rows:
        return []
    which = (
        f"row {first}" if rows == 1 else f"{rows:,} of {matrix.rows:,} rows (the first is {first})"
    )
    return [
        f"warning: {name}, {which}: outliers leave no resolution for the other weights in"
        f" {matrix.precision}; use dtype='float32'"
    ]


def sizes(precision: Precision, rows: int, inputs: int) -> tuple[int, int]:
    """Bytes of the weights and of the scales."""
    native = kernels.ready()
    kind = native.Precision[precision]
    depth = rounded(inputs, GROUP)
    tiles = rounded(-(-rows // TILE), 2)
    return tiles * native.tile_bytes(kind, depth), tiles * native.scale_bytes(kind, depth)


def room(specifications: Sequence[tuple[Precision, int, int]]) -> list[Packed]:
    """Memory for matrices (precision, rows, inputs): contiguous in huge pages, in the order in
    which they are read."""
    memory = torch.empty(total(specifications) + PAGE + BEYOND, dtype=torch.uint8)
    start = -memory.data_ptr() % PAGE
    kernels.ready().use_huge_pages(memory[start:])
    return lay_out(specifications, memory[start:])


def total(specifications: Sequence[tuple[Precision, int, int]]) -> int:
    """Bytes of contiguous matrices."""
    return sum(
        rounded(size, LINE) for specification in specifications for size in sizes(*specification)
    )


def lay_out(specifications: Sequence[tuple[Precision, int, int]], memory: Tensor) -> list[Packed]:
    """Matrices in this memory, from its start."""
    packed = list[Packed]()
    start = 0
    for precision, rows, inputs in specifications:
        data, scales = (rounded(size, LINE) for size in sizes(precision, rows, inputs))
        middle = start + data
        end = start + data + scales
        packed.append(Packed(precision, rows, inputs, memory[start:middle], memory[middle:end]))
        start = end
    return packed


def span(packed: Sequence[Packed]) -> Tensor:
    """The memory of matrices that were allocated together."""
    first = packed[0].data
    last = packed[-1].scales
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    end = last.storage_offset() + last.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))


def empty(precision: Precision, rows: int, inputs: int) -> Packed:
    """Memory for one matrix."""
    return room([(precision, rows, inputs)])[0]


def add(engine: Any, matrix: Packed) -> int:
    """Give a matrix to the engine; returns its number there."""
    precision = kernels.ready().Precision[matrix.precision]
    return int(
        engine.add_matrix(
            precision=precision,
            rows=matrix.rows,
            inputs=matrix.inputs,
            data=matrix.data,
            scales=matrix.scales,
        )
    )


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """Rows of gate and up in alternating tiles of eight, so that a pair of tiles has both."""
    assert up.shape == gate.shape
    parts = gate, up
    fill = -gate.shape[0] % TILE
    if fill:  # padding by nothing would copy both
        parts = tuple(torch.nn.functional.pad(part, (0, 0, 0, fill)) for part in parts)
    tiles = [part.view(-1, TILE, part.shape[1]) for part in parts]
    return torch.stack(tiles, dim=1).flatten(0, 2)
