"""The cost of attention over N tokens with each kernel: CPU seconds, and peak memory of a fresh
process.

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


def kernel_seconds(lengths: Sequence[int], seed: int) -> dict[str, dict[str, float]]:
    """CPU seconds of causal attention over N tokens, 2 heads of 64; the minimum of 5."""
    import torch

    from sightline.core.multi_head import attention

    least: dict[str, dict[str, float]] = {kernel: {} for kernel in KERNELS}
    for length in lengths:
        query, key, value = torch.randn(
            3, 1, 2, length, 64, generator=torch.Generator().manual_seed(seed)
        )
        samples: dict[Kernel, list[float]] = {kernel: [] for kernel in KERNELS}
        for _ in range(5):
            for kernel in KERNELS:
                start = time.process_time()
                attention(query, key, value, causal=True, kernel=kernel)
                samples[kernel].append(time.process_time() - start)
        for kernel, seconds in samples.items():
            least[kernel][str(length)] = min(seconds)
    return least


def kernel_work(lengths: Sequence[int]) -> dict[str, dict[str, int]]:
    """Floating-point operations of attention by its equation over N tokens, 2 heads of 64: those of
    its matrix products, counted, and 4 N² d."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from sightline.core.multi_head import attention

    work: dict[str, dict[str, int]] = {}
    for length in lengths:
        query, key, value = torch.zeros(3, 1, 2, length, 64)
        with FlopCounterMode(display=False) as counter:
            attention(query, key, value, kernel="equation")
        formula = 4 * length**2 * 2 * 64
        work[str(length)] = {"counted": counter.get_total_flops(), "formula": formula}
    return work


def kernel_memory(kernel: Kernel, lengths: Sequence[int]) -> dict[str, int]:
    """Peak memory growth of a fresh process for causal attention over N tokens, 4 heads of 128;
    empty on Windows.

    Lengths are increasing, so the peak after each is that of the last."""
    if sys.platform == "win32":
        return {}
    command = [
        sys.executable,
        "-m",
        "sightline.lab.measures.kernel_costs",
        kernel,
        *map(str, lengths),
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {length: int(growth) for length, growth in zip(output[::2], output[1::2], strict=True)}


def print_growth(kernel: Kernel, lengths: Sequence[int]) -> None:
    """Run in the fresh process: print the growth for each length, after a short warm-up."""
    import torch

    from sightline.core.multi_head import attention

    torch.set_num_threads(1)
    before = 0
    for length in (128, *lengths):
        query, key, value = (torch.randn(1, 4, length, 128) for _ in range(3))
        attention(query, key, value, causal=True, kernel=kernel)
        before = before or peak_bytes()
        if length != 128:
            sys.stdout.write(f"{length} {peak_bytes() - before}\n")
        del query, key, value


def peak_bytes() -> int:
    """Peak resident bytes of this process. On Linux getrusage would include the parent's before
    exec."""
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def growth_exponent(row: Mapping[str, float]) -> float:
    """c of a · N^c, by least squares on logarithms."""
    import numpy as np

    return float(np.polyfit(np.log([float(n) for n in row]), np.log(list(row.values())), 1)[0])


if __name__ == "__main__":
    kernels: dict[str, Kernel] = {"equation": "equation", "fused": "fused"}
    print_growth(kernels[sys.argv[1]], [int(length) for length in sys.argv[2:]])
