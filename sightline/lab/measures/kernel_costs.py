"""What attention over N tokens costs by each kernel: seconds, and the bytes by which a fresh
process grows.

python -m sightline.lab.measures.kernel_costs fused 512 1024 2048
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sightline.core.attention import Kernel

KERNELS: dict[Kernel, str] = {"equation": "the equation", "fused": "the fused kernel"}


def seconds_of(lengths: Sequence[int], seed: int) -> dict[str, dict[str, float]]:
    """The processor's seconds, whatever else it does meanwhile, for causal attention over N tokens,
    2 heads of 64; the least of 5."""
    import torch

    from sightline.core.multi_head import attention

    found: dict[str, dict[str, float]] = {kernel: {} for kernel in KERNELS}
    for length in lengths:
        query, key, value = torch.randn(
            3, 1, 2, length, 64, generator=torch.Generator().manual_seed(seed)
        )
        taken: dict[Kernel, list[float]] = {kernel: [] for kernel in KERNELS}
        for _ in range(5):
            for kernel in KERNELS:
                start = time.process_time()
                attention(query, key, value, causal=True, kernel=kernel)
                taken[kernel].append(time.process_time() - start)
        for kernel, seconds in taken.items():
            found[kernel][str(length)] = min(seconds)
    return found


def memory(kernel: Kernel, lengths: Sequence[int]) -> dict[str, int]:
    """Bytes by which a fresh process grows at its peak for causal attention over N tokens, 4 heads
    of 128; nothing on Windows.

    From short to long, each length needs more than the one before: the process's highest mark is
    that of the last."""
    if sys.platform == "win32":
        return {}
    command = [
        sys.executable,
        "-m",
        "sightline.lab.measures.kernel_costs",
        kernel,
        *map(str, lengths),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {length: int(grown) for length, grown in zip(said[::2], said[1::2], strict=True)}


def grow(kernel: Kernel, lengths: Sequence[int]) -> None:
    """What the fresh process does, after a short warm-up."""
    import torch

    from sightline.core.multi_head import attention

    torch.set_num_threads(1)
    before = 0
    for length in (128, *lengths):
        query, key, value = (torch.randn(1, 4, length, 128) for _ in range(3))
        attention(query, key, value, causal=True, kernel=kernel)
        before = before or highest_mark()
        if length != 128:
            sys.stdout.write(f"{length} {highest_mark() - before}\n")
        del query, key, value


def highest_mark() -> int:
    """Most bytes that this process has had in memory. Linux's getrusage would count the parent's
    before exec as well."""
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def exponent(row: Mapping[str, float]) -> float:
    """c of a · N^c, by least squares on logarithms."""
    import numpy as np

    return float(np.polyfit(np.log([float(n) for n in row]), np.log(list(row.values())), 1)[0])


if __name__ == "__main__":
    asked: dict[str, Kernel] = {"equation": "equation", "fused": "fused"}
    grow(asked[sys.argv[1]], [int(length) for length in sys.argv[2:]])
