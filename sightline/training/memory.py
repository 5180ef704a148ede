"""Memory that stays mapped between the steps of a run.

glibc returns arrays of more than 128 kB to the kernel as soon as they are freed, and maps them
again at the next step: every page of every activation is then zeroed and mapped once per step. A
training process allocates the same arrays at every step, so it keeps them: arrays of up to 32 MB
(glibc's maximum) come from the heap, and the heap is not trimmed.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD = -1  # M_… of <malloc.h>
TOP_PAD = -2
MMAP_THRESHOLD = -3
LARGEST_ON_HEAP = 32 << 20
KEPT = (1 << 31) - 1
GROWTH = 64 << 20


def keep_memory() -> bool:
    """Set the options of this process's allocator, if it is glibc's; whether that worked."""
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, another system
        return False
    tell.argtypes = [ctypes.c_int, ctypes.c_int]
    tell.restype = ctypes.c_int
    options = ((MMAP_THRESHOLD, LARGEST_ON_HEAP), (TRIM_THRESHOLD, KEPT), (TOP_PAD, GROWTH))
    accepted = [tell(name, value) == 1 for name, value in options]
    return all(accepted)
