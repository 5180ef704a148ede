"""CRC-32 of each mebibyte of a file's data: found when the data is written, compared while it is
read into memory.

CRC-32 finds every error that spans at most 32 bits, so every single flipped bit, and misses other
damage once in four billion. It is a guard against damage, not against an author: whoever can write
the data can write its sums.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

BLOCK = 1 << 20

Bytes = bytes | memoryview


def checksums(pieces: Iterable[Bytes]) -> list[int]:
    """Of each block of the pieces, joined; the last block may be shorter."""
    found = list[int]()
    current = filled = 0
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            part = rest[: BLOCK - filled]
            rest = rest[len(part) :]
            current = zlib.crc32(part, current)
            filled += len(part)
            if filled == BLOCK:
                found.append(current)
                current = filled = 0
    return [*found, current] if filled else found


def read_checked(descriptor: int, start: int, into: memoryview, sums: Sequence[int]) -> None:
    """Fill memory from a file's byte `start` on. ValueError if a block is not what its sum says, or
    the file ends too soon."""
    read = partial(_read_block, descriptor, start, into)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for number, found in enumerate(pool.map(read, range(len(sums)))):
            if found != sums[number]:
                raise ValueError(
                    f"bytes {start + number * BLOCK:,} to"
                    f" {start + min(len(into), (number + 1) * BLOCK):,} are damaged"
                )


def _read_block(descriptor: int, start: int, into: memoryview, number: int) -> int:
    """Read one block, and give its sum while it is still in the processor's cache."""
    block = into[number * BLOCK : (number + 1) * BLOCK]
    filled = 0
    while filled < len(block):
        count = os.preadv(descriptor, [block[filled:]], start + number * BLOCK + filled)
        if count == 0:
            raise ValueError("it became shorter while it was read")
        filled += count
    return zlib.crc32(block)
