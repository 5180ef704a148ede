"""The core against plain torch.nn: `python -m bench.core`. Two threads, float32.

block        forward + backward of one GPT block (width 384, 6 heads, batch 12 × 256) against the
             same block built from torch.nn and SDPA
multi-head   sl.MultiHeadAttention against torch.nn.MultiheadAttention(need_weights=False)
memory       peak memory of one attention call from 1k to 16k tokens: linear for the fused kernel,
             quadratic for the equation
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sightline as sl
from bench.measure import Ratio, peak_memory, race, save
from sightline.core.block import Block
from sightline.core.context import BlockContext, place_for

WIDTH = 384
HEADS = 6
BATCH = 12
TIME = 256


class PlainBlock(nn.Module):
    """A typical hand-written GPT-2 block: one projection for q, k and v, SDPA, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            y.view(batch, time, HEADS, -1).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def block_race() -> Ratio:
    config = sl.gpt(width=WIDTH, layers=1, heads=HEADS).decoder
    assert config is not None
    ours = Block(WIDTH, config.block(0))
    theirs = PlainBlock()
    x = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    place = place_for(
        config.block(0).attention.positions,
        WIDTH // HEADS,
        HEADS,
        torch.arange(TIME)[None],
        0,
        causal=True,
    )

    def run_ours() -> None:
        ours(x, BlockContext(place)).sum().backward()

    def run_theirs() -> None:
        theirs(x).sum().backward()

    return race("block, forward + backward", run_ours, run_theirs)


def multi_head_race(*, backward: bool, causal: bool) -> Ratio:
    ours = sl.MultiHeadAttention(WIDTH, heads=HEADS)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(BATCH, TIME, WIDTH, requires_grad=backward)
    mask = nn.Transformer.generate_square_subsequent_mask(TIME) if causal else None

    def run_ours() -> None:
        y = ours(x, causal=causal)
        if backward:
            y.sum().backward()

    def run_theirs() -> None:
        y, _ = theirs(x, x, x, need_weights=False, attn_mask=mask, is_causal=causal)
        if backward:
            y.sum().backward()

    name = (
        f"multi-head, {'causal' if causal else 'full'},"
        f" {'forward + backward' if backward else 'forward'}"
    )
    if backward:
        return race(name, run_ours, run_theirs)
    with torch.inference_mode():
        return race(name, run_ours, run_theirs)


def memory_curve() -> dict[str, dict[int, float]]:
    """Peak MiB of causal attention, one head of 64, by kernel and length; also with a window (its
    mask is built in tiles)."""
    peaks: dict[str, dict[int, float]] = {}
    for name, options in (
        ("fused", ""),
        ("fused, window 512", ", window=512"),
        ("equation", ", kernel='equation'"),
    ):
        peaks[name] = {}
        for time in (1024, 2048, 4096, 8192, 16384):
            code = f"""
import sightline as sl
small = torch.randn(3, 1, 1, 64, 64); sl.attention(*small, causal=True{options})
q, k, v = torch.randn(3, 1, 1, {time}, 64)
def run(): sl.attention(q, k, v, causal=True{options})
"""
            peaks[name][time] = round(peak_memory(code), 1)
    return peaks


def draw(curve: dict[str, dict[int, float]]) -> str:
    """Memory against length, both axes logarithmic, with the slopes of O(N) and O(N²)."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    from bench.measure import RESULTS

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (name, points), marker, colour in zip(
        curve.items(), "os^", ("#0072B2", "#009E73", "#D55E00"), strict=True
    ):
        axes.plot(
            list(points),
            [max(y, 0.1) for y in points.values()],
            marker=marker,
            color=colour,
            label=name,
        )
    lengths = list(curve["fused"])
    top = curve["equation"][lengths[-1]]
    axes.plot(
        lengths,
        [top * (n / lengths[-1]) ** 2 for n in lengths],
        color="0.7",
        linestyle=":",
        label="O(N²)",
    )
    fused_top = max(curve["fused"][lengths[-1]], 0.1)
    axes.plot(
        lengths,
        [fused_top * n / lengths[-1] for n in lengths],
        color="0.7",
        linestyle="--",
        label="O(N)",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tokens N",
        ylabel="peak memory above the inputs, MiB",
        title="Causal attention, one head of 64, float32",
    )
    axes.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
    axes.minorticks_off()
    axes.legend(frameon=False)
    path = RESULTS / "core-memory.svg"
    figure.savefig(path)
    return str(path)


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    ratios = [
        block_race(),
        multi_head_race(backward=False, causal=False),
        multi_head_race(backward=False, causal=True),
        multi_head_race(backward=True, causal=False),
        multi_head_race(backward=True, causal=True),
    ]
    print(f"{'':44}{'ours':>9}{'torch.nn':>10}{'ratio':>8}   interquartile range")
    for r in ratios:
        print(
            f"{r.name:44}{r.ours_ms:7.1f}ms{r.theirs_ms:8.1f}ms{r.ratio:7.2f}×  "
            f" {r.low:.2f}–{r.high:.2f}  {r.verdict}"
        )
    curve = memory_curve()
    print("\npeak MiB above the inputs, by tokens")
    for name, points in curve.items():
        print(f"  {name:20}" + "".join(f"{time:>7}: {mib:<9.1f}" for time, mib in points.items()))
    print("\nwritten:", save("core", ratios, {"memory_mib": curve}), draw(curve))


if __name__ == "__main__":
    main()
