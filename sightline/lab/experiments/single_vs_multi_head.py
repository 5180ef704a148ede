"""One head or several, at equal parameter counts: a task whose answer is in two positions, found by
two relations (`two_relations`), and the cost of a layer by its number of heads (`head_costs`).

The common account is that one head's averaging prevents it from looking at two positions. It does
not: tuned, one head learns the task, by unequal weights on the two. What several heads gain is
measured here: fewer steps, higher learning rates, and heads that divide the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.head_costs import (
    FEW_TOKENS,
    TOKENS,
    layer_seconds,
    one_call_or_many,
    product_flops,
)
from sightline.lab.measures.head_costs import WIDTH as LAYER_WIDTH
from sightline.lab.measures.head_numbers import (
    HIGH_RATES,
    call_ratio,
    head_counts,
    high_rates,
    runs_at,
    runs_of,
    seeds_that_differ,
    step_ratio,
    time_ratio,
    tuned_runs,
    work_of,
)
from sightline.lab.measures.two_relations import (
    EVERY,
    PAIRS,
    WIDTH,
    has_learned,
    steps_to_learn,
    train_until_learned,
)
from sightline.lab.statistics import (
    Decision,
    Interval,
    decide_above,
    decide_below,
    decide_count_above,
)
from sightline.lab.style import COLOURS, new_figure, plain_log_ticks, plot_mean
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS: dict[Tier, tuple[int, ...]] = {
    "quick": (1, 2),
    "default": (1, 2, 4, 8),
    "full": (1, 2, 4, 8, 16),
}
ARMS = {
    f"heads-{heads}": Words(f"{heads} head{'s' * (heads > 1)}", f"{heads}ヘッド")
    for heads in HEADS["full"]
}
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
PILOT_SEEDS = {"quick": 1, "default": 2, "full": 4}
PILOT_LIMIT = 300  # at 0.002, the slowest rate, all pilots have learned by then
LIMIT = {"quick": 300, "default": 600, "full": 3000}
SEEDS: dict[Tier, int] = {"quick": 2, "default": 12, "full": 24}
COST_HEADS = (1, 2, 4, 8, 16)
COST_SEEDS = {"quick": 3, "default": 10, "full": 20}


def multi_head_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Scored by the steps until the task is learned."""
    grid = Grid(
        [f"heads-{heads}" for heads in HEADS[tier]],
        (2e-3, 4e-3, 1.6e-2) if tier == "quick" else RATES,
        PILOT_SEEDS[tier],
        f"limit-{PILOT_LIMIT}",
    )
    return pilot_parts(grid, measure_pilot)


def measure_pilot(arm: str, rate: float, seed: int) -> dict[str, Any]:
    row = train_until_learned(int(arm.removeprefix("heads-")), rate, seed, limit=PILOT_LIMIT)
    return {"score": steps_to_learn(row), "learned": has_learned(row)}


def multi_head_parts(plan: Plan) -> Sequence[ExperimentPart]:
    limit = LIMIT[plan.tier]
    high = HIGH_RATES[:1] if plan.tier == "quick" else HIGH_RATES
    settings = sorted(
        set(product(HEADS[plan.tier], high))
        | {(heads, plan.rate(f"heads-{heads}")) for heads in HEADS[plan.tier]}
    )
    runs = [
        ExperimentPart(
            f"run.heads-{heads}.rate-{rate:g}.limit-{limit}.seed-{n}",
            lambda heads=heads, rate=rate, n=n: train_until_learned(heads, rate, n, limit=limit),
        )
        for n in plan.seeds(SEEDS)
        for heads, rate in settings
    ]
    costs = [
        ExperimentPart(f"cost.repeat-{n}", lambda n=n: measure_costs(n), alone=True)
        for n in range(plan.seed, plan.seed + COST_SEEDS[plan.tier])
    ]
    return [ExperimentPart("flops", measure_flops), *costs, *runs]


def measure_flops() -> dict[str, int]:
    return {str(heads): product_flops(heads) for heads in COST_HEADS}


def measure_costs(seed: int) -> dict[str, Any]:
    most = COST_HEADS[-1]
    return {
        "layer": layer_seconds(COST_HEADS, seed),
        "calls": {
            str(tokens): one_call_or_many(most, tokens, seed) for tokens in (FEW_TOKENS, TOKENS)
        },
    }


# ---------------------------------------------------------------------------------------- verdict


def judge_multi_head(numbers: Numbers) -> Sequence[Check]:
    return [*judge_sizes(numbers), *judge_learning(numbers), *judge_costs(numbers)]


def judge_sizes(numbers: Numbers) -> Sequence[Check]:
    """Exact: parameters and ranks."""
    counts = {(row["attention parameters"], row["parameters"]) for row in runs_of(numbers)}
    ranks = {(row["heads"], rank) for row in runs_of(numbers) for rank in row["rank"]}
    return [
        Check(
            Words(
                "attention has 4d² parameters for any number of heads",
                "注意層のパラメータ数はヘッド数によらず 4d²",
            ),
            len(counts) == 1 and next(iter(counts))[0] == 4 * WIDTH**2,
            ", ".join(f"{attention:,} of {whole:,}" for attention, whole in sorted(counts)),
        ),
        Check(
            Words(
                "every trained head's W_Q W_Kᵀ has rank d / h: one head is one relation of full"
                " rank, several are several relations of low rank",
                "学習後の各ヘッドの W_Q W_Kᵀ の階数は d / h。1ヘッドは最大階数の関係一つ、"
                "複数ヘッドは低い階数の関係がいくつか",
            ),
            ranks == {(heads, WIDTH // heads) for heads in head_counts(numbers)},
            ", ".join(
                f"rank {rank} ({ARMS[f'heads-{heads}'].en})" for heads, rank in sorted(ranks)
            ),
        ),
    ]


def judge_learning(numbers: Numbers) -> Sequence[Check]:
    """Bounds: half of the seeds, a ratio of 1 (as fast), half of the seeds that differ (a coin),
    half of a head's weight (which no head can put on both positions)."""
    heads = head_counts(numbers)
    several = heads[1:]
    learned = {
        count: (sum(map(has_learned, tuned_runs(numbers, count))), len(tuned_runs(numbers, count)))
        for count in heads
    }
    ratios = {count: step_ratio(numbers, count) for count in several}
    differ = {count: seeds_that_differ(numbers, count) for count in several}
    work = Interval.share([work_of(row) for row in tuned_runs(numbers, 2)])
    rates = ", ".join(f"{rate:g}" for rate in high_rates(numbers))
    return [
        counted_check(
            Words(
                "each at its tuned rate, one head finds both positions at once, as several do (in"
                " more than half of all seeds)",
                "それぞれ調整した学習率なら、複数ヘッドと同じく1ヘッドも二つの位置を同時に見つける"
                "（半数を超えるシードで）",
            ),
            learned,
        ),
        Check.over_seeds(
            Words(
                "several heads need fewer steps than one, each at its tuned rate (ratio < 1)",
                "調整した学習率で、複数ヘッドに要るステップ数は1ヘッドより少ない（比 < 1）",
            ),
            ", ".join(f"{ARMS[f'heads-{count}'].en} {ratio}" for count, ratio in ratios.items()),
            *(decide_below(ratio, 1.0) for ratio in ratios.values()),
        ),
        counted_check(
            Words(
                f"several heads tolerate higher rates: at {rates}, they learn more often than one"
                " (in more than half of the seeds that differ)",
                f"複数ヘッドは高い学習率に強い：{rates} で1ヘッドより多く学習に成功する"
                "（差のあるシードの半数超で）",
            ),
            differ,
        ),
        Check.over_seeds(
            Words(
                "two heads divide the work: each attends to one of the two positions (both > 0.5)",
                "2ヘッドは分業する。それぞれが二つの位置の一方に注目する（どちらも > 0.5）",
            ),
            f"smaller of the two weights {work}",
            decide_above(work, 0.5),
        ),
    ]


def counted_check(statement: Words, counts: Mapping[int, tuple[int, int]]) -> Check:
    """That successes are more than half of the trials, for each number of heads."""
    decisions: list[Decision] = [
        decide_count_above(successes, trials, 0.5) for successes, trials in counts.values()
    ]
    measured = ", ".join(
        f"{ARMS[f'heads-{heads}'].en} {successes} of {trials}"
        for heads, (successes, trials) in counts.items()
    )
    return Check.over_seeds(statement, measured, *decisions)


def judge_costs(numbers: Numbers) -> Sequence[Check]:
    """The bound of each ratio is 1: the same cost."""
    most = COST_HEADS[-1]
    flops = set(numbers["flops"].values())
    expected = 8 * TOKENS * LAYER_WIDTH**2 + 4 * TOKENS**2 * LAYER_WIDTH
    slower, few = time_ratio(numbers, "equation", most), call_ratio(numbers, FEW_TOKENS)
    return [
        Check(
            Words(
                "the matrix products cost 8Nd² + 4N²d operations for any number of heads",
                "行列積の演算数はヘッド数によらず 8Nd² + 4N²d",
            ),
            flops == {expected},
            ", ".join(f"{count:,}" for count in sorted(flops)),
        ),
        Check.over_seeds(
            Words(
                f"yet {most} heads take longer than one, because there are h · N² weights to"
                f" normalise (the equation, {TOKENS} tokens, ratio > 1)",
                f"それでも{most}ヘッドは1ヘッドより時間がかかる。softmax を計算する重みが h · N²"
                f" 個あるため（定義式、{TOKENS}トークン、比 > 1）",
            ),
            f"{slower} times, fused kernel {time_ratio(numbers, 'fused', most)} times",
            decide_above(slower, 1.0),
        ),
        Check.over_seeds(
            Words(
                f"all {most} heads in one product are faster than one head after another"
                f" ({FEW_TOKENS} tokens, ratio > 1)",
                f"{most}ヘッドを1回の行列積で計算する方が1ヘッドずつより速い"
                f"（{FEW_TOKENS}トークン、比 > 1）",
            ),
            f"{few} times, at {TOKENS} tokens on one core {call_ratio(numbers, TOKENS)} times",
            decide_above(few, 1.0),
        ),
    ]


def summarize_multi_head(numbers: Numbers) -> Words:
    heads = head_counts(numbers)
    steps = {
        count: Interval.ratio([steps_to_learn(row) for row in tuned_runs(numbers, count)])
        for count in heads
    }
    single = [row for row in tuned_runs(numbers, 1) if has_learned(row)]
    looks = [sorted((row["to content"][0], row["to place"][0]), reverse=True) for row in single]
    more, less = (Interval.share([pair[n] for pair in looks]).mean for n in range(2))
    high = [has_learned(row) for rate in high_rates(numbers) for row in runs_at(numbers, 1, rate)]
    used = {
        count: Interval.of([n for row in tuned_runs(numbers, count) for n in row["rank of 90%"]])
        for count in heads
    }
    english = ", ".join(f"{count}: {steps[count].mean:.0f}" for count in heads)
    ranks = ", ".join(f"{count}: {used[count].mean:.1f} / {WIDTH // count}" for count in heads)
    return Words(
        f"Steps until learned, by number of heads: {english}. Averaging does not prevent one head"
        f" from finding both: it puts unequal weights on the two positions ({more:.2f} and"
        f" {less:.2f}), so that the mean tells which value is which. At the high rates, one head"
        f" learned in {sum(high)} of {len(high)} runs. Singular values of W_Q W_Kᵀ that hold 90% of"
        f" its squared norm, of those there are, by number of heads: {ranks}. This is one small"
        " task; it shows what a second head saves, not how many heads a language model needs.",
        f"学習までのステップ数（ヘッド数ごと）：{english}。平均をとることは1ヘッドの妨げにならない。"
        f"二つの位置に異なる重み（{more:.2f} と {less:.2f}）を置き、"
        "平均からどちらの値かを読み取れるようにしている。"
        f"高い学習率で1ヘッドが学習に成功したのは{len(high)}回中{sum(high)}回。"
        f"W_Q W_Kᵀ の二乗ノルムの90%を占める特異値の数（ヘッド数ごと、分母は階数）：{ranks}。"
        "これは小さな課題一つであり、2個目のヘッドの利点を示すもので、言語モデルに必要なヘッド数を示すものではない。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_multi_head(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (course, failures, single, double, costs) = new_figure(5, width=3.3, height=3.3)
    draw_courses(course, numbers)
    draw_high_rates(failures, numbers)
    for axes, heads in ((single, 1), (double, 2)):
        draw_head_targets(axes, numbers, heads)
    draw_costs(costs, numbers)
    return {"single-vs-multi-head": figure}


def draw_courses(axes: Axes, numbers: Numbers) -> None:
    """Accuracy during training, one line per seed, until learned."""
    for number, heads in enumerate(head_counts(numbers)):
        for place, row in enumerate(tuned_runs(numbers, heads)):
            at = [float(EVERY * n) for n in range(1, len(row["course"]) + 1)]
            label = ARMS[f"heads-{heads}"].en if place == 0 else None
            axes.plot(at, row["course"], color=COLOURS[number], linewidth=1, alpha=0.7, label=label)
    axes.axhline(1 / PAIRS, color="0.5", linestyle=":", label="uniform guess")
    axes.set(xlabel="step", ylabel="accuracy", ylim=(0, 1.05), title="Each at its tuned rate")
    axes.legend(frameon=False, fontsize=8)


def draw_high_rates(axes: Axes, numbers: Numbers) -> None:
    """The share of seeds that learn at each high rate, with exact intervals."""
    heads = head_counts(numbers)
    for number, rate in enumerate(high_rates(numbers)):
        shares = [
            Interval.count_of(sum(map(has_learned, rows)), len(rows))
            for rows in (runs_at(numbers, count, rate) for count in heads)
        ]
        plot_mean(
            axes, [float(count) for count in heads], shares, label=f"rate {rate:g}", number=number
        )
    axes.set_xscale("log", base=2)
    plain_log_ticks(axes.xaxis)
    axes.set_xticks(heads, labels=[str(count) for count in heads])
    axes.set(xlabel="heads", ylabel="share of seeds that learn", ylim=(-0.02, 1.05))
    axes.set_title("At high learning rates")
    axes.legend(frameon=False, fontsize=8)


def draw_head_targets(axes: Axes, numbers: Numbers, heads: int) -> None:
    """Each head of each seed as a point: its weights on the two positions."""
    for seed, row in enumerate(tuned_runs(numbers, heads)):
        axes.scatter(
            row["to content"], row["to place"], s=30, color=COLOURS[seed % len(COLOURS)],
            alpha=0.8, linewidth=0, clip_on=False,
        )  # fmt: skip
    axes.plot([0, 1], [1, 0], color="0.6", linewidth=0.8, linestyle=":")
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="weight on the key's position",
        ylabel="weight on the named position",
        title=f"{ARMS[f'heads-{heads}'].en}: attention targets",
    )


def draw_costs(axes: Axes, numbers: Numbers) -> None:
    """Cost of a layer relative to one head: operations, and time with each kernel."""
    flops = numbers["flops"]
    places = [float(heads) for heads in COST_HEADS]
    products = [Interval.of([flops[str(heads)] / flops["1"]]) for heads in COST_HEADS]
    plot_mean(axes, places, products, label="operations of the products", number=0)
    for number, (kernel, label) in enumerate(
        (("equation", "time, the equation"), ("fused", "time, the fused kernel")), start=1
    ):
        ratios = [time_ratio(numbers, kernel, heads) for heads in COST_HEADS]
        plot_mean(axes, places, ratios, label=label, number=number)
    axes.set_xscale("log", base=2)
    axes.set_xticks(COST_HEADS, labels=[str(heads) for heads in COST_HEADS])
    axes.set(xlabel="heads", ylabel="relative to one head", ylim=(0, None))
    axes.set_title(f"A layer of width {LAYER_WIDTH}, {TOKENS} tokens", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


EXPERIMENT = Experiment(
    name="single-vs-multi-head",
    title=Words("One head or several", "1ヘッドか複数ヘッドか"),
    claim=Words(
        "One head can attend to two positions by two relations at once, too. Several heads of the"
        " same total size learn it in fewer steps, tolerate higher learning rates, and divide the"
        " work.",
        "1ヘッドでも、二つの関係で二つの位置に同時に注目できる。合計が同じ大きさの複数ヘッドは、"
        "より少ないステップで学び、より高い学習率に耐え、仕事を分担する。",
    ),
    source="Vaswani et al. 2017, section 3.2.2",
    equation="MultiHead(x) = Concat(head_1 … head_h) W_O,   h · 3 · d · (d / h) + d² = 4d²",
    look_for=Words(
        "the lines of one head rise last; with high rates it often fails; the points of two heads"
        " sit in opposite corners, those of one head between them",
        "1ヘッドの線は最後に上がり、高い学習率ではしばしば失敗する。"
        "2ヘッドの点は向かい合う二つの隅に、1ヘッドの点はその間に集まる",
    ),
    parts=multi_head_parts,
    pilots=multi_head_pilots,
    arms=ARMS,
    settle=24,
    judge=judge_multi_head,
    draw=draw_multi_head,
    summarize=summarize_multi_head,
    corrections=(
        Words(
            "“With a single attention head, averaging inhibits this” (Vaswani et al. 2017, section"
            " 3.2.2) holds for equal weights. Softmax weights need not be equal, and the layer"
            " after it can tell a large share from a small one: at a tuned learning rate one head"
            " learns the task.",
            "「1ヘッドでは平均がこれを妨げる」（Vaswani et al. 2017、3.2.2節）は、"
            "重みが等しい場合の話である。softmax の重みは等しいとは限らず、"
            "後の層は大小の違いを読み取れる。"
            "学習率を調整すれば1ヘッドも学習できる。",
        ),
        Words(
            "More heads do not save parameters. Each head is d / h wide and there are h of them:"
            f" 4d² = {4 * WIDTH**2:,} here, for any h.",
            "ヘッドを増やしてもパラメータは減らない。幅 d / h のヘッドが h 個あるので、h によらず"
            f" 4d²（ここでは {4 * WIDTH**2:,}）。",
        ),
        Words(
            "More heads do not need more multiplications either. What grows with h is the softmax,"
            " over h · N² scores.",
            "乗算の回数もヘッド数では変わらない。"
            "h とともに増えるのは h · N² 個のスコアの softmax である。",
        ),
    ),
)
