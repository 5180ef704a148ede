"""In-context learning as gradient descent: a layer of linear attention performs exactly one step;
a trained Transformer does better.

    loss      L(W) = 1/2n Σ_i |W x_i − y_i|²                of the examples in the context
    step      ΔW   = −η ∇L = η/n Σ_i (y_i − W x_i) x_iᵀ
    dual      ΔW x_q = η/n Σ_i (y_i − W x_i) (x_i·x_q)      attention without softmax:
                                                            value_i times key_i·query

Tokens are e_i = (x_i, y_i) and e_q = (x_q, −W x_q); attention's output is added to them, and −y of
the query is what is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.statistics import Interval, lies_below, lies_within
from sightline.lab.style import COLOURS, new_figure, plot_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class RegressionSize:
    """The training settings of a tier."""

    dimension: int
    width: int
    steps: int
    batch: int
    rate: float
    seeds: int


SIZES = {
    "quick": RegressionSize(2, 32, 700, 128, 1e-2, 3),
    "default": RegressionSize(4, 64, 3000, 64, 3e-3, 4),
    "full": RegressionSize(5, 64, 20_000, 64, 3e-3, 8),
}
LINEAR = 4  # dimensions for linear attention
DEPTH = 10  # layers of linear attention
GRADIENT_STEPS = (1, 2, 5, 10)
EQUAL = 1e-6
NEAR = 1.10
ALIKE = 1.05


def icl_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    size = SIZES[tier]
    seeds = range(seed, seed + SIZES[tier].seeds)
    of = f"dimension-{size.dimension}.width-{size.width}.batch-{size.batch}.steps-{size.steps}"
    exact = [ExperimentPart(f"exact.seed-{n}", lambda n=n: exact_part(n)) for n in seeds]
    linear = [
        ExperimentPart(f"linear.dimension-{LINEAR}.seed-{n}", lambda n=n: linear_part(n))
        for n in seeds
    ]
    rest = [
        ExperimentPart(f"trained.{of}.seed-{n}", lambda n=n: trained_part(size, n)) for n in seeds
    ]
    return [*exact, *linear, *rest]


def exact_part(seed: int) -> dict[str, Any]:
    """Attention with hand-set weights against gradient descent, in both precisions."""
    from sightline.lab.measures.regression import exactness

    return {of: exactness(seed, of, depth=DEPTH) for of in ("float64", "float32")}


def linear_part(seed: int) -> dict[str, float]:
    """Linear attention trained on 2 d examples; its error and the errors of the reference methods
    on the same held-out tasks."""
    from sightline.lab.measures.regression import LinearRegressor, measure_errors, train_regressor

    double = 2 * LINEAR
    model = train_regressor(
        LinearRegressor, LINEAR, lengths=(double, double), steps=600, rate=1e-2, seed=seed
    )
    return measure_errors(model, LINEAR, double, descents=GRADIENT_STEPS, seed=seed)


def trained_part(size: RegressionSize, seed: int) -> dict[str, Any]:
    """A Transformer, trained on 1 to 3 d examples; errors by number of examples."""
    from sightline.lab.measures.regression import NOISE, Regressor, measure_errors, train_regressor

    examples = list(range(1, 3 * size.dimension + 1))
    lengths = examples[0], examples[-1]

    def new_regressor(dimension: int) -> Regressor:
        return Regressor(dimension, width=size.width)

    model = train_regressor(
        new_regressor,
        size.dimension,
        lengths=lengths,
        steps=size.steps,
        batch=size.batch,
        rate=size.rate,
        seed=seed,
    )
    rows = [
        measure_errors(model, size.dimension, n, descents=GRADIENT_STEPS, seed=seed)
        for n in examples
    ]
    settings = {"dimension": size.dimension, "noise": NOISE, "examples": examples}
    return settings | {name: [row[name] for row in rows] for name in rows[0]}


# ---------------------------------------------------------------------------------------- verdict


def rows_of_part(numbers: Numbers, kind: str) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(kind + ".")]


def error_at_twice_dimension(row: Mapping[str, Any], name: str) -> float:
    """An error with 2 d examples."""
    return row[name][row["examples"].index(2 * row["dimension"])]


def judge_icl(numbers: Numbers) -> Sequence[Check]:
    return [
        *construction_checks(rows_of_part(numbers, "exact")),
        linear_check(rows_of_part(numbers, "linear")),
        *trained_checks(rows_of_part(numbers, "trained")),
    ]


def construction_checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The construction: the only differences are rounding errors."""
    statements = {
        "layers-1": Words(
            "linear attention with weights set by hand is one step of gradient descent, to 1e-6 of"
            " the largest prediction",
            "手で決めた重みの線形注意は勾配降下の1ステップに等しい（最大の予測値の1e-6以内）",
        ),
        "dual": Words(
            "and so is the dual form Σ (y_i − W x_i)(x_i·x_q) η/n",
            "双対形 Σ (y_i − W x_i)(x_i·x_q) η/n も同じ",
        ),
        f"layers-{DEPTH}": Words(
            f"{DEPTH} such layers are {DEPTH} steps (float32, where rounding errors accumulate:"
            " to 1e-5)",
            f"同じ層を{DEPTH}枚重ねると{DEPTH}ステップになる（丸めの積もる float32 では1e-5以内）",
        ),
    }
    worst = {
        name: {of: max(row[of][name] for row in rows) for of in ("float64", "float32")}
        for name in statements
    }
    limits = {
        name: {"float64": EQUAL, "float32": 10 * EQUAL if name == f"layers-{DEPTH}" else EQUAL}
        for name in statements
    }
    return [
        Check(
            words,
            all(difference <= limits[name][of] for of, difference in worst[name].items()),
            ", ".join(
                f"{of}: difference {difference:.1e}" for of, difference in worst[name].items()
            ),
        )
        for name, words in statements.items()
    ]


def linear_check(rows: Sequence[Mapping[str, Any]]) -> Check:
    ratio = Interval.of([row["trained"] / row["descent-1"] for row in rows])
    statement = Words(
        "trained linear attention has an error within 5% of one gradient step with the best step"
        " size",
        "学習させた線形注意の誤差は、最良のステップ幅の1ステップから5%以内",
    )
    return Check(
        statement, lies_within(ratio, 1 / ALIKE, ALIKE), f"error / error of one step: {ratio}"
    )


def trained_checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    near = Interval.of(
        [
            error_at_twice_dimension(row, "trained") / error_at_twice_dimension(row, "ridge")
            for row in rows
        ]
    )
    step = Interval.of(
        [
            error_at_twice_dimension(row, "trained") / error_at_twice_dimension(row, "descent-1")
            for row in rows
        ]
    )
    return [
        Check(
            Words(
                "with 2 d examples a trained Transformer's error is at most 10% more than ridge"
                " with"
                " the best λ",
                "例が 2d 個のとき、学習した Transformer の誤差は"
                "最良の λ のリッジ回帰より最大10%大きいだけ",
            ),
            lies_below(near, NEAR),
            f"error / error of ridge: {near}",
        ),
        Check(
            Words(
                "and less than that of one gradient step with the best step size",
                "最良のステップ幅の勾配降下1ステップよりは小さい",
            ),
            lies_below(step, 1),
            f"error / error of one step: {step}",
        ),
    ]


def summarize_icl(numbers: Numbers) -> Words:
    rows = rows_of_part(numbers, "trained")
    names = {
        "ridge": Words("ridge", "リッジ回帰"),
        "least squares": Words("least squares", "最小二乗法"),
    }
    names |= {
        f"descent-{n}": Words(f"{n} gradient step{'s' if n > 1 else ''}", f"勾配降下{n}ステップ")
        for n in GRADIENT_STEPS
    }
    away = {
        name: Interval.of([error_at_twice_dimension(row, f"from {name}") for row in rows]).mean
        for name in names
    }
    nearest = min(away, key=away.__getitem__)
    ours, best = (
        Interval.of([error_at_twice_dimension(row, name) for row in rows]).mean
        for name in ("trained", "ridge")
    )
    noise = rows[0]["noise"] ** 2
    with_noise = (ours + noise) / (best + noise)
    last = conclusion_of(nearest)
    return Words(
        f"With 2 d examples the Transformer's error beyond the noise is {ours:.3f}, ridge's"
        f" {best:.3f} (with the noise counted, {with_noise:.2f} times ridge's). Of all methods its"
        f" predictions are closest to {names[nearest].en} (mean squared difference"
        f" {away[nearest]:.3f};"
        f" from one gradient step {away['descent-1']:.3f}). {last.en}",
        f"例が 2d 個のとき、ノイズを除いた誤差は Transformer {ours:.3f}、リッジ"
        f" {best:.3f}（ノイズを含めると {with_noise:.2f} 倍）。"
        f"予測が最も近いのは{names[nearest].ja}（平均二乗差 {away[nearest]:.3f}、勾配1ステップとは"
        f" {away['descent-1']:.3f}）。{last.ja}",
    )


def conclusion_of(nearest: str) -> Words:
    """What this means for the claim that trained attention performs gradient descent."""
    if nearest.startswith("descent"):
        return Words(
            "So it predicts like gradient descent.", "つまり勾配降下と同じように予測する。"
        )
    return Words(
        "So one layer can be one step, but what several layers with softmax learn is not plain"
        " gradient descent, whose predictions are farther away.",
        "1層は1ステップになりうるが、softmax をもつ数層が学ぶものは素の勾配降下ではない。"
        "勾配降下の予測はもっと遠い。",
    )


# ----------------------------------------------------------------------------------------- figure


def draw_icl(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (errors, exact) = new_figure(2, width=5.4, height=3.8)
    rows = rows_of_part(numbers, "trained")
    examples = rows[0]["examples"]
    labels = {
        "trained": "trained Transformer",
        "ridge": "ridge, best λ",
        "least squares": "least squares",
    }
    labels |= {f"descent-{n}": f"{n} gradient step{'s' if n > 1 else ''}" for n in GRADIENT_STEPS}
    for number, (name, label) in enumerate(labels.items()):
        intervals = [Interval.of([row[name][n] for row in rows]) for n in range(len(examples))]
        # With n = d examples the error of least squares has no finite mean, hence no interval.
        if name != "trained":
            intervals = [
                Interval(interval.mean, interval.mean, interval.mean, 1) for interval in intervals
            ]
        plot_mean(errors, examples, intervals, label=label, number=number)
    errors.lines[0].set(zorder=3, linewidth=2.2)
    double = 2 * rows[0]["dimension"]
    top = 2 * max(max(row["trained"]) for row in rows)
    errors.axvline(double, color="0.6", linewidth=0.8, linestyle=":")
    errors.set(
        xlabel="examples in the context",
        ylabel="mean (ŷ − w·x)²",
        title=f"In-context regression, d = {double // 2}",
        yscale="log",
    )
    errors.set_ylim(0.35 * min(min(row["ridge"]) for row in rows), top)
    errors.yaxis.set_major_formatter("{x:g}")
    errors.yaxis.set_minor_formatter("{x:g}")
    errors.tick_params(which="minor", labelsize=7)
    errors.legend(frameon=False, fontsize=7, ncols=2, loc="lower left")
    for number, of in enumerate(("float32", "float64")):
        worst = [
            max(max(row[of][f"layers-{n}"] for row in rows_of_part(numbers, "exact")), 1e-17)
            for n in range(1, DEPTH + 1)
        ]
        exact.plot(
            range(1, DEPTH + 1),
            worst,
            marker="os"[number],
            markersize=4,
            color=COLOURS[number],
            label=of,
        )
    exact.axhline(EQUAL, color="0.5", linewidth=0.8, linestyle=":", label="1e-6")
    exact.set(
        xlabel="layers = steps",
        ylabel="largest difference / largest prediction",
        yscale="log",
        ylim=(1e-17, 1e-4),
    )
    exact.set_title("Linear attention against gradient descent")
    exact.legend(frameon=False, loc="center right")
    return {"icl-gradient-descent": figure}


EXPERIMENT = Experiment(
    name="icl-gradient-descent",
    title=Words(
        "In-context learning is gradient descent, and more", "文脈内学習は勾配降下、そしてそれ以上"
    ),
    claim=Words(
        "A layer of linear attention can perform exactly one step of gradient descent on the"
        " examples"
        " in its context; a trained Transformer learns from them about as well as ridge"
        " regression.",
        "線形注意の1層は、文脈中の例に対する勾配降下のちょうど1ステップになれる。学習した"
        " Transformer は例からリッジ回帰とほぼ同等に学ぶ。",
    ),
    source=(
        "von Oswald et al. 2023, Transformers Learn In-Context by Gradient Descent; Garg et al."
        " 2022; Akyürek et al. 2023"
    ),
    equation=(
        "ΔW x_q = −η ∇L(W) x_q = η/n Σ_i (y_i − W x_i)(x_i·x_q),   L(W) = 1/2n Σ_i |W x_i − y_i|²"
    ),
    look_for=Words(
        "on the right only rounding errors; on the left the Transformer's line near ridge's, far"
        " below one gradient step, and without least squares' peak at as many examples as"
        " dimensions",
        "右は丸め誤差だけ。左では Transformer の線がリッジのすぐ近く、"
        "勾配1ステップのずっと下にあり、"
        "例の数と次元が等しい所での最小二乗法の山もない",
    ),
    parts=icl_parts,
    judge=judge_icl,
    draw=draw_icl,
    summarize=summarize_icl,
    corrections=(
        Words(
            "That attention is gradient descent is a theorem about one layer without softmax and"
            " with chosen weights. It does not show that a trained model with softmax works this"
            " way;"
            " that has to be measured.",
            "注意が勾配降下であるというのは、softmax のない1層と特定の重みについての定理である。"
            "softmax のある学習済みモデルがそう動くとは言っておらず、"
            "測って確かめる必要がある。",
        ),
    ),
)
