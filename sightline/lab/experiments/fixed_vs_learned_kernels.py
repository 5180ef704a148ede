"""Attention as kernel smoothing: RBF, polynomial, exponential and cosine kernels, on x as it is or
on learned projections of it; and the temperature that cosine attention needs.

    ŷ(x) = Σ_i κ(q, k_i) y_i / Σ_i κ(q, k_i) = softmax(log κ) y        Nadaraya–Watson = attention
    κ = exp(s q·k)   dot product            κ = exp(s cos θ)   cosine, QK-norm
    κ = exp(−s |q − k|² / 2)   RBF          κ = (1 + s q·k)²   polynomial
    |q| = |k| = 1:   exp(s cos θ) = exp(s) exp(−s |q − k|² / 2):   cosine is RBF on the sphere
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.kernel_smoother import measure_smoother
from sightline.lab.statistics import Interval, decide_above, decide_below, paired_difference
from sightline.lab.style import COLOURS, MARKS, new_figure
from sightline.lab.tuning import Grid, pilot_parts, tuned_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KERNELS = ("rbf", "cosine", "polynomial", "dot")
LEARNED = (*KERNELS, "flat")
LOCAL = ("rbf", "cosine")
NAMES = {
    "rbf": Words("RBF", "RBF"),
    "cosine": Words("cosine", "コサイン"),
    "polynomial": Words("polynomial", "多項式"),
    "dot": Words("dot product", "内積"),
    "flat": Words("cosine, no temperature", "コサイン（温度なし）"),
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
STEPS = {"quick": 100, "default": 400, "full": 2000}
PILOTS = {"quick": 1, "default": 2, "full": 4}
SEEDS: dict[Tier, int] = {"quick": 3, "default": 12, "full": 24}
SMOOTHERS = 3  # noisy curves
SETTLE = 24
SAME = 0.0  # no difference between two kernels
CONSTANT = 1.0  # the error of a constant mean, relative to itself
CHANCE = 2 / 8  # of a random projection's norm lies in a plane of eight dimensions
EXACT = 1e-9  # of float64
REACHED = 1e-3  # gradient ascent comes this close to the bound
HALF = 0.5  # most of the weight


def kernel_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    grid = Grid(LEARNED, RATES, PILOTS[tier], f"steps-{STEPS[tier]}")
    return pilot_parts(
        grid, lambda kind, rate, seed: {"score": train(kind, rate, STEPS[tier], seed)["error"]}
    )


def kernel_parts(plan: Plan) -> Sequence[ExperimentPart]:
    steps = STEPS[plan.tier]
    exact = [
        ExperimentPart(f"{kind}.seed-{n}", lambda measure=measure, n=n: measure(n))
        for n in range(plan.seed, plan.seed + SMOOTHERS)
        for kind, measure in (("smoother", measure_smoother), ("exact", measure_laws))
    ]
    fixed = [
        ExperimentPart(
            f"fixed.{kind}.steps-{steps}.seed-{n}", lambda kind=kind, n=n: choose(kind, steps, n)
        )
        for kind, n in product(KERNELS, plan.seeds(SEEDS))
    ]
    learned = [
        ExperimentPart(
            f"learned.{kind}.rate-{plan.rate(kind):g}.steps-{steps}.seed-{n}",
            lambda kind=kind, n=n: train(kind, plan.rate(kind), steps, n),
        )
        for kind, n in product(LEARNED, plan.seeds(SEEDS))
    ]
    return [*exact, *fixed, *learned]


def train(kind: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """A kernel on learned projections."""
    from sightline.lab.measures.kernels import learned_kernel

    return learned_kernel(kind, rate, steps, seed)


def choose(kind: str, steps: int, seed: int) -> dict[str, Any]:
    """A kernel on x itself, with the best scale."""
    from sightline.lab.measures.kernels import fixed_kernel

    return fixed_kernel(kind, steps, seed)


def measure_laws(seed: int) -> dict[str, Any]:
    """The identities, in float64."""
    from sightline.lab.measures.kernels import measure_exact

    return measure_exact(seed)


# ---------------------------------------------------------------------------------------- verdict


def rows_of(numbers: Numbers, prefix: str) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(f"{prefix}.")]


def errors_of(numbers: Numbers, arm: str) -> list[float]:
    """`fixed.rbf`, `learned.rbf`: the relative errors, seed by seed."""
    return [row["error"] for row in rows_of(numbers, arm)]


def judge_kernels(numbers: Numbers) -> Sequence[Check]:
    return [*exact_checks(numbers), *learning_checks(numbers)]


def exact_checks(numbers: Numbers) -> list[Check]:
    laws = rows_of(numbers, "exact")
    smoothers = rows_of(numbers, "smoother")
    smoother = max(row["apart"] for row in smoothers)
    sphere = max(row["apart"] for row in laws)
    found, bound = max(row["found"] for row in laws), laws[0]["bound"]
    scaled = min(row["with root d"] for row in laws)
    fits = Interval.ratio([row["error"] / row["flat"] for row in smoothers])
    return [
        Check.over_seeds(
            Words(
                "attention with a fixed kernel recovers a curve from noise: its error is below that"
                " of a constant mean",
                "カーネルを固定した注意機構はノイズから曲線を復元する：誤差は単純平均より小さい",
            ),
            f"error / error of the mean {fits}",
            decide_below(fits, CONSTANT),
        ),
        Check(
            Words(
                "and it equals the kernel smoother of Nadaraya and Watson (to 10⁻⁹)",
                "それは Nadaraya–Watson のカーネル平滑化に等しい（10⁻⁹ まで）",
            ),
            smoother < EXACT,
            f"difference {smoother:.1e}",
        ),
        Check(
            Words(
                "cosine attention is an RBF smoother on the unit sphere (to 10⁻⁹)",
                "コサイン注意は単位球面上の RBF カーネル平滑化である（10⁻⁹ まで）",
            ),
            sphere < EXACT,
            f"difference {sphere:.1e}",
        ),
        Check(
            Words(
                "without a temperature no weight on one of 64 keys exceeds 1 / (1 + 63 e⁻²) ="
                " 0.105, and gradient ascent reaches it",
                "温度がなければ、64個のキーのどの重みも 1 / (1 + 63 e⁻²) = 0.105 を超えず、"
                "勾配上昇でこの値に達する",
            ),
            bound - REACHED < found < bound + EXACT,
            f"largest weight {found:.4f}, the bound {bound:.4f}",
        ),
        Check(
            Words(
                "with the scale √d of QK-norm (d = 64) it can get more than half",
                "QK-norm のスケール √d（d = 64）なら半分を超えられる",
            ),
            scaled > HALF,
            f"largest weight {scaled:.4f}",
        ),
    ]


def learning_checks(numbers: Numbers) -> list[Check]:
    fixed = {kind: errors_of(numbers, f"fixed.{kind}") for kind in KERNELS}
    learned = {kind: errors_of(numbers, f"learned.{kind}") for kind in LEARNED}
    plane = {
        kind: [row["in plane"] for row in rows_of(numbers, f"learned.{kind}")] for kind in LOCAL
    }
    scaled = [not row["at edge"] for kind in KERNELS for row in rows_of(numbers, f"fixed.{kind}")]
    return [
        Check.over_seeds(
            Words(
                "learned projections have a lower error than the same kernel on x itself",
                "学習した射影は、同じカーネルを x にそのまま使うより誤差が小さい",
            ),
            "; ".join(
                f"{NAMES[kind].en} {Interval.of(fixed[kind]).mean:.3f} →"
                f" {Interval.of(learned[kind]).mean:.3f}"
                for kind in KERNELS
            ),
            *(
                decide_below(paired_difference(learned[kind], fixed[kind]), SAME)
                for kind in KERNELS
            ),
        ),
        Check(
            Words(
                "the scale of every fixed kernel is the best of a wide grid, never at its end",
                "固定カーネルのスケールは広い範囲で最良の値であり、範囲の端ではない",
            ),
            all(scaled),
            f"{sum(scaled)} of {len(scaled)}",
        ),
        Check.over_seeds(
            Words(
                "they find what matters: more of W_K reads the two relevant dimensions than of a"
                " random projection (2/8)",
                "射影は重要な次元を見つける：W_K のノルムのうち関係する2次元を読む割合は、"
                "ランダムな射影（2/8）より大きい",
            ),
            ", ".join(f"{NAMES[kind].en} {Interval.share(plane[kind])}" for kind in LOCAL),
            *(decide_above(Interval.share(plane[kind]), CHANCE) for kind in LOCAL),
        ),
        Check.over_seeds(
            Words(
                "the form still matters: the dot product's error stays above RBF's and cosine's,"
                " all with learned projections",
                "カーネルの形も重要である：射影を学習しても、内積の誤差は RBF やコサインより大きい",
            ),
            difference_text(learned, [("dot", "rbf"), ("dot", "cosine")]),
            *(decide_above(paired_difference(learned["dot"], learned[k]), SAME) for k in LOCAL),
        ),
        Check.over_seeds(
            Words(
                "without its temperature, cosine attention has a higher error",
                "温度がなければ、コサイン注意の誤差は大きくなる",
            ),
            difference_text(learned, [("flat", "cosine")]),
            decide_above(paired_difference(learned["flat"], learned["cosine"]), SAME),
        ),
    ]


def difference_text(errors: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(
        f"{NAMES[a].en} − {NAMES[b].en} {paired_difference(errors[a], errors[b])}" for a, b in pairs
    )


def summarize_kernels(numbers: Numbers) -> Words:
    mean = {kind: Interval.of(errors_of(numbers, f"learned.{kind}")).mean for kind in LEARNED}
    scale = Interval.ratio([row["scale"] for row in rows_of(numbers, "learned.cosine")]).mean
    return Words(
        "The task: 64 noisy points in eight dimensions, of which two matter; errors as a share of"
        f" a constant mean's. With learned projections: RBF {mean['rbf']:.3f}, cosine"
        f" {mean['cosine']:.3f} (learned scale {scale:.0f}), polynomial {mean['polynomial']:.3f},"
        f" dot product {mean['dot']:.3f}, cosine without temperature {mean['flat']:.3f}. The dot"
        " product lacks the factor exp(−|k|²/2): it favours long keys, and a linear projection"
        " cannot give keys one length. Dividing by the length (QK-norm) makes the kernel local; a"
        " deep model can also arrange it in earlier layers. Tsai et al. report RBF and exponential"
        " kernels about equal in translation; a possible reason is that LayerNorm precedes their"
        " projections, while here x has any length. LDA topics against heads are not"
        " measured.",
        "課題：8次元の64点（ノイズあり）で、関係するのは2次元だけ。"
        "誤差は単純平均の誤差との比。"
        f"射影を学習した場合：RBF {mean['rbf']:.3f}、コサイン {mean['cosine']:.3f}"
        f"（学習したスケール {scale:.0f}）、多項式 {mean['polynomial']:.3f}、"
        f"内積 {mean['dot']:.3f}、"
        f"温度なしのコサイン {mean['flat']:.3f}。"
        "内積には因子 exp(−|k|²/2) がなく、長いキーを優遇する。"
        "線形の射影ではキーの長さを揃えられない。"
        "長さで割る（QK-norm）とカーネルは局所的になる。深いモデルは前の層でも同じことができる。"
        "Tsai et al. は翻訳で RBF と指数カーネルはほぼ同等と報告している。"
        "そこでは射影の前に LayerNorm があり、ここでは x の長さが任意であることが理由かもしれない。"
        "LDA のトピックとヘッドの比較は測定していない。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_kernels(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (curve, errors, rates) = new_figure(3, width=4.4)
    draw_smoother(curve, numbers)
    draw_errors(errors, numbers)
    for number, (kind, tuned) in enumerate(tuned_rates(numbers).items()):
        rates.plot(
            [rate for rate, _ in tuned.scores],
            [score for _, score in tuned.scores],
            marker=MARKS[number],
            color=COLOURS[number],
            label=NAMES[kind].en,
        )
    rates.set(xscale="log", xlabel="learning rate", ylabel="error / error of the mean")
    rates.set(title="Pilots", ylim=(0, 1.2))
    rates.legend(frameon=False, fontsize=8)
    return {"fixed-vs-learned-kernels": figure}


def draw_smoother(axes: Axes, numbers: Numbers) -> None:
    """Attention with a fixed kernel on noisy points."""
    row = rows_of(numbers, "smoother")[0]
    axes.scatter(row["places"], row["values"], s=12, color="0.6", label="data")
    axes.plot(row["x"], row["truth"], color="0", linestyle=":", label="without noise")
    axes.plot(row["x"], row["found"], color=COLOURS[0], label=f"attention, h = {row['width']:g}")
    axes.set(xlabel="x", ylabel="y", title="A kernel smoother is attention")
    axes.legend(frameon=False, fontsize=8)


def draw_errors(axes: Axes, numbers: Numbers) -> None:
    """The error of each kernel, fixed and learned."""
    for number, form in enumerate(("fixed", "learned")):
        for place, kind in enumerate(LEARNED):
            values = errors_of(numbers, f"{form}.{kind}")
            label = {"fixed": "on x itself", "learned": "on learned projections"}[form]
            axes.scatter(
                values,
                [place + 0.12 * (2 * number - 1)] * len(values),
                s=18,
                color=COLOURS[number],
                marker=MARKS[number],
                label=label if place == 0 else None,
            )
    axes.set_yticks(range(len(LEARNED)), labels=[NAMES[kind].en for kind in LEARNED])
    axes.set(
        ylim=(len(LEARNED) - 0.5, -0.5), xlim=(0, None), xlabel="error / error of the mean",
        title="Eight dimensions, two of which matter",
    )  # fmt: skip
    axes.legend(frameon=False, fontsize=8, loc="lower left")


EXPERIMENT = Experiment(
    name="fixed-vs-learned-kernels",
    title=Words("Fixed and learned kernels", "固定カーネルと学習したカーネル"),
    claim=Words(
        "Attention is kernel smoothing with a learned kernel. Learning the projections lowers the"
        " error of every kernel; the form matters too: a local kernel (RBF, or cosine with a"
        " temperature) beats the plain dot product.",
        "注意機構は、カーネルを学習するカーネル平滑化である。射影を学習するとどのカーネルでも誤差が下がる。"
        "形も重要で、局所的なカーネル（RBF、温度付きコサイン）は通常の内積より良い。",
    ),
    source="Nadaraya 1964; Watson 1964; Tsai et al. 2019; Henry et al. 2020 (QK-norm)",
    equation=(
        "softmax(log κ(q, k_i)) y = Σ κ y_i / Σ κ;   w ≤ 1 / (1 + (n − 1) e^(−2s)) for cosine with"
        " scale s"
    ),
    look_for=Words(
        "orange left of blue in every row, and far left only for RBF and cosine",
        "どの行でも橙が青より左にあり、大きく左なのは RBF とコサインだけである",
    ),
    pilots=kernel_pilots,
    parts=kernel_parts,
    judge=judge_kernels,
    draw=draw_kernels,
    summarize=summarize_kernels,
    settle=SETTLE,
    arms=NAMES,
    corrections=(
        Words(
            "Cosine attention needs a temperature: cos θ lies between −1 and 1, so that with 64"
            " keys no weight can exceed 0.105. QK-norm (Qwen3, OLMo 2) normalises q and k by"
            " RMSNorm, which leaves length √d: after the division by √d the scale is √d.",
            "コサイン注意には温度が必要である。cos θ は −1 から 1 なので、"
            "キーが64個のときどの重みも 0.105 を超えない。"
            "QK-norm（Qwen3、OLMo 2）は q と k を RMSNorm で正規化し、長さは √d になる。"
            "√d で割ったあとのスケールは √d である。",
        ),
    ),
)
