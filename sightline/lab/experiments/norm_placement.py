"""The placement of the norm decides how deep a model can be trained: Pre-LN, Post-LN, sandwich and
nGPT.

A run has failed if its loss is not finite, ends above its start, or ends no better than the unigram
frequencies without still falling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import (
    Check,
    Experiment,
    ExperimentPart,
    Numbers,
    Plan,
    Words,
    part_fields,
)
from sightline.lab.measures.norm_measures import (
    WARMUP,
    Form,
    compare_norm_formulas,
    has_failed,
    measure_gradient,
    train_placement,
)
from sightline.lab.statistics import (
    Interval,
    all_hold,
    lies_above,
    lies_below,
    lies_within,
    paired_difference,
)
from sightline.lab.style import COLOURS, new_figure, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS: dict[Form, str] = {
    "pre": "Pre-LN",
    "post": "Post-LN",
    "sandwich": "sandwich",
    "sphere": "nGPT",
}
SEEDS = {"quick": 3, "default": 3, "full": 8}
DRAWS = {"quick": 6, "default": 12, "full": 24}  # weight initialisations per depth
GRADIENT_DEPTHS = {
    "quick": (2, 4, 8, 16),
    "default": (2, 4, 8, 16, 32),
    "full": (2, 4, 8, 16, 32, 64),
}
DEPTHS = {"quick": (2, 5), "default": (2, 4, 6), "full": (2, 4, 8, 16)}
RATES = {"quick": (16, 64), "default": (4, 16, 64), "full": (2, 4, 8, 16, 32, 64)}  # thousandths


def norm_placement_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    seeds = range(seed, seed + SEEDS[tier])
    gradients = [
        ExperimentPart(
            f"gradient.{form}.depth-{depth}.seed-{n}",
            lambda form=form, depth=depth, n=n: measure_gradient(form, depth, n),
        )
        for form, depth, n in product(FORMS, GRADIENT_DEPTHS[tier], range(seed, seed + DRAWS[tier]))
    ]
    runs = [
        ExperimentPart(
            run_name(form, depth, warmup, rate, n),
            lambda form=form, d=depth, w=warmup, r=rate, n=n: train_placement(
                form, d, w, r / 1000, n
            ),
        )
        for n, form, depth, warmup, rate in product(
            seeds, FORMS, DEPTHS[tier], (0, WARMUP), RATES[tier]
        )
        if tier != "quick"
        or form == "post"
        or (not warmup and (form == "pre" or rate == RATES[tier][-1]))
    ]
    return [ExperimentPart("formula", compare_norm_formulas), *gradients, *runs]


def run_name(form: str, depth: int, warmup: int, rate: int, seed: int) -> str:
    return f"run.{form}.depth-{depth}.warmup-{warmup}.rate-{rate}e-3.seed-{seed}"


# ---------------------------------------------------------------------------------------- verdict


def select_parts(numbers: Numbers, **requested: object) -> dict[str, Any]:
    """The parts whose name has these fields."""
    fields = {name: part_fields(name) for name in numbers if name != "formula"}
    return {
        name: numbers[name]
        for name, found_fields in fields.items()
        if all(found_fields.get(key) == str(value) for key, value in requested.items())
    }


def field_values(numbers: Numbers, what: str, kind: str = "gradient") -> list[str]:
    """All values of one field (seed, depth, rate, …)."""
    values = {part_fields(name)[what] for name in numbers if name.startswith(kind)}
    return sorted(values, key=float)


def depth_exponent(numbers: Numbers, form: Form, which: str, layer: int) -> Interval:
    """p of |∂loss/∂W| ∝ depth^p, a least-squares fit per seed."""
    import numpy as np

    depths = field_values(numbers, "depth")
    exponents: list[float] = []
    for seed in field_values(numbers, "seed"):
        rows = [
            next(
                iter(
                    select_parts(
                        numbers, kind="gradient", form=form, depth=depth, seed=seed
                    ).values()
                )
            )
            for depth in depths
        ]
        logs = np.log(
            [[float(depth), row[which][layer]] for depth, row in zip(depths, rows, strict=True)]
        )
        exponents.append(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))
    return Interval.of(exponents)


def failure_shares(numbers: Numbers, **fields: object) -> list[float]:
    """The share of failed runs, per seed."""
    of_seeds = [
        select_parts(numbers, kind="run", seed=seed, **fields).values()
        for seed in field_values(numbers, "seed", "run")
    ]
    return [sum(has_failed(row) for row in rows) / max(1, len(rows)) for rows in of_seeds]


def judge_norm_placement(numbers: Numbers) -> Sequence[Check]:
    post, pre = (depth_exponent(numbers, form, "down", -1) for form in ("post", "pre"))
    deep = field_values(numbers, "depth", "run")
    harm = paired_difference(
        failure_shares(numbers, form="post", warmup=0),
        failure_shares(numbers, form="pre", warmup=0),
    )
    cure = paired_difference(
        failure_shares(numbers, form="post", warmup=0),
        failure_shares(numbers, form="post", warmup=WARMUP),
    )
    depth = paired_difference(
        failure_shares(numbers, form="post", warmup=0, depth=deep[-1]),
        failure_shares(numbers, form="post", warmup=0, depth=deep[0]),
    )
    others = {
        form: Interval.of(failure_shares(numbers, form=form, warmup=0))
        for form in FORMS
        if form != "post"
    }
    return [
        Check(
            Words(
                "Pre-LN: the last layer's gradient falls as depth^p, p in −0.5 ± 0.2",
                "Pre-LN：最終層の勾配は 深さ^p で減る（p は −0.5 ± 0.2）",
            ),
            lies_within(pre, -0.7, -0.3),
            f"p {pre}",
        ),
        Check(
            Words("Post-LN: it does not (p in 0 ± 0.2)", "Post-LN：減らない（p は 0 ± 0.2）"),
            lies_within(post, -0.2, 0.2),
            f"p {post}",
        ),
        Check(
            Words(
                "without warm-up, Post-LN fails more often than Pre-LN at the same rates",
                "ウォームアップなしでは、同じ学習率で Post-LN の方が Pre-LN より多く失敗する",
            ),
            lies_above(harm, 0),
            f"share of failed runs, Post-LN − Pre-LN: {harm}",
        ),
        Check(
            Words(
                f"Post-LN of {deep[-1]} layers fails more often than of {deep[0]}",
                f"{deep[-1]}層の Post-LN は{deep[0]}層より多く失敗する",
            ),
            lies_above(depth, 0),
            f"{deep[-1]} − {deep[0]} layers: {depth}",
        ),
        Check(
            Words(
                "warm-up reduces the failures of Post-LN", "ウォームアップは Post-LN の失敗を減らす"
            ),
            lies_above(cure, 0),
            f"without − with: {cure}",
        ),
        Check(
            Words(
                "Pre-LN, sandwich and nGPT need no warm-up: without it less than 10% fail",
                "Pre-LN・サンドイッチ・nGPT には不要：なしでも失敗は10%未満",
            ),
            all_hold([lies_below(share, 0.1) for share in others.values()]),
            ", ".join(f"{FORMS[form]} {others[form]}" for form in FORMS if form in others),
        ),
        norm_check(numbers["formula"]),
    ]


def norm_check(differences: Mapping[str, Sequence[float]]) -> Check:
    """The layer matches √(variance + ε) at every input scale; the other formulas do not."""
    same, other, unbiased = (max(differences[name]) for name in ("root", "sum", "unbiased"))
    return Check(
        Words(
            "LayerNorm divides by √(variance + ε), biased variance; std + ε and the unbiased"
            " variance give other numbers",
            "LayerNorm は √(分散 + ε)（標本数で割る分散）で割る。std + ε や不偏分散では値が変わる",
        ),
        same < 1e-9 < min(other, unbiased),
        f"largest relative difference: root {same:.0e}, std + ε {other:.2g}, unbiased"
        f" {unbiased:.2g}",
    )


# --------------------------------------------------------------------------- figures and summary


def draw_norm_placement(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (layers, depths) = new_figure(2, width=5.0)
    deepest = field_values(numbers, "depth")[-1]
    for number, form in enumerate(FORMS):
        rows = list(select_parts(numbers, kind="gradient", form=form, depth=deepest).values())
        by_layer = [
            Interval.of(list(layer)) for layer in zip(*(row["down"] for row in rows), strict=True)
        ]
        plot_mean(
            layers,
            [n + 1.0 for n in range(int(deepest))],
            by_layer,
            label=FORMS[form],
            number=number,
        )
        by_depth = [
            [
                row["down"][-1]
                for row in select_parts(numbers, kind="gradient", form=form, depth=d).values()
            ]
            for d in field_values(numbers, "depth")
        ]
        plot_mean(
            depths,
            [float(d) for d in field_values(numbers, "depth")],
            [Interval.of(row) for row in by_depth],
            label=FORMS[form],
            number=number,
        )
    layers.set(
        yscale="log",
        xlabel="layer",
        ylabel="|∂loss/∂W|",
        title=f"At initialisation, {deepest} layers",
    )
    depths.set(
        yscale="log",
        xlabel="layers of the model",
        ylabel="|∂loss/∂W|",
        title="Gradient of the last layer",
    )
    depths.set_xscale("log", base=2)
    depths.set_xticks(
        [float(d) for d in field_values(numbers, "depth")], labels=field_values(numbers, "depth")
    )
    layers.legend(frameon=False, ncols=2, loc="center right")
    return {"norm-placement-gradients": figure, "norm-placement-failures": draw_failures(numbers)}


def draw_failures(numbers: Numbers) -> Figure:
    """Failed runs per depth and learning rate."""
    figure, panels = new_figure(len(FORMS), width=2.9, height=3.0)
    for axes, form in zip(panels, FORMS, strict=True):
        settings = [
            (depth, warmup)
            for depth in field_values(numbers, "depth", "run")
            for warmup in (0, WARMUP)
        ]
        for (row, (depth, warmup)), (column, rate) in product(
            enumerate(settings), enumerate(field_values(numbers, "rate", "run"))
        ):
            runs = select_parts(
                numbers, kind="run", form=form, depth=depth, warmup=warmup, rate=rate
            ).values()
            draw_cell(axes, column, row, sum(has_failed(run) for run in runs), len(runs))
        rates = [f"{float(rate):g}" for rate in field_values(numbers, "rate", "run")]
        axes.set(
            xlim=(-0.5, len(rates) - 0.5),
            ylim=(len(settings) - 0.5, -0.5),
            xlabel="learning rate",
            title=FORMS[form],
        )
        axes.set_xticks(range(len(rates)), labels=rates)
        axes.set_yticks(
            range(len(settings)),
            labels=[f"{depth} layers" + ", warm-up" * bool(warmup) for depth, warmup in settings],
        )
        axes.tick_params(left=False, bottom=False, labelleft=form == "pre")
        axes.grid(False)
    figure.suptitle("Failed runs", fontsize=11)
    return figure


def draw_cell(axes: Axes, column: int, row: int, fails: int, runs: int) -> None:
    from matplotlib.patches import Rectangle

    share = fails / runs if runs else 0.0
    axes.add_patch(
        Rectangle(
            (column - 0.47, row - 0.45), 0.94, 0.9, facecolor=COLOURS[1], alpha=share, linewidth=0
        )
    )
    axes.add_patch(
        Rectangle(
            (column - 0.47, row - 0.45), 0.94, 0.9, fill=False, edgecolor="0.8", linewidth=0.6
        )
    )
    axes.text(
        column,
        row,
        f"{fails}/{runs}" if runs else "–",
        ha="center",
        va="center",
        fontsize=8,
        color="white" if share > 0.6 else "0.2",
    )


def summarize_norm_placement(numbers: Numbers) -> Words:
    """How runs fail, and how similar the hidden states of different tokens are at
    initialisation."""
    deepest = field_values(numbers, "depth")[-1]
    similarity = [
        Interval.of(
            [
                row["alike"]
                for row in select_parts(numbers, kind="gradient", form=f, depth=deepest).values()
            ]
        ).mean
        for f in FORMS
    ]
    failures = [row for row in select_parts(numbers, kind="run").values() if has_failed(row)]
    broken = sum(not row["finite"] for row in failures)
    stuck = sum(row["finite"] for row in failures)
    queries = [depth_exponent(numbers, form, "query", 0).mean for form in ("pre", "post")]
    quiet = Words(
        "" if broken else ": nothing diverges, the model ignores its input",
        "" if broken else "（発散ではなく、入力を無視するようになる）",
    )
    cosines = ", ".join(
        f"{name} {value:.2f}" for name, value in zip(FORMS.values(), similarity, strict=True)
    )
    return Words(
        f"Of {len(failures)} failed runs {broken} diverged and {stuck} stayed at the unigram"
        f" frequencies{quiet.en}. At {deepest} layers the untrained hidden states of different"
        " tokens"
        f" have a mean cosine of {cosines}; the gradient of the first layer's queries scales as"
        f" depth^{queries[1]:.1f} in Post-LN, depth^{queries[0]:.1f} in Pre-LN. Weights are"
        " Glorot-initialised at every depth; depth-scaled initialisation was not tried.",
        f"失敗した{len(failures)}回のうち、無限大に発散したのは{broken}回、"
        f"ユニグラム頻度の損失で止まったのは{stuck}回{quiet.ja}。"
        f"{deepest}層では、学習前の異なるトークンの隠れ状態の平均コサインは {cosines}。"
        "最初の層のクエリの勾配は "
        f"Post-LN で 深さ^{queries[1]:.1f}、Pre-LN で 深さ^{queries[0]:.1f}。重みはどの深さでも "
        "Glorot の初期値で、深さに応じて小さくする初期化は試していない。",
    )


EXPERIMENT = Experiment(
    name="norm-placement",
    title=Words("Placement of the norm", "正規化の位置"),
    claim=Words(
        "With the norm after the residual sum (Post-LN) the gradient of the last layers stays"
        " large at"
        " any depth, and training fails without warm-up; with the norm inside the branch"
        " (Pre-LN) it"
        " falls as 1/√depth, and no warm-up is needed.",
        "和のあとに正規化する Post-LN では、どれだけ深くしても最終層の勾配が大きいままで、"
        "ウォームアップなしでは学習に失敗する。"
        "枝の中で正規化する Pre-LN では勾配が 1/√深さ で小さくなり、ウォームアップは要らない。",
    ),
    source=(
        "Xiong et al. 2020, theorem 1; Liu et al. 2020; Noci et al. 2022; Loshchilov et al. 2024"
        " (nGPT)"
    ),
    equation=(
        "pre: x + f(norm(x));  post: norm(x + f(x));  sandwich: x + norm(f(norm(x)));  nGPT: unit(x"
        " + α (unit(f(x)) − x))"
    ),
    look_for=Words(
        "Post-LN's line of the last layer's gradient stays flat while Pre-LN's falls; the red"
        " squares"
        " of failed runs are Post-LN's",
        "最終層の勾配の図で Post-LN の線だけが平らに残り、Pre-LN の線は下がる。失敗を示す赤い升は"
        " Post-LN に集まる",
    ),
    parts=norm_placement_parts,
    judge=judge_norm_placement,
    draw=draw_norm_placement,
    summarize=summarize_norm_placement,
    corrections=(
        Words(
            "A norm divides by √(variance + ε) with the biased variance, not by the standard"
            " deviation + ε: at a standard deviation of √ε these differ by 41%, and a nearly"
            " constant"
            " input stays small, while the wrong formula scales it up to unit size.",
            "正規化は「標準偏差 + ε」ではなく √(分散 + ε) で割る（分散は n で割る）。ばらつきが √ε"
            " の入力では両者は 41% 違う。"
            "ほぼ一定の入力は小さいまま残るべきだが、誤った式では最大限に拡大されてしまう。",
        ),
    ),
)
