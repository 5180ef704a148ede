"""CRC-32 of each mebibyte of a file's data: computed when the data is written, verified while it is
read into memory.

CRC-32 detects every error that spans at most 32 bits, so every single flipped bit, and misses other
damage once in four billion. It guards against damage, not against an attacker, who could also
write the checksums.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from torch import Tensor

from sightline.kernels import library as kernels

BLOCK = 1 << 20

Bytes = bytes | memoryview


def checksums(pieces: Iterable[Bytes]) -> list[int]:
    """The checksum of each block of the joined pieces; the last block may be shorter."""
    sums = list[int]()
    current = filled = 0
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            part = rest[: BLOCK - filled]
            rest = rest[len(part) :]
            current = zlib.crc32(part, current)
            filled += len(part)
            if filled == BLOCK:
                sums.append(current)
                current = filled = 0
    return [*sums, current] if filled else sums


def read_verified(descriptor: int, start: int, memory: Tensor, sums: Sequence[int]) -> None:
    """Fill memory (bytes) from a file's byte `start` on, on all threads. ValueError if a block does
    not have its checksum, or the file is too short."""
    damaged = kernels.ready().read_verified(descriptor, start, memory, sums, BLOCK)
    if damaged >= 0:
        first = start + damaged * BLOCK
        end = start + min(len(memory), (damaged + 1) * BLOCK)
        raise ValueError(f"bytes {first:,} to {end:,} are damaged")
