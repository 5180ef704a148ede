"""The cost of an attention layer by its number of heads, at equal width: floating-point operations
of its matrix products as PyTorch counts them, and CPU seconds."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.lab.measures.cpu_times import least_seconds

WIDTH = 256
TOKENS = 512
FEW_TOKENS = 32


def product_flops(heads: int, *, width: int = WIDTH, head_dim: int | None = None) -> int:
    """Counted while the layer runs over 512 tokens by the equation."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from sightline.core.multi_head import MultiHeadAttention

    layer = MultiHeadAttention(width, heads, head_dim=head_dim)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        layer(torch.zeros(1, TOKENS, width), kernel="equation")
    return int(counter.get_total_flops())


def layer_seconds(heads: Sequence[int], seed: int) -> dict[str, dict[str, float]]:
    """CPU seconds of the layer over 512 tokens for each number of heads, with each kernel."""
    import torch

    from sightline.core.attention import Kernel
    from sightline.core.multi_head import MultiHeadAttention

    torch.manual_seed(seed)
    x = torch.randn(1, TOKENS, WIDTH)
    layers = {count: MultiHeadAttention(WIDTH, count).eval() for count in heads}
    kernels: tuple[Kernel, ...] = ("equation", "fused")
    with torch.no_grad():
        return {
            kernel: least_seconds(
                {
                    str(count): lambda layer=layer, kernel=kernel: layer(x, kernel=kernel)
                    for count, layer in layers.items()
                }
            )
            for kernel in kernels
        }


def one_call_or_many(heads: int, tokens: int, seed: int) -> dict[str, float]:
    """CPU seconds of attention with all heads in one batched product, and with one call per
    head."""
    import torch

    from sightline.core.multi_head import attention

    random = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, heads, tokens, WIDTH // heads, generator=random)
    single = [[x[:, n : n + 1] for x in (query, key, value)] for n in range(heads)]
    with torch.no_grad():
        return least_seconds(
            {
                "one call": lambda: attention(query, key, value, kernel="equation"),
                "many calls": lambda: [attention(*one, kernel="equation") for one in single],
            }
        )
