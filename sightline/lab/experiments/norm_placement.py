"""Where the norm stands decides how deep a model can be trained: Pre-LN, Post-LN, sandwich and
nGPT.

A run has failed where its loss is not finite or above its start, or where it ends no better than
the letters' frequencies and not falling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.measures.norm_measures import WARMUP, Form, failed, formula, gradient, training
from sightline.lab.statistics import Interval, above, below, differences, within
from sightline.lab.style import COLOURS, figure, line

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
DRAWS = {"quick": 6, "default": 12, "full": 24}  # weights whose gradients are taken
SLOPES = {"quick": (2, 4, 8, 16), "default": (2, 4, 8, 16, 32), "full": (2, 4, 8, 16, 32, 64)}
DEPTHS = {"quick": (2, 5), "default": (2, 4, 6), "full": (2, 4, 8, 16)}
RATES = {"quick": (16, 64), "default": (4, 16, 64), "full": (2, 4, 8, 16, 32, 64)}  # thousandths


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    seeds = range(seed, seed + SEEDS[tier])
    gradients = [
        Part(
            f"gradient.{form}.depth-{depth}.seed-{n}",
            lambda form=form, depth=depth, n=n: gradient(form, depth, n),
        )
        for form, depth, n in product(FORMS, SLOPES[tier], range(seed, seed + DRAWS[tier]))
    ]
    runs = [
        Part(
            run_name(form, depth, warmup, rate, n),
            lambda form=form, d=depth, w=warmup, r=rate, n=n: training(form, d, w, r / 1000, n),
        )
        for n, form, depth, warmup, rate in product(
            seeds, FORMS, DEPTHS[tier], (0, WARMUP), RATES[tier]
        )
        if tier != "quick"
        or form == "post"
        or (not warmup and (form == "pre" or rate == RATES[tier][-1]))
    ]
    return [Part("formula", formula), *gradients, *runs]


def run_name(form: str, depth: int, warmup: int, rate: int, seed: int) -> str:
    return f"run.{form}.depth-{depth}.warmup-{warmup}.rate-{rate}e-3.seed-{seed}"


# ------------------------------------------------------------------------------------ the verdict


def named(name: str) -> dict[str, str]:
    """`run.post.depth-4.seed-1` → form post, depth 4, seed 1."""
    kind, form, *rest = name.split(".")
    return {"kind": kind, "form": form, **dict(one.split("-", 1) for one in rest)}


def chosen(numbers: Numbers, **wanted: object) -> dict[str, Any]:
    """The parts whose names say so."""
    known = {name: named(name) for name in numbers if name != "formula"}
    return {
        name: numbers[name]
        for name, says in known.items()
        if all(says.get(key) == str(value) for key, value in wanted.items())
    }


def values(numbers: Numbers, what: str, kind: str = "gradient") -> list[str]:
    """All seeds, depths, rates, … that there are."""
    found = {named(name)[what] for name in numbers if name.startswith(kind)}
    return sorted(found, key=float)


def slopes(numbers: Numbers, form: Form, which: str, layer: int) -> Interval:
    """p of |∂loss/∂W| ∝ depth^p, a line through all depths, seed by seed."""
    import numpy as np

    depths = values(numbers, "depth")
    found: list[float] = []
    for seed in values(numbers, "seed"):
        rows = [
            next(iter(chosen(numbers, kind="gradient", form=form, depth=depth, seed=seed).values()))
            for depth in depths
        ]
        logs = np.log(
            [[float(depth), row[which][layer]] for depth, row in zip(depths, rows, strict=True)]
        )
        found.append(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))
    return Interval.of(found)


def shares(numbers: Numbers, **wanted: object) -> list[float]:
    """Seed by seed, the part of the runs that failed."""
    of_seeds = [
        chosen(numbers, kind="run", seed=seed, **wanted).values()
        for seed in values(numbers, "seed", "run")
    ]
    return [sum(failed(row) for row in rows) / max(1, len(rows)) for rows in of_seeds]


def judge(numbers: Numbers) -> Sequence[Check]:
    post, pre = (slopes(numbers, form, "down", -1) for form in ("post", "pre"))
    deep = values(numbers, "depth", "run")
    harm = differences(
        shares(numbers, form="post", warmup=0), shares(numbers, form="pre", warmup=0)
    )
    cure = differences(
        shares(numbers, form="post", warmup=0), shares(numbers, form="post", warmup=WARMUP)
    )
    depth = differences(
        shares(numbers, form="post", warmup=0, depth=deep[-1]),
        shares(numbers, form="post", warmup=0, depth=deep[0]),
    )
    others = {
        form: Interval.of(shares(numbers, form=form, warmup=0)) for form in FORMS if form != "post"
    }
    return [
        Check(
            Words(
                "Pre-LN: the last layer's gradient falls as depth^p, p in −0.5 ± 0.2",
                "Pre-LN：最終層の勾配は 深さ^p で減る（p は −0.5 ± 0.2）",
            ),
            within(pre, -0.7, -0.3),
            f"p {pre}",
        ),
        Check(
            Words("Post-LN: it does not (p in 0 ± 0.2)", "Post-LN：減らない（p は 0 ± 0.2）"),
            within(post, -0.2, 0.2),
            f"p {post}",
        ),
        Check(
            Words(
                "without warm-up, Post-LN fails more often than Pre-LN at the same rates",
                "ウォームアップなしでは、同じ学習率で Post-LN の方が Pre-LN より多く失敗する",
            ),
            above(harm, 0),
            f"share of failed runs, Post-LN − Pre-LN: {harm}",
        ),
        Check(
            Words(
                f"Post-LN of {deep[-1]} layers fails more often than of {deep[0]}",
                f"{deep[-1]}層の Post-LN は{deep[0]}層より多く失敗する",
            ),
            above(depth, 0),
            f"{deep[-1]} − {deep[0]} layers: {depth}",
        ),
        Check(
            Words("warm-up saves runs of Post-LN", "ウォームアップは Post-LN の失敗を減らす"),
            above(cure, 0),
            f"without − with: {cure}",
        ),
        Check(
            Words(
                "Pre-LN, sandwich and nGPT need none: without it less than 10% fail",
                "Pre-LN・サンドイッチ・nGPT には不要：なしでも失敗は10%未満",
            ),
            all_of([below(share, 0.1) for share in others.values()]),
            ", ".join(f"{FORMS[form]} {others[form]}" for form in FORMS if form in others),
        ),
        norm_check(numbers["formula"]),
    ]


def all_of(holds: Sequence[bool | None]) -> bool | None:
    return False if False in holds else None if None in holds else True


def norm_check(found: Mapping[str, Sequence[float]]) -> Check:
    """The layer is the root formula at every spread; the others are elsewhere."""
    same, other, unbiased = (max(found[name]) for name in ("root", "sum", "unbiased"))
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


# ---------------------------------------------------------------------------------- seen and told


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, (layers, depths) = figure(2, width=5.0)
    deepest = values(numbers, "depth")[-1]
    for number, form in enumerate(FORMS):
        rows = list(chosen(numbers, kind="gradient", form=form, depth=deepest).values())
        by_layer = [
            Interval.of(list(layer)) for layer in zip(*(row["down"] for row in rows), strict=True)
        ]
        line(
            layers,
            [n + 1.0 for n in range(int(deepest))],
            by_layer,
            label=FORMS[form],
            number=number,
        )
        by_depth = [
            [
                row["down"][-1]
                for row in chosen(numbers, kind="gradient", form=form, depth=d).values()
            ]
            for d in values(numbers, "depth")
        ]
        line(
            depths,
            [float(d) for d in values(numbers, "depth")],
            [Interval.of(row) for row in by_depth],
            label=FORMS[form],
            number=number,
        )
    layers.set(
        yscale="log",
        xlabel="layer",
        ylabel="|∂loss/∂W|",
        title=f"Before the first step, {deepest} layers",
    )
    depths.set(
        yscale="log",
        xlabel="layers of the model",
        ylabel="|∂loss/∂W|",
        title="The last layer's gradient",
    )
    depths.set_xscale("log", base=2)
    depths.set_xticks([float(d) for d in values(numbers, "depth")], labels=values(numbers, "depth"))
    layers.legend(frameon=False, ncols=2, loc="center right")
    return {"norm-placement-gradients": made, "norm-placement-failures": draw_failures(numbers)}


def draw_failures(numbers: Numbers) -> Figure:
    """How many runs of how many failed, for each depth and rate."""
    made, panels = figure(len(FORMS), width=2.9, height=3.0)
    for axes, form in zip(panels, FORMS, strict=True):
        settings = [
            (depth, warmup) for depth in values(numbers, "depth", "run") for warmup in (0, WARMUP)
        ]
        for (row, (depth, warmup)), (column, rate) in product(
            enumerate(settings), enumerate(values(numbers, "rate", "run"))
        ):
            runs = chosen(
                numbers, kind="run", form=form, depth=depth, warmup=warmup, rate=rate
            ).values()
            draw_cell(axes, column, row, sum(failed(run) for run in runs), len(runs))
        rates = [f"{float(rate):g}" for rate in values(numbers, "rate", "run")]
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
    made.suptitle("Runs that failed", fontsize=11)
    return made


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


def told(numbers: Numbers) -> Words:
    """What failing looks like, and how alike the tokens of a deep model are before it learns."""
    deepest = values(numbers, "depth")[-1]
    alike = [
        Interval.of(
            [
                row["alike"]
                for row in chosen(numbers, kind="gradient", form=f, depth=deepest).values()
            ]
        ).mean
        for f in FORMS
    ]
    lost = [row for row in chosen(numbers, kind="run").values() if failed(row)]
    broken = sum(not row["finite"] for row in lost)
    stuck = sum(row["finite"] for row in lost)
    queries = [slopes(numbers, form, "query", 0).mean for form in ("pre", "post")]
    quiet = Words(
        "" if broken else ": nothing explodes, the model stops seeing its input",
        "" if broken else "（爆発ではなく、入力を見なくなる）",
    )
    said = ", ".join(
        f"{name} {value:.2f}" for name, value in zip(FORMS.values(), alike, strict=True)
    )
    return Words(
        f"Of {len(lost)} failed runs {broken} became infinite and {stuck} stuck at the letters'"
        f" frequencies{quiet.en}. At {deepest} layers the untrained states of different tokens have"
        f" a mean cosine of {said}; the gradient of the first queries goes as"
        f" depth^{queries[1]:.1f} in Post-LN, depth^{queries[0]:.1f} in Pre-LN. Weights are"
        " Glorot's at every depth; a start with smaller steps in deeper models was not tried"
        " here.",
        f"失敗した{len(lost)}回のうち、無限大に発散したのは{broken}回、"
        f"文字の頻度のところで止まったのは{stuck}回{quiet.ja}。"
        f"{deepest}層では、学習前の異なるトークンの状態の平均コサインは {said}。"
        "最初の層のクエリの勾配は "
        f"Post-LN で 深さ^{queries[1]:.1f}、Pre-LN で 深さ^{queries[0]:.1f}。重みはどの深さでも "
        "Glorot の初期値で、深いほど残差への書き込みを小さく始める方法は試していない。",
    )


EXPERIMENT = Experiment(
    name="norm-placement",
    title=Words("Where the norm stands", "正規化をどこに置くか"),
    claim=Words(
        "With the norm after the sum (Post-LN) the last layers' gradient stays large however deep"
        " the model, and training fails without warm-up; with the norm inside (Pre-LN) it falls as"
        " 1/√depth, and no warm-up is needed.",
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
        "one line of the last layer's gradient stays level while Pre-LN's falls; the red squares of"
        " failed runs are Post-LN's",
        "最終層の勾配の図で Post-LN の線だけが平らに残り、Pre-LN の線は下がる。失敗を示す赤い升は"
        " Post-LN に集まる",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "A norm divides by √(variance + ε) with the biased variance, not by the standard"
            " deviation + ε: at a spread of √ε these differ by 41%, and an input that hardly varies"
            " stays small, where the wrong form blows it up to full size.",
            "正規化は「標準偏差 + ε」ではなく √(分散 + ε) で割る（分散は n で割る）。ばらつきが √ε"
            " の入力では両者は 41% 違う。"
            "ほぼ一定の入力は小さいまま残るべきだが、誤った式では最大限に拡大されてしまう。",
        ),
    ),
)
