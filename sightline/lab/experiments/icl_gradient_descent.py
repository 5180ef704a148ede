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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.regression_pictures import (
    DEPTH,
    EQUAL,
    draw_icl,
    errors_of,
    rows_of_part,
    summarize_icl,
)
from sightline.lab.statistics import Interval, decide_above, decide_below, paired_ratio
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class RegressionSize:
    """The training settings of a tier; pilots are shorter and of two seeds."""

    dimension: int
    width: int
    steps: int
    batch: int
    seeds: int
    rates: tuple[float, ...]
    pilot_steps: int
    linear_steps: int


SIZES: dict[Tier, RegressionSize] = {
    "quick": RegressionSize(2, 32, 400, 64, 3, (2e-3, 5e-3, 1.2e-2, 3e-2), 120, 300),
    "default": RegressionSize(4, 48, 1800, 64, 4, (1e-3, 2.5e-3, 6e-3, 1.5e-2, 4e-2), 500, 600),
    "full": RegressionSize(5, 64, 20_000, 64, 8, (5e-4, 1e-3, 2.5e-3, 6e-3, 1.5e-2), 4000, 2000),
}
LINEAR_RATES = (1e-3, 4e-3, 1.6e-2, 6e-2, 2.5e-1)
PILOT_SEEDS: dict[Tier, int] = {"quick": 1, "default": 2, "full": 3}
LINEAR = 4  # dimensions for linear attention
NAMES = {
    "transformer": Words("Transformer", "Transformer"),
    "linear": Words("linear attention", "線形注意"),
}


def icl_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    size = SIZES[tier]
    seeds = PILOT_SEEDS[tier]
    linear = Grid(("linear",), LINEAR_RATES, seeds, f"steps-{size.linear_steps}")
    trained = Grid(
        ("transformer",), size.rates, seeds, f"{described(size)}.steps-{size.pilot_steps}"
    )
    return [
        *pilot_parts(linear, lambda arm, rate, seed: linear_pilot(size, rate, seed)),
        *pilot_parts(trained, lambda arm, rate, seed: trained_pilot(size, rate, seed)),
    ]


def described(size: RegressionSize) -> str:
    return f"dimension-{size.dimension}.width-{size.width}.batch-{size.batch}"


def icl_parts(plan: Plan) -> Sequence[ExperimentPart]:
    size = SIZES[plan.tier]
    seeds = plan.seeds(size.seeds)
    linear, rate = plan.rate("linear"), plan.rate("transformer")
    of_linear = f"dimension-{LINEAR}.rate-{linear:g}.steps-{size.linear_steps}"
    of_trained = f"{described(size)}.rate-{rate:g}.steps-{size.steps}"
    return [
        *(ExperimentPart(f"exact.seed-{n}", lambda n=n: exact_part(n)) for n in seeds),
        *(
            ExperimentPart(f"linear.{of_linear}.seed-{n}", lambda n=n: linear_part(size, linear, n))
            for n in seeds
        ),
        *(
            ExperimentPart(
                f"trained.{of_trained}.seed-{n}", lambda n=n: trained_part(size, rate, n)
            )
            for n in seeds
        ),
    ]


def exact_part(seed: int) -> dict[str, Any]:
    """Attention with hand-set weights against gradient descent, in both precisions."""
    from sightline.lab.measures.regression import exactness

    return {of: exactness(seed, of, depth=DEPTH) for of in ("float64", "float32")}


def train_linear(size: RegressionSize, rate: float, seed: int) -> nn.Module:
    """Linear attention trained on 2 d examples."""
    from sightline.lab.measures.regression import LinearRegressor, train_regressor

    lengths = (2 * LINEAR, 2 * LINEAR)
    return train_regressor(
        LinearRegressor, LINEAR, lengths=lengths, steps=size.linear_steps, rate=rate, seed=seed
    )


def train_transformer(size: RegressionSize, rate: float, seed: int, *, steps: int) -> nn.Module:
    """A Transformer, trained on 1 to 3 d examples."""
    from sightline.lab.measures.regression import Regressor, train_regressor

    return train_regressor(
        lambda dimension: Regressor(dimension, width=size.width),
        size.dimension,
        lengths=(1, 3 * size.dimension),
        steps=steps,
        batch=size.batch,
        rate=rate,
        seed=seed,
    )


def linear_pilot(size: RegressionSize, rate: float, seed: int) -> dict[str, float]:
    from sightline.lab.measures.regression import held_out_error

    model = train_linear(size, rate, seed)
    return {"score": held_out_error(model, LINEAR, 2 * LINEAR, seed)}


def trained_pilot(size: RegressionSize, rate: float, seed: int) -> dict[str, float]:
    from sightline.lab.measures.regression import held_out_error

    model = train_transformer(size, rate, seed, steps=size.pilot_steps)
    return {"score": held_out_error(model, size.dimension, 2 * size.dimension, seed)}


def linear_part(size: RegressionSize, rate: float, seed: int) -> dict[str, float]:
    """Its error and those of the known methods on the same held-out tasks."""
    from sightline.lab.measures.regression import measure_errors

    return measure_errors(train_linear(size, rate, seed), LINEAR, 2 * LINEAR, seed=seed)


def trained_part(size: RegressionSize, rate: float, seed: int) -> dict[str, Any]:
    """Errors by number of examples."""
    from sightline.lab.measures.regression import NOISE, measure_errors

    model = train_transformer(size, rate, seed, steps=size.steps)
    examples = list(range(1, 3 * size.dimension + 1))
    rows = [measure_errors(model, size.dimension, n, seed=seed) for n in examples]
    settings = {"dimension": size.dimension, "noise": NOISE, "examples": examples}
    return settings | {name: [row[name] for row in rows] for name in rows[0]}


# ---------------------------------------------------------------------------------------- verdict


def judge_icl(numbers: Numbers) -> Sequence[Check]:
    return [
        *construction_checks(rows_of_part(numbers, "exact")),
        linear_check(rows_of_part(numbers, "linear")),
        *trained_checks(numbers),
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
    """Half of the way from one step to two: beyond, it would be closer to two."""
    away = Interval.of(
        [
            abs(math.log(row["trained"] / row["descent-1"]))
            / abs(math.log(row["descent-2"] / row["descent-1"]))
            for row in rows
        ]
    )
    ratio = paired_ratio([row["trained"] for row in rows], [row["descent-1"] for row in rows])
    statement = Words(
        "trained linear attention errs like one gradient step with the best step size: its error"
        " differs from that of one step by less than half as much as that of two steps does",
        "学習させた線形注意の誤差は最良のステップ幅の1ステップと同じである："
        "1ステップの誤差との差は、2ステップとの差の半分より小さい",
    )
    return Check.over_seeds(
        statement,
        f"error / error of one step: {ratio}, share of the way to two steps {away}",
        decide_below(away, 0.5),
    )


def trained_checks(numbers: Numbers) -> list[Check]:
    ours, ridge, step = (errors_of(numbers, name) for name in ("trained", "ridge", "descent-1"))
    error = paired_ratio(ours, step)
    closed = Interval.of(
        [(one - mine) / (one - best) for mine, best, one in zip(ours, ridge, step, strict=True)]
    )
    nearer = paired_ratio(errors_of(numbers, "from ridge"), errors_of(numbers, "from descent-1"))
    return [
        Check.over_seeds(
            Words(
                "with 2 d examples a trained Transformer errs less than one gradient step with the"
                " best step size, and is closer to ridge with the best λ: more than half of the way"
                " from the one error to the other",
                "例が 2d 個のとき、学習した Transformer の誤差は最良のステップ幅の勾配降下"
                "1ステップより小さく、最良の λ のリッジ回帰の方に近い："
                "前者の誤差から後者の誤差までの半分を超える",
            ),
            f"error / error of one step: {error}, share of the way to ridge {closed}",
            decide_below(error, 1.0),
            decide_above(closed, 0.5),
        ),
        Check.over_seeds(
            Words(
                "so are its predictions: closer to ridge's than to one gradient step's",
                "予測も同じで、勾配降下1ステップよりリッジ回帰の予測に近い",
            ),
            f"distance from ridge / from one step: {nearer}",
            decide_below(nearer, 1.0),
        ),
    ]


EXPERIMENT = Experiment(
    name="icl-gradient-descent",
    title=Words(
        "In-context learning is gradient descent, and more", "文脈内学習は勾配降下、そしてそれ以上"
    ),
    claim=Words(
        "A layer of linear attention can perform exactly one step of gradient descent on the"
        " examples"
        " in its context; a trained Transformer learns from them more than one step does, and is"
        " closer to ridge regression.",
        "線形注意の1層は、文脈中の例に対する勾配降下のちょうど1ステップになれる。学習した"
        " Transformer は例から1ステップより多くを学び、リッジ回帰に近い。",
    ),
    source=(
        "von Oswald et al. 2023, Transformers Learn In-Context by Gradient Descent; Garg et al."
        " 2022; Akyürek et al. 2023; Fu et al. 2024 (Newton's iteration)"
    ),
    equation=(
        "ΔW x_q = −η ∇L(W) x_q = η/n Σ_i (y_i − W x_i)(x_i·x_q),   L(W) = 1/2n Σ_i |W x_i − y_i|²"
    ),
    look_for=Words(
        "on the left the Transformer's line near ridge's, far below one gradient step, but near ten"
        " steps', too; in the middle, which methods predict like it; on the right only rounding"
        " errors",
        "左では Transformer の線がリッジのすぐ近く、勾配1ステップのずっと下にあるが、"
        "10ステップの線もすぐ近くにある。中央はどの手法の予測が近いか。右は丸め誤差だけ",
    ),
    pilots=icl_pilots,
    parts=icl_parts,
    judge=judge_icl,
    draw=draw_icl,
    summarize=summarize_icl,
    arms=NAMES,
    settle=8,
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
