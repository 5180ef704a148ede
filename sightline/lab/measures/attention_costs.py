"""What N² costs in a block as large as GPT-2's: attention over N tokens against the block's linear
layers, in operations and in CPU seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sightline.lab.measures.cpu_times import least_seconds

if TYPE_CHECKING:
    from sightline.core.attention import Kernel

WIDTH = 768
HEADS = 12
REPEATS = 3


def block_work(
    length: int, seed: int, *, width: int = WIDTH, hidden: int = 4 * WIDTH
) -> dict[str, Callable[[], object]]:
    """Causal attention with each kernel, and the linear layers: q, k and v, the output, and the two
    of the feed-forward layer."""
    import torch
    import torch.nn.functional as F

    from sightline.core.multi_head import attention

    random = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, HEADS, length, width // HEADS, generator=random)
    x = torch.randn(length, width, generator=random)
    inner = torch.randn(length, hidden, generator=random)
    weights = [
        (x, torch.randn(3 * width, width, generator=random)),
        (x, torch.randn(width, width, generator=random)),
        (x, torch.randn(hidden, width, generator=random)),
        (inner, torch.randn(width, hidden, generator=random)),
    ]

    def attend(kernel: Kernel) -> Callable[[], object]:
        return lambda: attention(query, key, value, causal=True, kernel=kernel)

    return {
        "equation": attend("equation"),
        "fused": attend("fused"),
        "linear": lambda: [F.linear(*pair) for pair in weights],
    }


def block_flops(length: int, *, width: int = WIDTH, hidden: int = 4 * WIDTH) -> dict[str, int]:
    """Operations of the products, as PyTorch counts them while they run."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    work = block_work(length, 0, width=width, hidden=hidden)
    counts: dict[str, int] = {}
    for name in ("equation", "linear"):
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            work[name]()
        counts[name] = int(counter.get_total_flops())
    return counts


def block_seconds(length: int, seed: int) -> dict[str, float]:
    import torch

    with torch.no_grad():
        return least_seconds(block_work(length, seed), repeats=REPEATS)
