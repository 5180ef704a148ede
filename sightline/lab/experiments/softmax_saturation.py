"""Why scores are divided by √d_k: without it, softmax saturates as heads grow wide, and its
gradient dies.

On random q and k, where it is arithmetic; and in small models trained on Shakespeare's characters,
where weights could grow or shrink to make up for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.statistics import Interval, above, below, differences, within
from sightline.lab.style import COLOURS, figure, line

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
}  # independent ones, for the variance
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
WAYS = {"scaled": None, "raw": 1.0}  # what q·k is multiplied by; None is 1/√d_k


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    steps = STEPS[tier]
    found = [
        Part(f"width-{width}.seed-{n}", lambda width=width, n=n: measured(width, n, tier))
        for width in WIDTHS
        for n in range(seed, seed + SEEDS[tier])
    ]
    return found + [
        Part(
            f"trained-{width}.{way}.steps-{steps}.seed-{n}",
            lambda width=width, way=way, n=n: trained(width, way, steps, n),
        )
        for width in HEADS_OF
        for way in WAYS
        for n in range(seed, seed + RUNS[tier])
    ]


def measured(width: int, seed: int, tier: Tier) -> dict[str, Any]:
    """Queries and keys with independent N(0, 1) entries: the variance of their scores, and what
    softmax makes of 64 of them."""
    import torch

    random = torch.Generator().manual_seed(10_000 * seed + width)
    samples = SAMPLES[tier]
    query = torch.randn(samples, 1, width, generator=random, dtype=torch.float64)
    key = torch.randn(samples, KEYS, width, generator=random, dtype=torch.float64)
    scores = (query @ key.transpose(1, 2))[:, 0]
    found: dict[str, Any] = {"variance": variance(width, PAIRS[tier], random)}
    for name, scale in (("raw", 1.0), ("scaled", 1 / math.sqrt(width))):
        weights = (scores * scale).softmax(-1)
        largest = weights.max(-1).values
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        gradient = (
            (torch.diag_embed(weights) - weights[:, :, None] * weights[:, None])
            .flatten(1)
            .norm(dim=1)
        )
        found[name] = {
            "largest": float(largest.mean()),
            "entropy": float(entropy.mean()),
            "gradient": float(gradient.mean()),
        }
    return found


def variance(width: int, pairs: int, random: Generator) -> float:
    """Of q·k, over pairs of which none shares its q or k with another; a piece at a time."""
    import torch

    pieces = [min(2000, pairs - start) for start in range(0, pairs, 2000)]
    products = [
        (torch.randn(2, piece, width, generator=random).prod(0)).sum(-1, dtype=torch.float64)
        for piece in pieces
    ]
    return float(torch.cat(products).var())


def trained(width: int, way: str, steps: int, seed: int) -> dict[str, Any]:
    """A small model with heads so wide: its weights before and after training, and its loss on
    held-out plays."""
    from sightline.architectures import gpt
    from sightline.config import Dot
    from sightline.lab.learning import learn, loss_of, made, plays

    text, vocabulary = plays(CONTEXT, ROWS, seed)
    config = gpt(
        width=MODEL_WIDTH, layers=LAYERS, heads=HEADS, head_dim=width, vocab_size=vocabulary,
        max_positions=CONTEXT, attention=Dot(scale=WAYS[way]),
    )  # fmt: skip
    model = made(config, seed)
    look = next(iter(text.validation()))
    start = attention_of(model, look)
    learner = [learner for learner, _ in learn(model, text, steps=steps, lr=RATE, seed=seed)][-1]
    return {"start": start, "end": attention_of(model, look), "loss": loss_of(learner, text)}


def attention_of(model: Transformer, batch: Batch) -> dict[str, float]:
    """The largest weight and the entropy, means over layers, heads and the queries that see at
    least half of the context."""
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


def runs(numbers: Numbers, width: int, way: str) -> list[Mapping[str, Any]]:
    """All seeds of one kind of trained model."""
    return [row for name, row in numbers.items() if name.startswith(f"trained-{width}.{way}.")]


def gathered(numbers: Numbers, width: int, pick: str, how: str | None = None) -> list[float]:
    """One number of all seeds."""
    rows = [row for name, row in numbers.items() if name.startswith(f"width-{width}.")]
    return [row[pick] if how is None else row[how][pick] for row in rows]


def judge(numbers: Numbers) -> Sequence[Check]:
    ratios = {
        width: Interval.of([value / width for value in gathered(numbers, width, "variance")])
        for width in WIDTHS
    }
    worst = max(ratios.values(), key=lambda ratio: abs(ratio.mean - 1))
    raw, scaled = (
        Interval.of(gathered(numbers, WIDTHS[-1], "largest", how)) for how in ("raw", "scaled")
    )
    lost = Interval.of(
        [
            a / b
            for a, b in zip(
                gathered(numbers, 1024, "gradient", "raw"),
                gathered(numbers, 1024, "gradient", "scaled"),
                strict=True,
            )
        ]
    )
    spread = [Interval.of(gathered(numbers, width, "largest", "scaled")).mean for width in WIDTHS]
    return [
        Check(
            Words(
                "the variance of q·k is d_k, within 2% at every width",
                "q·k の分散は d_k（どの幅でも2%以内）",
            ),
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
        Check(
            Words("scaled, it does not (< 0.2)", "スケールすればそうならない（< 0.2）"),
            below(scaled, 0.2),
            f"largest weight {scaled}",
        ),
        Check(
            Words(
                "scaled, the largest weight does not depend on the width",
                "スケールすれば最大の重みは幅に依らない",
            ),
            max(spread) - min(spread) < 0.03,
            f"from {min(spread):.3f} to {max(spread):.3f}",
        ),
        Check(
            Words(
                "unscaled, softmax's gradient is less than half of the scaled one",
                "スケールなしでは softmax の勾配は半分未満になる",
            ),
            below(lost, 0.5),
            f"raw / scaled {lost}",
        ),
        *judge_trained(numbers),
    ]


def judge_trained(numbers: Numbers) -> Sequence[Check]:
    """The same in models that were trained."""
    wide = HEADS_OF[-1]
    start, end = (
        {way: [row[when]["largest"] for row in runs(numbers, wide, way)] for way in WAYS}
        for when in ("start", "end")
    )
    grown = differences(start["raw"], start["scaled"])
    kept = differences(end["raw"], end["scaled"])
    lost = {
        width: differences(
            *([row["loss"] for row in runs(numbers, width, way)] for way in ("raw", "scaled"))
        )
        for width in HEADS_OF
    }
    return [
        Check(
            Words(
                f"a model with heads {wide} wide begins saturated without the scale (largest weight"
                " higher by 0.3)",
                f"幅{wide}のヘッドを持つモデルは、"
                "スケールなしでは最初から飽和している（最大の重みが0.3以上大きい）",
            ),
            above(grown, 0.3),
            f"raw − scaled {grown}",
        ),
        Check(
            Words(
                "training does not undo it (still higher by 0.1)",
                "学習してもそれは解けない（なお0.1以上大きい）",
            ),
            above(kept, 0.1),
            f"raw − scaled {kept}",
        ),
        Check(
            Words(
                f"and it learns worse: a higher loss on held-out plays, d_k = {wide}",
                f"学習も悪くなる：未見の戯曲での損失が高い（d_k = {wide}）",
            ),
            above(lost[wide], 0),
            f"raw − scaled {lost[wide]} nats; with d_k = {HEADS_OF[0]}: {lost[HEADS_OF[0]]}",
        ),
    ]


def told(numbers: Numbers) -> Words:
    narrow, wide = HEADS_OF
    lost = {
        width: differences(
            *([row["loss"] for row in runs(numbers, width, way)] for way in ("raw", "scaled"))
        )
        for width in HEADS_OF
    }
    entropy = {
        way: Interval.of([row["end"]["entropy"] for row in runs(numbers, wide, way)]).mean
        for way in WAYS
    }
    sign = above(lost[narrow], 0)
    english = {
        True: "worse without the scale too",
        False: "lower without the scale",
        None: "the same within the doubt",
    }[sign]
    japanese = {
        True: "やはりスケールなしの方が悪い",
        False: "スケールなしの方がむしろ良い",
        None: "誤差の範囲で差がない",
    }[sign]
    return Words(
        f"After training, heads {wide} wide look with an entropy of {entropy['raw']:.2f} nats"
        f" without the scale and {entropy['scaled']:.2f} with it, and the loss without it is"
        f" {lost[wide].mean:+.3f} nats away. With d_k = {narrow} the loss is {english}"
        f" ({lost[narrow]}): narrow heads hardly saturate, and the scale is then only another"
        " start.",
        f"学習後、幅{wide}のヘッドの注意のエントロピーはスケールなしで{entropy['raw']:.2f}、"
        f"ありで{entropy['scaled']:.2f} nats、"
        f"損失の差は{lost[wide].mean:+.3f} nats。d_k = {narrow} では{japanese}（{lost[narrow]}）。"
        "狭いヘッドはほとんど飽和しないので、そこではスケールは初期値の違いにすぎない。",
    )


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
            rows = [
                gathered(numbers, width, pick, None if pick == "variance" else how)
                for width in WIDTHS
            ]
            if pick == "variance" and how == "scaled":
                rows = [
                    [value / width for value in row]
                    for width, row in zip(WIDTHS, rows, strict=True)
                ]
            line(
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
    return {"softmax-saturation": made, "softmax-saturation-trained": draw_trained(numbers)}


def draw_trained(numbers: Numbers) -> Figure:
    """Start and end of training side by side, and the loss."""
    made, panels = figure(3, width=3.6)
    for axes, (pick, title) in zip(
        panels,
        (("largest", "largest weight"), ("entropy", "entropy, nats"), ("loss", "loss, nats")),
        strict=True,
    ):
        for number, way in enumerate(("raw", "scaled")):
            for place, width in enumerate(HEADS_OF):
                rows = runs(numbers, width, way)
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
            "after training"
            if pick == "loss"
            else "each line: from the start to the end of training"
        )
    panels[0].legend(frameon=False)
    return made


EXPERIMENT = Experiment(
    name="softmax-saturation",
    title=Words("Why divide by √d_k", "なぜ √d_k で割るのか"),
    claim=Words(
        "Scores of independent q and k of unit variance have variance d_k; undivided by √d_k they"
        " saturate softmax, and its gradient dies.",
        "独立で分散1の q と k の内積の分散は d_k になる。√d_k で割らないと softmax は飽和し、"
        "勾配が消える。",
    ),
    source="Vaswani et al. 2017, section 3.2.1 and footnote 4",
    equation="Var(q·k) = Σ_i Var(q_i k_i) = d_k,   Var(q·k / √d_k) = 1",
    look_for=Words(
        "the unscaled line climbs to one key that takes everything and its gradient falls; the"
        " scaled one stays flat",
        "スケールなしの線は1個の鍵が全てを取るところまで上がり、勾配は落ちる。"
        "スケールありの線は平らなまま",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
)
