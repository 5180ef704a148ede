"""Scaling laws: a sweep of small models on real text, two laws fitted to it, and their prediction
for a held-out budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import (
    Check,
    Experiment,
    ExperimentPart,
    Numbers,
    Plan,
    Tier,
    Words,
)
from sightline.lab.measures.chinchilla_points import (
    GOPHER,
    PUBLISHED,
    REFITTED,
    published_check,
    published_sentence,
    refit_published,
    saved_fits,
)
from sightline.lab.measures.fitting import (
    Budget,
    Chinchilla,
    Kaplan,
    LossPoint,
    bootstrap,
    bootstrap_interval,
    fit_law,
    parabola_vertex,
    r_squared,
    slopes,
)
from sightline.lab.measures.scaling_runs import (
    CONTEXT,
    LEAST_STEPS,
    ScalingPlan,
    cost_of,
    parameters_of,
    steps_for,
    train_run,
)
from sightline.lab.statistics import (
    Interval,
    all_hold,
    decide_above,
    decide_below,
    lies_above,
    lies_below,
    paired_difference,
)
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESAMPLED = 100  # bootstrap samples of the sweep
SAMPLES = {"quick": 20, "default": 200, "full": 1000}  # of the bootstrap of the published points


EXPLAINED = 0.97  # of the variance: kept from the first version of this experiment
FACTOR = 2.0  # within which the fall and the best size are to be predicted: neither double nor half
KAPLAN_EXPONENT = 0.73
CHINCHILLA_EXPONENT = 0.5


WIDTHS = (12, 16, 24, 32, 48, 64, 96, 112)
RATES = (0.01, 0.02, 0.04, 0.08, 0.16)  # of Muon; AdamW, for embeddings and head, has 3/4 of it
PLANS: dict[Tier, ScalingPlan] = {
    "quick": ScalingPlan(
        dict.fromkeys((2e9, 4e9, 8e9), WIDTHS[:5]), 1.6e10, (12, 24, 32), 2, 1, RATES[1:4], 40, 1
    ),
    "default": ScalingPlan(
        {2.5e9: WIDTHS, 5e9: WIDTHS, 1e10: WIDTHS, 2e10: WIDTHS, 4e10: WIDTHS[1:]},
        8e10,
        (16, 24, 32, 48, 64),
        4,
        2,
        RATES,
        100,
        2,
    ),
    "full": ScalingPlan(
        dict.fromkeys((5e9, 1e10, 2e10, 4e10, 8e10, 1.6e11), WIDTHS),
        6.4e11,
        (24, 32, 48, 64, 96),
        5,
        2,
        RATES,
        200,
        3,
    ),
}


# ------------------------------------------------------------------------------------------- runs


def scaling_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Every width is tuned by the held-out loss of shorter runs, all of the same number of steps:
    as many as the shortest runs of the sweep have, or some more."""
    sizes = PLANS[tier]
    return pilot_parts(
        Grid(
            [arm_of(width) for width in sizes.arms],
            sizes.rates,
            sizes.pilots,
            f"steps-{sizes.pilot_steps}",
        ),
        lambda arm, rate, seed: {
            "score": train_run(width_of(arm), sizes.pilot_steps, rate, seed)["loss"]
        },
    )


def arm_of(width: int) -> str:
    return f"width-{width}"


def width_of(arm: str) -> int:
    return int(arm.removeprefix("width-"))


def scaling_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    sizes = PLANS[tier]
    rows = [
        ("sweep", flops, width, n)
        for n in plan.seeds(sizes.sweeps)[: sizes.sweeps]
        for flops, widths in sizes.sweep.items()
        for width in widths
    ]
    rows += [
        ("held-out", sizes.held_out, width, n)
        for n in plan.seeds(sizes.seeds)
        for width in sizes.widths
    ]
    published = ExperimentPart(
        f"published.samples-{SAMPLES[tier]}", lambda: refit_published(SAMPLES[tier])
    )
    runs = [
        run_part(kind, flops, width, plan.rate(arm_of(width)), seed)
        for kind, flops, width, seed in rows
        if steps_for(flops, width) >= LEAST_STEPS
    ]
    return [published, *runs]


def run_part(kind: str, flops: float, width: int, rate: float, seed: int) -> ExperimentPart:
    steps = steps_for(flops, width)
    return ExperimentPart(
        f"{kind}.flops-{flops:.3g}.width-{width}.steps-{steps}.rate-{rate:g}.seed-{seed}",
        lambda: train_run(width, steps, rate, seed),
    )


# ------------------------------------------------------------------------------------------- fits


def run_rows(numbers: Numbers, kind: str) -> list[dict[str, Any]]:
    """The runs of the sweep or of the held-out budget, with the budget from the part name."""
    named_rows = [(name, row) for name, row in numbers.items() if name.startswith(f"{kind}.flops-")]
    return [
        {**row, "budget": float(name.split("flops-")[1].split(".width")[0])}
        for name, row in named_rows
    ]


def loss_points(rows: Sequence[Mapping[str, Any]]) -> tuple[LossPoint, ...]:
    return tuple(LossPoint(row["parameters"], row["tokens"], row["loss"]) for row in rows)


@lru_cache(maxsize=8)
def fit_chinchilla(runs: tuple[LossPoint, ...]) -> tuple[Chinchilla, list[Chinchilla]]:
    """The fit and its bootstrap fits."""
    return fit_law(Chinchilla, runs), bootstrap(Chinchilla, runs, samples=RESAMPLED)


@lru_cache(maxsize=8)
def fit_kaplan(runs: tuple[LossPoint, ...]) -> Kaplan:
    return fit_law(Kaplan, runs)


def best_width(law: Chinchilla, flops: float) -> float:
    """The real-valued width with the lowest predicted loss at this budget, all FLOPs counted."""
    widths = [8 * 1.002**n for n in range(2000)]
    return min(widths, key=lambda width: law(parameters_of(width), flops / cost_of(width)))


def held_out_budget(numbers: Numbers) -> Budget:
    runs = loss_points(run_rows(numbers, "sweep"))
    rows = run_rows(numbers, "held-out")
    (law, _), other = fit_chinchilla(runs), fit_kaplan(runs)
    places = {int(row["width"]): (row["parameters"], row["tokens"]) for row in rows}
    losses = {
        width: [row["loss"] for row in rows if row["width"] == width] for width in sorted(places)
    }
    by_law, by_kaplan = ({width: fit(*places[width]) for width in losses} for fit in (law, other))
    return Budget(rows[0]["budget"], losses, by_law, by_kaplan)


def law_intervals(numbers: Numbers) -> dict[str, Interval]:
    """The parameters of the law with bootstrap intervals."""
    law, others = fit_chinchilla(loss_points(run_rows(numbers, "sweep")))
    names = ("E", "A", "B", "alpha", "beta", "exponent")
    return {
        name: bootstrap_interval(getattr(law, name), [getattr(other, name) for other in others])
        for name in names
    }


# ---------------------------------------------------------------------------------------- verdict


def published_row(numbers: Numbers) -> Mapping[str, Any]:
    return next(row for name, row in numbers.items() if name.startswith("published."))


def judge_scaling_laws(numbers: Numbers) -> Sequence[Check]:
    return [
        *law_checks(numbers),
        fall_check(numbers),
        *size_checks(numbers),
        exponent_check(law_intervals(numbers)["exponent"]),
        published_check(published_row(numbers)),
    ]


def law_checks(numbers: Numbers) -> list[Check]:
    runs = loss_points(run_rows(numbers, "sweep"))
    intervals = law_intervals(numbers)
    by_size, by_data = slopes(runs)
    share = {
        name: r_squared(fit, runs)
        for name, fit in (
            ("E + A/N^α + B/D^β", fit_chinchilla(runs)[0]),
            ("Kaplan's form", fit_kaplan(runs)),
        )
    }
    return [
        Check(
            Words(
                "a power law of N and D explains more than 97% of the variance of log L",
                "N と D のべき乗則が log L の分散の97%超を説明する",
            ),
            share["E + A/N^α + B/D^β"] > EXPLAINED,
            f"{len(runs)} runs; R² "
            + ", ".join(f"{value:.4f} ({name})" for name, value in share.items()),
        ),
        Check(
            Words(
                "loss falls with size at equal data, and with data at equal size: both slopes of"
                " log L are above 0",
                "損失は、同じデータ量ならサイズで、同じサイズならデータ量で下がる："
                "log L の傾きはどちらも0より大きい",
            ),
            all_hold([lies_above(slope, 0) for slope in (by_size, by_data)]),
            f"−∂ log L / ∂ log N {by_size}, −∂ log L / ∂ log D {by_data}; α {intervals['alpha']},"
            f" β {intervals['beta']}, E {intervals['E']}",
        ),
    ]


def reference_loss(numbers: Numbers) -> float:
    """The lowest mean loss of the largest fitted budget: what "no change" predicts."""
    rows = run_rows(numbers, "sweep")
    largest = max(row["budget"] for row in rows)
    by_width: dict[int, list[float]] = {}
    for row in rows:
        if row["budget"] == largest:
            by_width.setdefault(row["width"], []).append(row["loss"])
    return min(sum(losses) / len(losses) for losses in by_width.values())


def fall_check(numbers: Numbers) -> Check:
    """The fall from the best loss of the largest fitted budget. "No change" predicts none, and so
    cannot pass."""
    budget = held_out_budget(numbers)
    width = budget.chosen
    before = reference_loss(numbers)
    predicted = before - budget.predicted[width]
    measured = [before - loss for loss in budget.losses[width]]
    ratio = Interval.of([fall / predicted for fall in measured])
    error = Interval.of([loss / budget.predicted[width] - 1 for loss in budget.losses[width]])
    change = Interval.of([loss / before - 1 for loss in budget.losses[width]])
    return Check.over_seeds(
        Words(
            "the fall of the loss to a budget at least twice the largest fitted one is predicted"
            " within a factor of 2 (no change would be a fall of 0)",
            "当てはめに使った最大の2倍以上の予算までの損失の低下を、2倍以内の精度で予測できる"
            "（「変化なし」なら低下は0）",
        ),
        f"{budget.flops:.3g} FLOP, width {width}: from {before:.4f}, predicted"
        f" {budget.predicted[width]:.4f}, measured / predicted fall {ratio}; relative error of the"
        f" law {error}, of no change {change}",
        decide_above(ratio if predicted > 0 else Interval.of([]), 1 / FACTOR),
        decide_below(ratio if predicted > 0 else Interval.of([]), FACTOR),
    )


def size_checks(numbers: Numbers) -> list[Check]:
    """The best size of the held-out budget, and its ends."""
    budget = held_out_budget(numbers)
    width = budget.chosen
    ends = (min(budget.losses), max(budget.losses))
    worse = {end: paired_difference(budget.losses[end], budget.losses[width]) for end in ends}
    is_inside = width not in ends
    ratio = best_size_ratio(budget)
    chosen = [decide_above(gap if is_inside else Interval.of([]), 0) for gap in worse.values()]
    return [
        Check.over_seeds(
            Words(
                "the best size is predicted within a factor of 2 (the vertex of a parabola through"
                " the predicted losses against that through the measured ones, at the same sizes)",
                "最適なサイズを2倍以内の精度で予測できる（同じサイズでの予測損失と測定損失を通る"
                "放物線の頂点の比較）",
            ),
            f"measured / predicted N {ratio}; law: width"
            f" {best_width(fit_of(numbers), budget.flops):.0f}; {format_losses(budget)}",
            decide_above(ratio, 1 / FACTOR),
            decide_below(ratio, FACTOR),
        ),
        Check.over_seeds(
            Words(
                "at the same budget the smallest and the largest size are worse",
                "同じ予算で最小と最大のサイズは劣る",
            ),
            ", ".join(f"width {end}: +{gap}" for end, gap in worse.items()),
            *chosen,
        ),
    ]


def fit_of(numbers: Numbers) -> Chinchilla:
    return fit_chinchilla(loss_points(run_rows(numbers, "sweep")))[0]


def best_size_ratio(budget: Budget) -> Interval:
    """Per seed: the measured best N over the predicted, both by the vertex of a parabola through
    the same sizes, so that its bias does not count. Undefined where one has no minimum."""
    sizes = [parameters_of(width) for width in budget.losses]
    predicted = parabola_vertex(sizes, [budget.predicted[width] for width in budget.losses])
    measured = [
        parabola_vertex(sizes, list(losses)) for losses in zip(*budget.losses.values(), strict=True)
    ]
    found = [vertex for vertex in measured if vertex is not None]
    if predicted is None or len(found) < len(measured):
        return Interval.of([])
    return Interval.ratio([vertex / predicted for vertex in found])


def exponent_check(exponent: Interval) -> Check:
    return Check(
        Words(
            "the best size grows more slowly with compute than by Kaplan's exponent: N_best ∝ C^a"
            " with a < 0.73",
            "最適なサイズは Kaplan の指数よりゆっくり計算量とともに増える：N_best ∝ C^a、a < 0.73",
        ),
        lies_below(exponent, KAPLAN_EXPONENT),
        f"a {exponent}",
    )


def format_losses(budget: Budget) -> str:
    return ", ".join(f"{width}: {Interval.of(losses)}" for width, losses in budget.losses.items())


def summarize_scaling_laws(numbers: Numbers) -> Words:
    """The laws, the bias of parabolas, and the tokens per parameter that the published laws
    recommend."""
    sentences = [
        laws_sentence(numbers),
        exponent_sentence(law_intervals(numbers)["exponent"]),
        bias_sentence(numbers),
        published_sentence(published_row(numbers)),
    ]
    return Words(
        " ".join(sentence.en for sentence in sentences),
        "".join(sentence.ja for sentence in sentences),
    )


def exponent_sentence(exponent: Interval) -> Words:
    """Whether Chinchilla's exponent is inside the interval."""
    is_inside = exponent.low <= CHINCHILLA_EXPONENT <= exponent.high
    en = "contains" if is_inside else "excludes"
    ja = "を含む" if is_inside else "を含まない"
    return Words(
        f"The interval of a, {exponent}, {en} Chinchilla's {CHINCHILLA_EXPONENT}; in models this"
        " small attention and the head are a large part of the cost, which changes a.",
        f"a の区間 {exponent} は Chinchilla の {CHINCHILLA_EXPONENT} {ja}。"
        "これほど小さいモデルでは注意と出力層が費用の大きな部分を占め、a を変える。",
    )


def laws_sentence(numbers: Numbers) -> Words:
    runs = loss_points(run_rows(numbers, "sweep"))
    budget = held_out_budget(numbers)
    (law, _), other = fit_chinchilla(runs), fit_kaplan(runs)
    ours = f"L = {law.E:.3g} + {law.A:.3g}/N^{law.alpha:.3f} + {law.B:.3g}/D^{law.beta:.3f}"
    theirs = (
        f"α_N {other.alpha_n:.3f}, α_D {other.alpha_d:.3f}, N_c {other.N_c:.2g}, D_c"
        f" {other.D_c:.2g}"
    )
    errors = f"{budget.error(budget.predicted):.1%}", f"{budget.error(budget.by_kaplan):.1%}"
    wide = f"{best_width(law, budget.flops):.0f}"
    return Words(
        f"{len(runs)} runs give {ours}; Kaplan's form gives {theirs}. For {budget.flops:.3g} FLOP"
        f" the first recommends a width of {wide}, counting attention and the head, which matter in"
        f" models this small. Over all sizes of that budget its mean error is {errors[0]}, that of"
        f" Kaplan's form {errors[1]}. E is a parameter of the fit, for {CONTEXT} characters of"
        " context and a narrow range, not the entropy of the text; and the shortest runs, of little"
        f" more than {LEAST_STEPS} steps, are far from converged.",
        f"{len(runs)}回の学習から {ours} が得られ、Kaplan の形では {theirs}。{budget.flops:.3g}"
        f" FLOP に対し前者は幅 {wide}"
        " を選ぶ（これほど小さいモデルでは無視できない注意と出力層の計算も費用に含む）。"
        f"この予算の全サイズでの平均誤差は {errors[0]}、Kaplan の形では {errors[1]}。E"
        f" は文脈{CONTEXT}文字・狭い範囲での当てはめの値で、文章のエントロピーではない。"
        f"また最も短い{LEAST_STEPS}ステップ余りの学習は、収束にはほど遠い。",
    )


def bias_sentence(numbers: Numbers) -> Words:
    bias = f"{max(parabola_biases(numbers), key=abs):+.0%}"
    return Words(
        "Parabolas fitted to isoFLOP curves are biased: fitted to the law's own noise-free losses"
        f" at our sizes, their vertex differs from the law's best N by up to {bias}. So the"
        " measured vertex is compared with that of the law's losses at the same sizes, which has"
        " the same bias.",
        "isoFLOP 曲線への放物線当てはめには偏りがある。ノイズのない法則自身の値に当てはめても、"
        f"頂点は法則の最適 N から最大 {bias} ずれる。"
        "そのため測定した頂点は、同じ偏りをもつ、同じサイズでの法則の値の頂点と比べる。",
    )


def parabola_biases(numbers: Numbers) -> list[float]:
    """Per budget: the vertex of a parabola fitted to the law's own losses at our sizes, relative to
    the law's best N."""
    rows = run_rows(numbers, "sweep")
    law, _ = fit_chinchilla(loss_points(rows))
    biases: list[float] = []
    for flops in sorted({row["budget"] for row in rows}):
        widths = sorted({row["width"] for row in rows if row["budget"] == flops})
        losses = [law(parameters_of(width), flops / cost_of(width)) for width in widths]
        vertex = (
            parabola_vertex([parameters_of(width) for width in widths], losses)
            if len(widths) > 2
            else None
        )
        if vertex is not None:
            biases.append(vertex / parameters_of(best_width(law, flops)) - 1)
    return biases or [0.0]


def draw_scaling_laws(numbers: Numbers) -> Mapping[str, Figure]:
    from sightline.lab.measures.scaling_pictures import draw_budgets, draw_laws

    rows, (best, others) = run_rows(numbers, "sweep"), saved_fits(published_row(numbers))
    law, _ = fit_chinchilla(loss_points(rows))
    held_rows = run_rows(numbers, "held-out")
    ratio_lines = {"published in 2022": PUBLISHED, "refitted in 2024": REFITTED}
    return {
        "scaling-laws": draw_laws(
            rows,
            held_rows,
            law,
            fit_kaplan(loss_points(rows)),
            cost_of=cost_of,
            parameters_of=parameters_of,
        ),
        "scaling-laws-budgets": draw_budgets(ratio_lines, best, others, budget=GOPHER),
    }


EXPERIMENT = Experiment(
    name="scaling-laws",
    title=Words(
        "How loss falls with size, data and compute", "損失はサイズ・データ・計算量でどう下がるか"
    ),
    claim=Words(
        "Loss falls as a power law of parameters and tokens, so that small runs predict how far it"
        " falls, and the best size, at a larger budget.",
        "損失はパラメータ数とトークン数のべき乗則で下がる。だから小さな実験から、"
        "より大きな予算での損失の低下と最適なサイズが分かる。",
    ),
    source="Kaplan et al. 2020; Hoffmann et al. 2022 (approach 3); Besiroglu et al. 2024",
    equation=(
        "L(N, D) = E + A/N^α + B/D^β,   L(N, D) = [(N_c/N)^(α_N/α_D) + D_c/D]^α_D,   C ≈ 6 N D + 12"
        " · layers · width · time · D"
    ),
    look_for=Words(
        "each budget's curve has a minimum, which moves to larger sizes as the budget grows; the"
        " held-out budget lies on its predicted line",
        "予算ごとの曲線に底があり、予算が増えると底は大きいサイズへ動く。"
        "学習に使わなかった予算も予測線の上に乗る",
    ),
    parts=scaling_parts,
    pilots=scaling_pilots,
    settle=12,
    arms={arm_of(width): Words(f"width {width}", f"幅 {width}") for width in WIDTHS},
    judge=judge_scaling_laws,
    draw=draw_scaling_laws,
    summarize=summarize_scaling_laws,
    corrections=(
        Words(
            "E 1.69, A 406.4, B 410.7, α 0.34, β 0.28 are printed everywhere as Chinchilla's law,"
            " but do not fit Chinchilla's own points; the refitted numbers do.",
            "E 1.69、A 406.4、B 410.7、α 0.34、β 0.28 は Chinchilla の法則として広く引用されるが、"
            "Chinchilla 自身の点に合わない。"
            "当てはめ直した値は合う。",
        ),
        Words(
            "A parabola through an isoFLOP curve is biased unless α = β: the curve is not symmetric"
            " in log N.",
            "α = β でない限り、isoFLOP 曲線への放物線当てはめには偏りがある。曲線は log N"
            " について対称ではない。",
        ),
    ),
)
