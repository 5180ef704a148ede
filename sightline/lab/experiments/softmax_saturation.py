"""Why scores are divided by √d_k: without it, softmax saturates in wide heads and its gradient
vanishes.

On random q and k, and in small models trained on Shakespeare's characters, whose weights could
compensate for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.statistics import (
    Interval,
    lies_above,
    lies_below,
    lies_within,
    paired_difference,
)
from sightline.lab.style import COLOURS, new_figure, plot_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator

    from sightline.core.model import Transformer
    from sightline.training.data.batch import Batch

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS = 64
PAIRS = {
    "quick": 100_000,
    "default": 100_000,
    "full": 400_000,
}  # independent pairs, for the variance
SAMPLES = {"quick": 400, "default": 2000, "full": 20_000}
TITLES = {
    "variance": "variance of the scores",
    "largest": "largest of 64 weights",
    "entropy": "entropy, nats",
    "gradient": "|∂a/∂s|",
}
SEEDS = {"quick": 3, "default": 10, "full": 30}
HEADS_OF = (16, 256)  # the two head widths of the trained models: d_k
MODEL_WIDTH = 64
LAYERS = 2
HEADS = 2
CONTEXT = 64
ROWS = 8
RATE = 3e-3
STEPS = {"quick": 60, "default": 400, "full": 2000}
RUNS = {"quick": 3, "default": 5, "full": 10}
WAYS = {"scaled": None, "raw": 1.0}  # the factor on q·k; None is 1/√d_k


def saturation_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier: Tier = plan.tier
    seed = plan.seed
    steps = STEPS[tier]
    random_parts = [
        ExperimentPart(
            f"width-{width}.seed-{n}",
            lambda width=width, n=n: measure_random_scores(width, n, tier),
        )
        for width in WIDTHS
        for n in range(seed, seed + SEEDS[tier])
    ]
    return random_parts + [
        ExperimentPart(
            f"trained-{width}.{way}.steps-{steps}.seed-{n}",
            lambda width=width, way=way, n=n: train_with_scale(width, way, steps, n),
        )
        for width in HEADS_OF
        for way in WAYS
        for n in range(seed, seed + RUNS[tier])
    ]


def measure_random_scores(width: int, seed: int, tier: Tier) -> dict[str, Any]:
    """Queries and keys with independent N(0, 1) entries: the variance of their scores, and softmax
    statistics over 64 keys."""
    import torch

    random = torch.Generator().manual_seed(10_000 * seed + width)
    samples = SAMPLES[tier]
    query = torch.randn(samples, 1, width, generator=random, dtype=torch.float64)
    key = torch.randn(samples, KEYS, width, generator=random, dtype=torch.float64)
    scores = (query @ key.transpose(1, 2))[:, 0]
    statistics: dict[str, Any] = {"variance": score_variance(width, PAIRS[tier], random)}
    for name, scale in (("raw", 1.0), ("scaled", 1 / math.sqrt(width))):
        weights = (scores * scale).softmax(-1)
        largest = weights.max(-1).values
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        gradient = (
            (torch.diag_embed(weights) - weights[:, :, None] * weights[:, None])
            .flatten(1)
            .norm(dim=1)
        )
        statistics[name] = {
            "largest": float(largest.mean()),
            "entropy": float(entropy.mean()),
            "gradient": float(gradient.mean()),
        }
    return statistics


def score_variance(width: int, pairs: int, random: Generator) -> float:
    """The variance of q·k over independent pairs, computed in chunks."""
    import torch

    pieces = [min(2000, pairs - start) for start in range(0, pairs, 2000)]
    products = [
        (torch.randn(2, piece, width, generator=random).prod(0)).sum(-1, dtype=torch.float64)
        for piece in pieces
    ]
    return float(torch.cat(products).var())


def train_with_scale(width: int, way: str, steps: int, seed: int) -> dict[str, Any]:
    """Train a small model with this head width: attention statistics before and after, and the
    held-out loss."""
    from sightline.architectures import gpt
    from sightline.config import Dot
    from sightline.lab.learning import build_seeded, held_out_loss, shakespeare, training_steps

    text, vocabulary = shakespeare(CONTEXT, ROWS, seed)
    config = gpt(
        width=MODEL_WIDTH, layers=LAYERS, heads=HEADS, head_dim=width, vocab_size=vocabulary,
        max_positions=CONTEXT, attention=Dot(scale=WAYS[way]),
    )  # fmt: skip
    model = build_seeded(config, seed)
    look = next(iter(text.validation()))
    start = attention_statistics(model, look)
    learner = [
        learner for learner, _ in training_steps(model, text, steps=steps, lr=RATE, seed=seed)
    ][-1]
    return {
        "start": start,
        "end": attention_statistics(model, look),
        "loss": held_out_loss(learner, text),
    }


def attention_statistics(model: Transformer, batch: Batch) -> dict[str, float]:
    """Mean largest weight and entropy over layers, heads and queries in the second half of the
    context."""
    import torch

    from sightline.record import Recorder

    record = Recorder({"weights"})
    with torch.no_grad():
        model.hidden(batch.tokens, record=record)
    weights = torch.stack(
        [record["decoder", layer, "weights"][:, :, CONTEXT // 2 :] for layer in range(LAYERS)]
    )
    return {
        "largest": float(weights.max(-1).values.mean()),
        "entropy": float(-torch.xlogy(weights, weights).sum(-1).mean()),
    }


def trained_runs(numbers: Numbers, width: int, way: str) -> list[Mapping[str, Any]]:
    """The trained models of all seeds with this head width and scaling."""
    return [row for name, row in numbers.items() if name.startswith(f"trained-{width}.{way}.")]


def values_at_width(numbers: Numbers, width: int, pick: str, how: str | None = None) -> list[float]:
    """One quantity for all seeds."""
    rows = [row for name, row in numbers.items() if name.startswith(f"width-{width}.")]
    return [row[pick] if how is None else row[how][pick] for row in rows]


def judge_saturation(numbers: Numbers) -> Sequence[Check]:
    ratios = {
        width: Interval.of([value / width for value in values_at_width(numbers, width, "variance")])
        for width in WIDTHS
    }
    worst = max(ratios.values(), key=lambda ratio: abs(ratio.mean - 1))
    raw, scaled = (
        Interval.of(values_at_width(numbers, WIDTHS[-1], "largest", how))
        for how in ("raw", "scaled")
    )
    gradient_ratio = Interval.of(
        [
            a / b
            for a, b in zip(
                values_at_width(numbers, 1024, "gradient", "raw"),
                values_at_width(numbers, 1024, "gradient", "scaled"),
                strict=True,
            )
        ]
    )
    spread = [
        Interval.of(values_at_width(numbers, width, "largest", "scaled")).mean for width in WIDTHS
    ]
    return [
        Check(
            Words(
                "the variance of q·k is d_k, within 2% at every width",
                "q·k の分散は d_k（どの幅でも2%以内）",
            ),
            lies_within(worst, 0.98, 1.02),
            f"variance / d_k, the one farthest from 1: {worst}",
        ),
        Check(
            Words(
                "unscaled with d_k = 1,024, one key of 64 gets nearly all the weight (> 0.9)",
                "スケーリングなし・d_k = 1024 では64個中1個のキーが重みのほぼ全てを占める（> 0.9）",
            ),
            lies_above(raw, 0.9),
            f"largest weight {raw}",
        ),
        Check(
            Words("scaled, it does not (< 0.2)", "スケーリングすればそうならない（< 0.2）"),
            lies_below(scaled, 0.2),
            f"largest weight {scaled}",
        ),
        Check(
            Words(
                "scaled, the largest weight does not depend on the width",
                "スケーリングすれば最大の重みは幅に依らない",
            ),
            max(spread) - min(spread) < 0.03,
            f"from {min(spread):.3f} to {max(spread):.3f}",
        ),
        Check(
            Words(
                "unscaled, the gradient of softmax is less than half of the scaled one",
                "スケーリングなしでは softmax の勾配は半分未満になる",
            ),
            lies_below(gradient_ratio, 0.5),
            f"raw / scaled {gradient_ratio}",
        ),
        *judge_trained(numbers),
    ]


def judge_trained(numbers: Numbers) -> Sequence[Check]:
    """The same in trained models."""
    wide = HEADS_OF[-1]
    start, end = (
        {way: [row[when]["largest"] for row in trained_runs(numbers, wide, way)] for way in WAYS}
        for when in ("start", "end")
    )
    start_gap = paired_difference(start["raw"], start["scaled"])
    end_gap = paired_difference(end["raw"], end["scaled"])
    loss_gaps = {
        width: paired_difference(
            *(
                [row["loss"] for row in trained_runs(numbers, width, way)]
                for way in ("raw", "scaled")
            )
        )
        for width in HEADS_OF
    }
    return [
        Check(
            Words(
                f"a model with d_k = {wide} starts saturated without scaling (largest weight"
                " higher by"
                " 0.3)",
                f"d_k = {wide} のモデルは、"
                "スケーリングなしでは最初から飽和している（最大の重みが0.3以上大きい）",
            ),
            lies_above(start_gap, 0.3),
            f"raw − scaled {start_gap}",
        ),
        Check(
            Words(
                "training does not undo this (still higher by 0.1)",
                "学習しても解消されない（なお0.1以上大きい）",
            ),
            lies_above(end_gap, 0.1),
            f"raw − scaled {end_gap}",
        ),
        Check(
            Words(
                f"and it learns worse: higher held-out loss, d_k = {wide}",
                f"学習も悪くなる：検証損失が高い（d_k = {wide}）",
            ),
            lies_above(loss_gaps[wide], 0),
            f"raw − scaled {loss_gaps[wide]} nats; with d_k = {HEADS_OF[0]}:"
            f" {loss_gaps[HEADS_OF[0]]}",
        ),
    ]


def summarize_saturation(numbers: Numbers) -> Words:
    narrow, wide = HEADS_OF
    loss_gaps = {
        width: paired_difference(
            *(
                [row["loss"] for row in trained_runs(numbers, width, way)]
                for way in ("raw", "scaled")
            )
        )
        for width in HEADS_OF
    }
    entropy = {
        way: Interval.of([row["end"]["entropy"] for row in trained_runs(numbers, wide, way)]).mean
        for way in WAYS
    }
    sign = lies_above(loss_gaps[narrow], 0)
    english = {
        True: "also higher without scaling",
        False: "lower without scaling",
        None: "the same within the uncertainty",
    }[sign]
    japanese = {
        True: "やはりスケーリングなしの方が損失が高い",
        False: "スケーリングなしの方がむしろ損失が低い",
        None: "誤差の範囲で差がない",
    }[sign]
    return Words(
        f"After training, heads with d_k = {wide} have an attention entropy of {entropy['raw']:.2f}"
        f" nats without scaling and {entropy['scaled']:.2f} with it, and the loss without it"
        " differs"
        f" by {loss_gaps[wide].mean:+.3f} nats. With d_k = {narrow} the loss is {english}"
        f" ({loss_gaps[narrow]}): narrow heads hardly saturate, and the scale then only changes the"
        " initialisation.",
        f"学習後、d_k = {wide}"
        f" のヘッドの注意のエントロピーはスケーリングなしで{entropy['raw']:.2f}、"
        f"ありで{entropy['scaled']:.2f} nats、"
        f"損失の差は{loss_gaps[wide].mean:+.3f} nats。"
        f"d_k = {narrow} では{japanese}（{loss_gaps[narrow]}）。"
        "狭いヘッドはほとんど飽和しないので、そこではスケーリングは初期値の違いにすぎない。",
    )


def draw_saturation(numbers: Numbers) -> Mapping[str, Figure]:
    figure, panels = new_figure(4, width=3.3)
    names = (
        ("variance", "variance of the scores"),
        ("largest", "largest of 64 weights"),
        ("entropy", "entropy, nats"),
        ("gradient", "|∂a/∂s|"),
    )
    for axes, (pick, title) in zip(panels, names, strict=True):
        for number, how in enumerate(("raw", "scaled")):
            rows = [
                values_at_width(numbers, width, pick, None if pick == "variance" else how)
                for width in WIDTHS
            ]
            if pick == "variance" and how == "scaled":
                rows = [
                    [value / width for value in row]
                    for width, row in zip(WIDTHS, rows, strict=True)
                ]
            plot_mean(
                axes,
                list(WIDTHS),
                [Interval.of(row) for row in rows],
                label="q·k" if how == "raw" else "q·k / √d_k",
                number=number,
            )
        axes.set(xscale="log", xlabel="d_k", title=title)
        axes.set_xscale("log", base=2)
        if pick == "variance":
            axes.set_yscale("log")
    panels[0].legend(frameon=False)
    return {"softmax-saturation": figure, "softmax-saturation-trained": draw_trained_heads(numbers)}


def draw_trained_heads(numbers: Numbers) -> Figure:
    """Attention statistics at the start and end of training, and the loss."""
    figure, panels = new_figure(3, width=3.6)
    for axes, (pick, title) in zip(
        panels,
        (("largest", "largest weight"), ("entropy", "entropy, nats"), ("loss", "loss, nats")),
        strict=True,
    ):
        for number, way in enumerate(("raw", "scaled")):
            for place, width in enumerate(HEADS_OF):
                rows = trained_runs(numbers, width, way)
                x = 2.4 * place + 0.5 * (number - 0.5)
                values = (
                    [row[pick] for row in rows]
                    if pick == "loss"
                    else [row["start"][pick] for row in rows]
                )
                label = ("q·k" if way == "raw" else "q·k / √d_k") if place == 0 else None
                colour = COLOURS[number]
                if pick != "loss":
                    for row in rows:
                        axes.plot(
                            [x, x + 1],
                            [row["start"][pick], row["end"][pick]],
                            color=colour,
                            linewidth=1,
                            marker="o",
                            markersize=4,
                            label=label,
                        )
                        label = None
                else:
                    axes.scatter([x + 0.5] * len(values), values, color=colour, s=24, label=label)
        axes.set(title=title, xticks=[0.5, 2.9], xlim=(-0.6, 4.0))
        axes.set_xticklabels([f"d_k = {width}" for width in HEADS_OF])
        axes.set_xlabel(
            "after training" if pick == "loss" else "each line: start to end of training"
        )
    panels[0].legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="softmax-saturation",
    title=Words("Why divide by √d_k", "なぜ √d_k で割るのか"),
    claim=Words(
        "Scores of independent q and k of unit variance have variance d_k; without division by √d_k"
        " they saturate softmax, and its gradient vanishes.",
        "独立で分散1の q と k の内積の分散は d_k になる。√d_k で割らないと softmax は飽和し、"
        "勾配が消える。",
    ),
    source="Vaswani et al. 2017, section 3.2.1 and footnote 4",
    equation="Var(q·k) = Σ_i Var(q_i k_i) = d_k,   Var(q·k / √d_k) = 1",
    look_for=Words(
        "the unscaled largest weight rises to 1 and its gradient falls; the scaled line stays flat",
        "スケーリングなしでは最大の重みが1まで上がり、勾配は落ちる。"
        "スケーリングありの線は平らなまま",
    ),
    parts=saturation_parts,
    judge=judge_saturation,
    draw=draw_saturation,
    summarize=summarize_saturation,
)
