"""Direction and length: what a real model loses without the differences of its keys in direction or
in length, and models that use direction only.

    score = |q| |k| cos θ / √d_k                                  dot
          = |q| |k − c| cos θ_c / √d_k  +  q·c / √d_k             from another origin c
    score = s cos θ                                               cosine: |k| = 1
    score = √d_k Σ s_i² q̂_i k̂_i                                   nGPT: unit vectors, s learned

Softmax ignores q·c, so the origin is a choice, and with it what is called length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.geometry_pictures import (
    KINDS,
    MODEL_NAMES,
    NAMES,
    WHERE,
    column,
    costs_of,
    draw_geometry_figures,
    extra_cost_of_direction,
    models_in,
    steps_to_common_loss,
    texts_of,
)
from sightline.lab.statistics import (
    Decision,
    Interval,
    decide_above,
    decide_below,
    paired_difference,
    paired_ratio,
)
from sightline.lab.tuning import Grid, pilot_parts, tuned_rates

MODELS: dict[Tier, tuple[str, ...]] = {
    "quick": ("stories15m",),
    "default": ("smollm2-135m-instruct", "stories15m"),
    "full": ("smollm2-135m-instruct", "stories15m"),
}
SINK_MODEL = "smollm2-135m-instruct"  # stories15m loses too little to divide it
TEXTS: dict[Tier, int] = {"quick": 3, "default": 8, "full": 24}
JAPANESE = {"dot": "内積", "cosine": "コサイン", "ngpt": "nGPT"}
RATES: dict[Tier, tuple[float, ...]] = {
    "quick": (1e-3, 4e-3, 1.6e-2, 6.4e-2),
    "default": (1e-3, 3e-3, 1e-2, 3e-2),
    "full": (1e-3, 3e-3, 1e-2, 3e-2),
}
STEPS = {"quick": 50, "default": 400, "full": 3000}
PILOTS = {"quick": 1, "default": 2, "full": 3}
SEEDS: dict[Tier, int] = {"quick": 2, "default": 6, "full": 10}
SETTLE = 16
SAME = 0.0  # nats: neither costs more, neither loses
HALF = 0.5  # more than half is "most"
ROUNDING = 1e-4  # of float32 scores, relative; an identity that fails is off by far more
EXACT = 1e-9  # of float64 with 48 keys in 48 or 64 dimensions


def geometry_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    grid = Grid(KINDS, RATES[tier], PILOTS[tier], f"steps-{STEPS[tier]}")
    return pilot_parts(
        grid,
        lambda kind, rate, seed: {"score": train(kind, rate, STEPS[tier], seed)["loss"]},
    )


def geometry_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    steps = STEPS[tier]
    real = [
        ExperimentPart(
            f"real.{model}.text-128.seed-{n}",
            lambda model=model, n=n: measure_real_text(model, n),
        )
        for model, n in product(MODELS[tier], plan.seeds(TEXTS))
    ]
    return real + [
        ExperimentPart(
            f"trained.{kind}.rate-{plan.rate(kind):g}.steps-{steps}.seed-{n}",
            lambda kind=kind, n=n: train(kind, plan.rate(kind), steps, n),
        )
        for kind, n in product(KINDS, plan.seeds(SEEDS))
    ]


def train(kind: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """A model with one kind of scores."""
    from sightline.lab.measures.score_kinds import train_kind

    return train_kind(kind, rate, steps, seed)


def measure_real_text(model: str, seed: int) -> dict[str, Any]:
    """The loss of one text without the differences of the keys in length or in direction."""
    from sightline.lab.measures.key_costs import measure_key_costs

    return measure_key_costs(model, seed)


# ---------------------------------------------------------------------------------------- verdict


def judge_geometry(numbers: Numbers) -> Sequence[Check]:
    return [*exact_checks(numbers), *real_checks(numbers), *trained_checks(numbers)]


def exact_checks(numbers: Numbers) -> list[Check]:
    rows = [row for model in models_in(numbers) for row in texts_of(numbers, model)]
    apart = max(row["apart"] for row in rows)
    spread = max(row["sphere"] for row in rows)
    weights = max(row["sphere weights"] for row in rows)
    before = min(row["sphere before"] for row in rows)
    return [
        Check(
            Words(
                "|q| |k| cos θ · scale equals the score, to 1 part in 10⁴",
                "|q| |k| cos θ · scale はスコアに等しい（1万分の1まで）",
            ),
            apart < ROUNDING,
            f"difference {apart:.1e}",
        ),
        Check(
            Words(
                "length is a matter of the origin: for the first 48 keys of every head there is one"
                " from which all have the same length (to 10⁻⁹), and no weight changes (to 10⁻⁴)",
                "長さは原点の取り方による：各ヘッドの先頭48個のキーがすべて同じ長さになる原点があり"
                "（10⁻⁹ まで）、重みは変わらない（10⁻⁴ まで）",
            ),
            spread < EXACT and weights < ROUNDING,
            f"(longest − shortest) / mean: {before:.2f} from zero, {spread:.0e} from there;"
            f" weights differ by {weights:.0e}",
        ),
    ]


def real_checks(numbers: Numbers) -> list[Check]:
    """What the loss says, by intervention."""
    models = models_in(numbers)
    equal = [where for where in WHERE if "equal" in where]
    shuffled = [where for where in WHERE if "shuffled" in where]
    return [
        Check.over_seeds(
            Words(
                "in the real models, equal directions of the keys cost more than equal lengths:"
                " from zero and from the mean key, the first key (the sink) changed or kept",
                "実モデルでは、キーの方向を揃える方が長さを揃えるより損失が増える：原点がゼロでも平均キーでも、"
                "先頭のキー（シンク）を含めても残しても",
            ),
            "; ".join(cost_text(numbers, model, where) for model in models for where in equal),
            *direction_decisions(numbers, models, equal),
        ),
        Check.over_seeds(
            Words(
                "and shuffled directions cost more than shuffled lengths (from zero)",
                "方向を入れ替える方が長さを入れ替えるより損失が増える（原点はゼロ）",
            ),
            "; ".join(cost_text(numbers, model, where) for model in models for where in shuffled),
            *direction_decisions(numbers, models, shuffled),
        ),
        Check.over_seeds(
            Words(
                "but length from zero counts: equal lengths raise the loss",
                "しかしゼロからの長さにも意味がある：長さを揃えると損失が増える",
            ),
            "; ".join(
                f"{MODEL_NAMES[model]} {Interval.of(length_cost(numbers, model))} nats"
                for model in models
            ),
            *(decide_above(Interval.of(length_cost(numbers, model)), SAME) for model in models),
        ),
        *(sink_check(numbers, model) for model in models if model == SINK_MODEL),
    ]


def length_cost(numbers: Numbers, model: str) -> list[float]:
    return costs_of(numbers, model, "zero equal all", "length")


def direction_decisions(
    numbers: Numbers, models: Sequence[str], places: Sequence[str]
) -> list[Decision]:
    return [
        decide_above(extra_cost_of_direction(numbers, model, where), SAME)
        for model, where in product(models, places)
    ]


def cost_text(numbers: Numbers, model: str, where: str) -> str:
    length, direction = (
        Interval.of(costs_of(numbers, model, where, part)).mean for part in ("length", "direction")
    )
    return f"{MODEL_NAMES[model]}, {WHERE[where]}: direction +{direction:.2f}, length +{length:.2f}"


def sink_check(numbers: Numbers, model: str) -> Check:
    """How much of the cost of equal lengths is the first key's."""
    name = MODEL_NAMES[model]
    every = length_cost(numbers, model)
    kept = costs_of(numbers, model, "zero equal others", "length")
    return Check.over_seeds(
        Words(
            f"in {name}, most of that is the sink: with the first key kept, equal lengths cost less"
            " than half",
            f"{name} ではその大半はシンクによる：先頭のキーを残すと、"
            "長さを揃えたときの増分は半分未満になる",
        ),
        f"all keys +{Interval.of(every)}, with the first kept +{Interval.of(kept)} nats",
        decide_below(paired_difference(kept, [HALF * cost for cost in every]), SAME),
    )


def trained_checks(numbers: Numbers) -> list[Check]:
    """Models that learn with direction only."""
    target, steps = steps_to_common_loss(numbers)
    ratio = paired_ratio(steps["ngpt"], steps["dot"])
    worse = paired_difference(column(numbers, "cosine", "loss"), column(numbers, "dot", "loss"))
    lengths = {kind: column(numbers, kind, "equal lengths") for kind in KINDS}
    cosine = max(abs(cost) for cost in lengths["cosine"])
    margin = cost_of_next_rate(numbers, "dot")
    less = paired_difference(lengths["ngpt"], lengths["dot"])
    return [
        Check(
            Words(
                "equal lengths change nothing in cosine attention (below 10⁻⁴ nats)",
                "コサイン注意では長さを揃えても何も変わらない（10⁻⁴ nats 未満）",
            ),
            cosine < ROUNDING,
            f"largest difference {cosine:.0e}",
        ),
        Check.over_seeds(
            Words(
                "equal lengths cost nGPT less than the dot product",
                "長さを揃えたときの損失の増分は、nGPT の方が内積より小さい",
            ),
            ", ".join(
                f"{NAMES[kind]} {Interval.of(lengths[kind])} nats" for kind in ("dot", "ngpt")
            ),
            decide_below(less, SAME),
        ),
        Check.over_seeds(
            Words(
                "cosine attention, which has direction only, learns as well: its loss is above the"
                " dot product's by less than a learning rate 3 times off costs the dot product",
                "方向だけのコサイン注意も同じように学べる：損失が内積を上回るとしても、"
                "内積の学習率を約3倍ずらしたときの増分より小さい",
            ),
            f"cosine − dot {worse} nats, a rate next to the best {margin:+.3f}",
            decide_below(worse, margin),
        ),
        Check.over_seeds(
            Words(
                "nGPT reaches the same loss in fewer steps than the dot product",
                "nGPT は同じ損失に内積より少ないステップで届く",
            ),
            f"nGPT / dot {ratio} steps to {target:.3f} nats",
            decide_below(ratio, 1.0),
        ),
    ]


def cost_of_next_rate(numbers: Numbers, kind: str) -> float:
    """How much more the pilots lose at the better neighbour of the best rate: less than this is no
    difference that tuning by factors of 3 could see."""
    scores = [score for _, score in tuned_rates(numbers)[kind].scores]
    best = scores.index(min(scores))
    return min(scores[at] for at in (best - 1, best + 1) if 0 <= at < len(scores)) - scores[best]


def summarize_geometry(numbers: Numbers) -> Words:
    loss = {kind: Interval.of(column(numbers, kind, "loss")) for kind in KINDS}
    target, steps = steps_to_common_loss(numbers)
    mean = {kind: Interval.ratio(steps[kind]).mean for kind in KINDS}
    shares = [shares_text(numbers, model) for model in models_in(numbers)]
    in_english = "; ".join(
        f"{NAMES[kind]} {loss[kind].mean:.3f} nats, {mean[kind]:.0f} steps to {target:.2f}"
        for kind in KINDS
    )
    in_japanese = "、".join(
        f"{JAPANESE[kind]} {loss[kind].mean:.3f} nats（{target:.2f} まで"
        f" {mean[kind]:.0f} ステップ）"
        for kind in KINDS
    )
    gain = mean["dot"] / mean["ngpt"]
    return Words(
        "Share of direction in the score variance, mean over layers and texts:"
        f" {'; '.join(text.en for text in shares)}. It depends on the origin, may exceed 100% where"
        " length opposes direction, and does not tell what a model needs: keys on one ray, which"
        " differ from zero by length alone, have mostly direction from their mean. Therefore the"
        " verdict is by the loss. The texts are passages of Shakespeare, for stories15m stories of"
        f" its own. Trained, each at its tuned rate: {in_english}. Counted in steps, nGPT is"
        f" {gain:.1f} times as fast as the dot product here (its step costs about a third more);"
        " its paper reports 4 to 20 times, with 0.5 to 1 billion parameters.",
        "スコアの分散に占める方向の割合（層と文の平均）："
        f"{'、'.join(text.ja for text in shares)}。割合は原点の取り方によって変わり、"
        "長さが方向を打ち消すときは 100% を超える。モデルが何を必要とするかは示さない："
        "長さだけが違う1本の半直線上のキーも、平均を原点にすると大半が方向になる。そのため判定は損失で行う。"
        "文はシェイクスピアの一節、stories15m では自身が書いた物語。"
        f"学習（それぞれ調整した学習率）：{in_japanese}。ステップ数で数えると nGPT は内積の"
        f" {gain:.1f} 倍速い（1ステップの時間は約3分の1長い）。"
        "論文は5〜10億パラメータで4〜20倍と報告している。",
    )


def shares_text(numbers: Numbers, model: str) -> Words:
    """The share of direction from both origins, with and without the first key."""
    share = {
        name: Interval.of(
            [
                sum(row["shares"][name]) / len(row["shares"][name])
                for row in texts_of(numbers, model)
            ]
        ).mean
        for name in ("zero all", "mean all", "zero others", "mean others")
    }
    name = MODEL_NAMES[model]
    return Words(
        f"{name} {share['zero all']:.0%} from zero and {share['mean all']:.0%} from the mean key,"
        f" without the first key {share['zero others']:.0%} and {share['mean others']:.0%}",
        f"{name} はゼロから {share['zero all']:.0%}、平均キーから {share['mean all']:.0%}、"
        f"先頭のキーを除くと {share['zero others']:.0%} と {share['mean others']:.0%}",
    )


EXPERIMENT = Experiment(
    name="geometry",
    title=Words("Direction and length", "方向と長さ"),
    claim=Words(
        "A score is |q| |k| cos θ. What counts as length depends on the origin, which softmax does"
        " not see; from either origin, with the sink or without it, a real model loses more without"
        " the directions of its keys than without their lengths. Attention by angle alone learns as"
        " well, nGPT faster.",
        "スコアは |q| |k| cos θ である。"
        "何が長さかは原点の取り方で決まり、softmax はそれを区別しない。"
        "どちらの原点でも、シンクを含めても残しても、実モデルはキーの長さより方向の違いを失う方が損失が増える。"
        "角度だけの注意機構でも同じように学べ、nGPT はより速く学ぶ。",
    ),
    source="Loshchilov et al. 2024 (nGPT); Kobayashi et al. 2020; Xiao et al. 2023",
    equation=(
        "q·k = |q| |k| cos θ = |q| |k − c| cos θ_c + q·c;   softmax(s + const) = softmax(s);  "
        " equal: |k_j| → mean |k|,  cos θ_j → mean cos θ"
    ),
    look_for=Words(
        "orange far to the right of blue in every row; the share of direction, which moves with the"
        " origin; which curve falls first",
        "どの行でも橙が青よりずっと右にある。原点によって動く方向の割合。どの曲線が最初に下がるか",
    ),
    pilots=geometry_pilots,
    parts=geometry_parts,
    judge=judge_geometry,
    draw=draw_geometry_figures,
    summarize=summarize_geometry,
    settle=SETTLE,
    arms={kind: Words(NAMES[kind], JAPANESE[kind]) for kind in KINDS},
    corrections=(
        Words(
            "q·k is not a cosine: it becomes one only when q and k are both divided by their"
            " lengths.",
            "q·k はコサインではない。q と k をともに長さで割ったときだけコサインになる。",
        ),
        Words(
            "The share of direction in the score variance is no measure of its importance. From the"
            " mean key it is above one half wherever the lengths vary by less than their mean, also"
            " of keys on one ray; from zero it exceeds 100% where the sink's short key opposes it.",
            "スコアの分散に占める方向の割合は、その重要さを測らない。平均キーを原点にすると、"
            "長さのばらつきが平均より小さい限り、1本の半直線上のキーでも半分を超える。"
            "ゼロを原点にすると、シンクの短いキーが打ち消すため 100% を超える。",
        ),
    ),
)
