"""Why scores are divided by √d_k: what happens without it to softmax and its gradient, on random q
and k, and in small models trained on Shakespeare's characters.

Without the division a model differs in two ways: its softmax starts saturated, and a step of W_Q
and W_K moves the scores √d_k times as far. Four arms tell them apart:

                          normal W_Q, W_K           rescaled by d_k^(∓1/4)
    q·k / √d_k            scaled                    scaled, with the start of q·k
    q·k                   raw                       raw, with the start of q·k / √d_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.random_scores import KEYS, random_scores
from sightline.lab.measures.scaled_attention import HEAD_DIM, WAYS, train_with_scale
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    paired_difference,
    paired_ratio,
)
from sightline.lab.style import COLOURS, new_figure, plot_mean
from sightline.lab.tuning import Grid, pilot_parts, tuned_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
LARGER = (16, 32, 64)  # head widths in use: the unscaled gradient is larger there
SMALLER = (256, 512, 1024)
PAIRS = {"quick": 10_000, "default": 40_000, "full": 40_000}  # independent, per seed
SAMPLES = {"quick": 100, "default": 500, "full": 5000}
SEEDS = {"quick": 3, "default": 16, "full": 30}
EXPONENT_BAND = 0.05  # of d_k, over a factor of 256 in width: an exponent of 1 ± 0.01

STEPS = {"quick": 40, "default": 250, "full": 2000}
RUNS: dict[Tier, int] = {"quick": 2, "default": 14, "full": 24}
# The claim was changed twice after looking: eight seeds judged each effect within a row or column
# of the table above, fourteen more showed no cost of the factor. The verdict is of fresh seeds.
LOOKED_AT = 40
RATES: dict[Tier, tuple[float, ...]] = {
    "quick": (2e-3, 1e-2, 5e-2),
    "default": (5e-4, 1.5e-3, 4.5e-3, 1.35e-2),
    "full": (1.7e-4, 5e-4, 1.5e-3, 4.5e-3, 1.35e-2),
}
PILOT_SEEDS = {"quick": 1, "default": 2, "full": 3}
SAME_START = 1e-4  # rounding of float32 weights moves a softmax weight by about 1e-6

ARMS = {
    "scaled": Words("q·k / √d_k", "q·k / √d_k"),
    "raw": Words("q·k", "q·k"),
    "raw-same-start": Words("q·k, start of the scaled", "q·k（スケーリングありの初期状態）"),
    "scaled-saturated": Words("q·k / √d_k, start of q·k", "q·k / √d_k（q·k の初期状態）"),
}


def saturation_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Scored by the held-out loss, as long as the runs that are judged."""
    steps = STEPS[tier]
    grid = Grid(tuple(WAYS), RATES[tier], PILOT_SEEDS[tier], f"d-{HEAD_DIM}.steps-{steps}")

    def measure(arm: str, rate: float, seed: int) -> dict[str, Any]:
        return {"score": train_with_scale(arm, steps, rate, seed)["loss"]}

    return pilot_parts(grid, measure)


def saturation_parts(plan: Plan) -> Sequence[ExperimentPart]:
    samples, pairs, steps = SAMPLES[plan.tier], PAIRS[plan.tier], STEPS[plan.tier]
    random_parts = [
        ExperimentPart(
            f"width-{width}.samples-{samples}.pairs-{pairs}.repeat-{n}",
            lambda width=width, n=n: random_scores(width, n, samples=samples, pairs=pairs),
        )
        for width, n in product(WIDTHS, range(plan.seed, plan.seed + SEEDS[plan.tier]))
    ]
    return random_parts + [
        ExperimentPart(
            f"trained.{way}.d-{HEAD_DIM}.steps-{steps}.rate-{plan.rate(way):g}.seed-{n}",
            lambda way=way, n=n: train_with_scale(way, steps, plan.rate(way), n),
        )
        for n, way in product(fresh_seeds(plan), WAYS)
    ]


def fresh_seeds(plan: Plan) -> range:
    seeds = plan.seeds(RUNS)
    return range(seeds.start + LOOKED_AT, seeds.stop + LOOKED_AT)


# ------------------------------------------------------------------------------------ the numbers


def values_at_width(numbers: Numbers, width: int, pick: str, how: str) -> list[float]:
    """One quantity for all seeds."""
    return [row[how][pick] for name, row in numbers.items() if name.startswith(f"width-{width}.")]


def variance_ratio(numbers: Numbers, width: int) -> Interval:
    """Variance of the scores / d_k."""
    rows = [row for name, row in numbers.items() if name.startswith(f"width-{width}.")]
    return Interval.ratio([row["variance"] / width for row in rows])


def raw_to_scaled(numbers: Numbers, width: int, pick: str) -> Interval:
    """The quantity without division / with it, by seed."""
    ours, theirs = (values_at_width(numbers, width, pick, how) for how in ("raw", "scaled"))
    return paired_ratio(ours, theirs)


def growth(numbers: Numbers, pick: str, width: int, larger: int) -> Interval:
    """The unscaled quantity at the larger width / at this width."""
    return paired_ratio(*(values_at_width(numbers, at, pick, "raw") for at in (larger, width)))


def trained_values(numbers: Numbers, way: str, pick: str, when: str | None = None) -> list[float]:
    rows = [row for name, row in numbers.items() if name.startswith(f"trained.{way}.")]
    return [row[pick] if when is None else row[when][pick] for row in rows]


def trained_gap(
    numbers: Numbers, ours: str, theirs: str, pick: str = "loss", when: str | None = None
) -> Interval:
    return paired_difference(
        trained_values(numbers, ours, pick, when), trained_values(numbers, theirs, pick, when)
    )


def main_effect(numbers: Numbers, pairs: Sequence[tuple[str, str]]) -> Interval:
    """The difference in loss within these pairs of arms, averaged by seed."""
    gaps = [
        [
            a - b
            for a, b in zip(*(trained_values(numbers, way, "loss") for way in pair), strict=True)
        ]
        for pair in pairs
    ]
    return Interval.of([sum(row) / len(row) for row in zip(*gaps, strict=True)])


# ---------------------------------------------------------------------------------------- verdict


def judge_saturation(numbers: Numbers) -> Sequence[Check]:
    return [*judge_scores(numbers), *judge_gradients(numbers), *judge_trained(numbers)]


def judge_scores(numbers: Numbers) -> Sequence[Check]:
    """The bound of ½ is that of one key outweighing all others together."""
    ratios = [variance_ratio(numbers, width) for width in WIDTHS]
    low, high = 1 - EXPONENT_BAND, 1 + EXPONENT_BAND
    larger = [growth(numbers, "largest", *pair) for pair in pairwise(WIDTHS[::2])]
    raw, *scaled = (
        Interval.share(values_at_width(numbers, width, "largest", how))
        for how, width in [("raw", WIDTHS[-1]), *product(["scaled"], WIDTHS)]
    )
    return [
        Check.over_seeds(
            Words(
                "the variance of q·k is d_k (within 5% at every width: an exponent of 1 ± 0.01)",
                "q·k の分散は d_k（どの幅でも5%以内、つまり指数は 1 ± 0.01）",
            ),
            "variance / d_k, the one farthest from 1:"
            f" {max(ratios, key=lambda ratio: abs(ratio.mean - 1))}",
            *(decide_above(ratio, low) for ratio in ratios),
            *(decide_below(ratio, high) for ratio in ratios),
        ),
        Check.over_seeds(
            Words(
                "unscaled, the largest weight grows whenever d_k is four times as large, until one"
                f" key of {KEYS} outweighs all others (> 0.5 at {WIDTHS[-1]:,})",
                f"スケーリングなしでは d_k が4倍になるたびに最大の重みが増え、{KEYS}個中1個のキーが"
                f"他のすべてを上回る（{WIDTHS[-1]:,} で > 0.5）",
            ),
            f"largest weight {raw}",
            *(decide_above(ratio, 1.0) for ratio in larger),
            decide_above(raw, 0.5),
        ),
        Check.over_seeds(
            Words(
                "scaled, none does at any width (< 0.5)",
                "スケーリングすればどの幅でもそうならない（< 0.5）",
            ),
            f"from {min(one.mean for one in scaled):.3f} to {max(one.mean for one in scaled):.3f}",
            *(decide_below(one, 0.5) for one in scaled),
        ),
    ]


def judge_gradients(numbers: Numbers) -> Sequence[Check]:
    """A ratio of 1 is the same gradient; an eighth is a power law 1/d_k."""
    mean = {width: raw_to_scaled(numbers, width, "gradient, mean") for width in WIDTHS}
    fall = growth(numbers, "gradient, median", 128, 1024)
    median = raw_to_scaled(numbers, 1024, "gradient, median")
    query = {width: raw_to_scaled(numbers, width, "at query, mean") for width in WIDTHS}
    return [
        Check.over_seeds(
            Words(
                "the mean gradient of softmax, |∂a/∂s|, is larger without scaling up to d_k = 64"
                " (ratio > 1 at 16, 32 and 64) and smaller from 256 on (< 1)",
                "softmax の勾配の平均 |∂a/∂s| は、d_k = 64 まではスケーリングなしの方が大きく"
                "（16・32・64 で比 > 1）、256 以上では小さい（< 1）",
            ),
            "raw / scaled " + ", ".join(f"d_k = {width}: {mean[width]}" for width in (64, 1024)),
            *(decide_above(mean[width], 1.0) for width in LARGER),
            *(decide_below(mean[width], 1.0) for width in SMALLER),
        ),
        Check.over_seeds(
            Words(
                "in wide heads it vanishes for the typical query: from d_k = 128 to 1,024 the"
                " median falls to less than an eighth, faster than 1/d_k",
                "幅の広いヘッドでは典型的なクエリの勾配が消える。d_k が 128 から 1,024 になると"
                "中央値は8分の1未満になり、1/d_k より速く減る",
            ),
            f"1,024 / 128: {fall}; raw / scaled d_k = 1024: {median}",
            decide_below(fall, 128 / 1024),
        ),
        Check.over_seeds(
            Words(
                "yet the mean gradient that reaches q is larger without scaling at every width"
                " (ratio > 1): scaling divides it by √d_k once more",
                "それでも q に届く勾配の平均はどの幅でもスケーリングなしの方が大きい（比 > 1）。"
                "スケーリングは勾配をもう一度 √d_k で割るからである",
            ),
            "raw / scaled " + ", ".join(f"d_k = {width}: {query[width]}" for width in (64, 1024)),
            *(decide_above(ratio, 1.0) for ratio in query.values()),
        ),
    ]


def judge_trained(numbers: Numbers) -> Sequence[Check]:
    """Every arm at its tuned rate; the bound of a difference is 0, that of the start ½ as above."""
    saturated = Interval.share(trained_values(numbers, "raw", "largest", "start"))
    apart = max(
        abs(a - b)
        for ours, theirs in (("raw-same-start", "scaled"), ("scaled-saturated", "raw"))
        for a, b in zip(
            *(trained_values(numbers, way, "largest", "start") for way in (ours, theirs)),
            strict=True,
        )
    )
    after = trained_gap(numbers, "raw", "scaled", "largest", "end")
    loss = trained_gap(numbers, "raw", "scaled")
    start = main_effect(numbers, (("raw", "raw-same-start"), ("scaled-saturated", "scaled")))
    factor = main_effect(numbers, (("raw-same-start", "scaled"), ("raw", "scaled-saturated")))
    difference = trained_gap(numbers, "scaled-saturated", "raw-same-start")  # start − factor
    return [
        Check(
            Words(
                "with W_Q and W_K divided by d_k^(1/4), the unscaled model starts as the scaled"
                " one, and the other way round",
                "W_Q と W_K を d_k^(1/4) で割れば、スケーリングなしのモデルはありのモデルと"
                "同じ状態から始まり、逆も成り立つ",
            ),
            apart < SAME_START,
            f"largest difference {apart:.0e}",
        ),
        Check.over_seeds(
            Words(
                f"without scaling, a model with d_k = {HEAD_DIM} starts saturated (largest weight"
                " > 0.5), and training does not undo it (still larger than with scaling)",
                f"スケーリングなしでは d_k = {HEAD_DIM} のモデルは飽和した状態から始まり"
                "（最大の重み > 0.5）、学習しても解消されない（なおスケーリングありより大きい）",
            ),
            f"largest weight {saturated}, after training raw − scaled {after}",
            decide_above(saturated, 0.5),
            decide_above(after, 0.0),
        ),
        Check.over_seeds(
            Words(
                "each at its tuned rate, it learns worse without scaling (higher held-out loss)",
                "それぞれ調整した学習率で、スケーリングなしの方が検証損失が高い",
            ),
            f"raw − scaled {loss} nats",
            decide_above(loss, 0.0),
        ),
        Check.over_seeds(
            Words(
                "a saturated start alone costs loss: the same factor, mean over both factors",
                "飽和した初期状態だけで損失が増える（係数は同じ、両方の係数の平均）",
            ),
            f"saturated − scaled start {start} nats",
            decide_above(start, 0.0),
        ),
        Check.over_seeds(
            Words(
                "it costs more than the missing factor, mean over both starts, by which steps of"
                " W_Q and W_K move the scores √d_k times as far",
                "その増加は係数がないこと（両方の初期状態の平均）による増加より大きい。"
                "係数がなければ W_Q と W_K の1ステップがスコアを √d_k 倍動かす",
            ),
            f"start − factor {difference} nats; factor {factor}",
            decide_above(difference, 0.0),
        ),
    ]


def summarize_saturation(numbers: Numbers) -> Words:
    rates = tuned_rates(numbers)
    losses = {way: Interval.of(trained_values(numbers, way, "loss")).mean for way in WAYS}

    def listed(language: str) -> str:
        return ", ".join(
            f"{ARMS[way][language]}: {losses[way]:.3f} ({rates[way].rate:g})" for way in WAYS
        )

    mean = {width: raw_to_scaled(numbers, width, "gradient, mean") for width in WIDTHS[2:]}
    ratios = ", ".join(f"{width}: {ratio.mean:.2f}" for width, ratio in mean.items())
    median = raw_to_scaled(numbers, WIDTHS[-1], "gradient, median")
    return Words(
        f"Gradient of softmax without scaling / with it, mean over queries, by d_k: {ratios}; the"
        f" median at {WIDTHS[-1]:,}: {median.mean:.1g}. Means fall slowly because some queries have"
        " two keys with nearly equal scores. All of this is with 64 keys. Held-out loss of the"
        f" trained models with d_k = {HEAD_DIM} (tuned rate): {listed('en')}.",
        f"softmax の勾配の比（スケーリングなし / あり、クエリの平均、d_k ごと）：{ratios}。"
        f"{WIDTHS[-1]:,} での中央値の比：{median.mean:.1g}。"
        "平均の減り方が遅いのは、二つのキーのスコアがほぼ等しいクエリがあるためである。"
        f"いずれもキーは64個。学習したモデル（d_k = {HEAD_DIM}）の検証損失"
        f"（かっこ内は調整した学習率）：{listed('ja')}。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_saturation(numbers: Numbers) -> Mapping[str, Figure]:
    figure, panels = new_figure(4, width=3.4)
    places = [float(width) for width in WIDTHS]
    variance, largest, *gradients = panels
    plot_mean(
        variance, places, [variance_ratio(numbers, width) for width in WIDTHS],
        label="variance / d_k", number=0,
    )  # fmt: skip
    variance.set(ylim=(0.9, 1.1), title="variance of the scores")
    for number, (how, label) in enumerate((("raw", "q·k"), ("scaled", "q·k / √d_k"))):
        rows = [values_at_width(numbers, width, "largest", how) for width in WIDTHS]
        plot_mean(
            largest, places, [Interval.share(row) for row in rows], label=label, number=number
        )
    largest.set(ylim=(0, 1), title=f"largest of {KEYS} weights")
    titles = (("gradient", "|∂a/∂s|, raw / scaled"), ("at query", "gradient at q, raw / scaled"))
    for axes, (pick, title) in zip(gradients, titles, strict=True):
        draw_ratio(axes, numbers, pick)
        axes.set_title(title)
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set_xlabel("d_k")
        axes.legend(frameon=False, fontsize=8)
    return {"softmax-saturation": figure, "softmax-saturation-trained": draw_trained(numbers)}


def draw_ratio(axes: Axes, numbers: Numbers, pick: str) -> None:
    """Raw / scaled: the mean over queries, and their median."""
    for number, what in enumerate(("mean", "median")):
        ratios = [raw_to_scaled(numbers, width, f"{pick}, {what}") for width in WIDTHS]
        plot_mean(axes, [float(width) for width in WIDTHS], ratios, label=what, number=number)
    axes.axhline(1, color="0.4", linewidth=0.8)
    axes.axvline(64, color="0.7", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")


def draw_trained(numbers: Numbers) -> Figure:
    """Largest weight at the start and the end, and the loss, of each arm."""
    figure, (weights, losses) = new_figure(2, width=5.2)
    names = [ARMS[way].en for way in WAYS]
    for place, way in enumerate(WAYS):
        for start, end in zip(
            *(trained_values(numbers, way, "largest", when) for when in ("start", "end")),
            strict=True,
        ):
            weights.plot(
                [start, end], [place - 0.15, place + 0.15], color=COLOURS[place], linewidth=1,
                marker="o", markersize=4,
            )  # fmt: skip
        values = trained_values(numbers, way, "loss")
        mean = Interval.of(values)
        losses.scatter(values, [place + 0.15] * len(values), s=14, color="0.5", linewidth=0)
        losses.plot([mean.low, mean.high], [place, place], color=COLOURS[place], linewidth=2)
        losses.plot([mean.mean], [place], marker="o", color=COLOURS[place])
    for axes in (weights, losses):
        axes.set_yticks(range(len(names)), labels=names)
        axes.set_ylim(len(names) - 0.5, -0.5)
    weights.set(xlabel="largest weight: start (above) and end of training", xlim=(0, 1))
    losses.set(xlabel="held-out loss, nats (each at its tuned rate)")
    return figure


EXPERIMENT = Experiment(
    name="softmax-saturation",
    title=Words("Why divide by √d_k", "なぜ √d_k で割るのか"),
    claim=Words(
        "Scores of independent q and k of unit variance have variance d_k. Without division by √d_k"
        " softmax saturates, and in wide heads its gradient vanishes for most queries; a model with"
        " such heads learns worse, because it starts saturated.",
        "独立で分散1の q と k の内積の分散は d_k になる。√d_k で割らないと softmax は飽和し、"
        "幅の広いヘッドでは大半のクエリで勾配が消える。そうしたヘッドを持つモデルは、"
        "飽和した状態から始まるために学習が悪くなる。",
    ),
    source="Vaswani et al. 2017, section 3.2.1 and footnote 4",
    equation="Var(q·k) = Σ_i Var(q_i k_i) = d_k,   Var(q·k / √d_k) = 1",
    look_for=Words(
        "the unscaled largest weight rises to 1; the ratio of the gradients crosses 1 only beyond"
        " d_k = 64 (dotted); at q its mean never does",
        "スケーリングなしでは最大の重みが1まで上がる。勾配の比が1を下回るのは d_k = 64（点線）"
        "を超えてからで、q での平均は一度も下回らない",
    ),
    parts=saturation_parts,
    pilots=saturation_pilots,
    arms=ARMS,
    settle=28,
    judge=judge_saturation,
    draw=draw_saturation,
    summarize=summarize_saturation,
    corrections=(
        Words(
            "“Extremely small gradients” (Vaswani et al. 2017, section 3.2.1) are those of wide"
            " heads. At their own d_k = 64, softmax is half-saturated and its mean gradient is"
            " larger, not smaller, without scaling; the largest of 64 weights is about 0.8 on"
            " average, not 0.9999.",
            "「極端に小さい勾配」（Vaswani et al. 2017、3.2.1節）は幅の広いヘッドの話である。"
            "論文の d_k = 64 では飽和は途中で、勾配の平均はスケーリングなしの方がむしろ大きい。"
            "64個の重みの最大値は平均約 0.8 で、0.9999 ではない。",
        ),
    ),
)
