"""Why scores are divided by √d_k: without it, softmax saturates as heads grow wide, and its gradient dies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.numbers import Interval, above, below, within
from sightline.lab.pictures import figure, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS = 64
PAIRS = {"quick": 100_000, "default": 100_000, "full": 400_000}  # independent ones, for the variance
SAMPLES = {"quick": 400, "default": 2000, "full": 20_000}
TITLES = {"variance": "variance of the scores", "largest": "largest of 64 weights", "entropy": "entropy, nats", "gradient": "|∂a/∂s|"}
SEEDS = {"quick": 3, "default": 10, "full": 30}


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    return [
        Part(f"width-{width}.seed-{n}", lambda width=width, n=n: measured(width, n, tier))
        for width in WIDTHS
        for n in range(seed, seed + SEEDS[tier])
    ]


def measured(width: int, seed: int, tier: Tier) -> dict[str, Any]:
    """Queries and keys with independent N(0, 1) entries: the variance of their scores, and what softmax makes of 64 of them."""
    import torch

    random, samples = torch.Generator().manual_seed(10_000 * seed + width), SAMPLES[tier]
    query = torch.randn(samples, 1, width, generator=random, dtype=torch.float64)
    key = torch.randn(samples, KEYS, width, generator=random, dtype=torch.float64)
    scores = (query @ key.transpose(1, 2))[:, 0]
    found: dict[str, Any] = {"variance": variance(width, PAIRS[tier], random)}
    for name, scale in (("raw", 1.0), ("scaled", 1 / math.sqrt(width))):
        weights = (scores * scale).softmax(-1)
        largest = weights.max(-1).values
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        gradient = (torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]).flatten(1).norm(dim=1)
        found[name] = {"largest": float(largest.mean()), "entropy": float(entropy.mean()), "gradient": float(gradient.mean())}
    return found


def variance(width: int, pairs: int, random: Generator) -> float:
    """Of q·k, over pairs of which none shares its q or k with another; a piece at a time."""
    import torch

    pieces = [min(2000, pairs - start) for start in range(0, pairs, 2000)]
    products = [(torch.randn(2, piece, width, generator=random).prod(0)).sum(-1, dtype=torch.float64) for piece in pieces]
    return float(torch.cat(products).var())


def gathered(numbers: Numbers, width: int, pick: str, how: str | None = None) -> list[float]:
    """One number of all seeds."""
    rows = [row for name, row in numbers.items() if name.startswith(f"width-{width}.")]
    return [row[pick] if how is None else row[how][pick] for row in rows]


def judge(numbers: Numbers) -> Sequence[Check]:
    ratios = {width: Interval.of([value / width for value in gathered(numbers, width, "variance")]) for width in WIDTHS}
    worst = max(ratios.values(), key=lambda ratio: abs(ratio.mean - 1))
    raw, scaled = (Interval.of(gathered(numbers, WIDTHS[-1], "largest", how)) for how in ("raw", "scaled"))
    lost = Interval.of(
        [a / b for a, b in zip(gathered(numbers, 1024, "gradient", "raw"), gathered(numbers, 1024, "gradient", "scaled"), strict=True)]
    )
    spread = [Interval.of(gathered(numbers, width, "largest", "scaled")).mean for width in WIDTHS]
    return [
        Check(
            Words("the variance of q·k is d_k, within 2% at every width", "q·k の分散は d_k（どの幅でも2%以内）"),
            within(worst, 0.98, 1.02),
            f"variance / d_k, the farthest from 1: {worst}",
        ),
        Check(
            Words(
                "unscaled and 1,024 wide, one key of 64 takes nearly everything (> 0.9)",
                "スケールなし・幅1024では64個中1個の鍵がほぼ全てを取る（> 0.9）",
            ),
            above(raw, 0.9),
            f"largest weight {raw}",
        ),
        Check(Words("scaled, it does not (< 0.2)", "スケールすればそうならない（< 0.2）"), below(scaled, 0.2), f"largest weight {scaled}"),
        Check(
            Words("scaled, the largest weight does not depend on the width", "スケールすれば最大の重みは幅に依らない"),
            max(spread) - min(spread) < 0.03,
            f"from {min(spread):.3f} to {max(spread):.3f}",
        ),
        Check(
            Words("unscaled, softmax's gradient is less than half of the scaled one", "スケールなしでは softmax の勾配は半分未満になる"),
            below(lost, 0.5),
            f"raw / scaled {lost}",
        ),
    ]


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, panels = figure(4, width=3.3)
    names = (
        ("variance", "variance of the scores"),
        ("largest", "largest of 64 weights"),
        ("entropy", "entropy, nats"),
        ("gradient", "|∂a/∂s|"),
    )
    for axes, (pick, title) in zip(panels, names, strict=True):
        for number, how in enumerate(("raw", "scaled")):
            rows = [gathered(numbers, width, pick, None if pick == "variance" else how) for width in WIDTHS]
            if pick == "variance" and how == "scaled":
                rows = [[value / width for value in row] for width, row in zip(WIDTHS, rows, strict=True)]
            line(axes, list(WIDTHS), [Interval.of(row) for row in rows], label="q·k" if how == "raw" else "q·k / √d_k", number=number)
        axes.set(xscale="log", xlabel="d_k", title=title)
        axes.set_xscale("log", base=2)
        if pick == "variance":
            axes.set_yscale("log")
    panels[0].legend(frameon=False)
    return {"softmax-saturation": made}


EXPERIMENT = Experiment(
    name="softmax-saturation",
    title=Words("Why divide by √d_k", "なぜ √d_k で割るのか"),
    claim=Words(
        "Scores of independent q and k of unit variance have variance d_k; undivided by √d_k they saturate softmax, and its gradient dies.",
        "独立で分散1の q と k の内積の分散は d_k になる。√d_k で割らないと softmax は飽和し、勾配が消える。",
    ),
    source="Vaswani et al. 2017, section 3.2.1 and footnote 4",
    equation="Var(q·k) = Σ_i Var(q_i k_i) = d_k,   Var(q·k / √d_k) = 1",
    look_for=Words(
        "the unscaled line climbs to one key that takes everything and its gradient falls; the scaled one stays flat",
        "スケールなしの線は1個の鍵が全てを取るところまで上がり、勾配は落ちる。スケールありの線は平らなまま",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
)
