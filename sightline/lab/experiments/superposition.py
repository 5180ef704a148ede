"""Superposition: a layer represents more features than it has dimensions, if they are sparse; and a
sparse autoencoder looks for such features in a real model.

    toy     x' = ReLU(Wᵀ W x + b)       20 features in 5 dimensions; dense features as the control
    real    x̂ = b + W_d top_k(W_e x)    the residual stream of stories15m, 16 atoms per token
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from sightline.lab.measures.sparse_autoencoder import (
    ACTIVE,
    ATOMS,
    LAYER,
    MODEL,
    TOP,
    measure_dictionaries,
    stream_of_stories,
    trained_autoencoder,
)
from sightline.lab.measures.toy_superposition import DIMENSIONS, FEATURES, train_toy
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    decide_count_above,
    paired_difference,
)
from sightline.lab.style import COLOURS, new_figure, plot_mean
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.lab.measures.sparse_autoencoder import Autoencoder, Stream


@dataclass(frozen=True, slots=True)
class SuperpositionPlan:
    """The steps and seeds of the toy model; the stories, steps and seeds of the autoencoder."""

    toy_steps: int
    toy_seeds: int
    toy_pilots: int
    stories: int
    length: int
    steps: int
    seeds: int

    @property
    def coder(self) -> str:
        return f"stories-{self.stories}.length-{self.length}.steps-{self.steps}"


PLANS: dict[Tier, SuperpositionPlan] = {
    "quick": SuperpositionPlan(300, 3, 1, 12, 60, 60, 2),
    "default": SuperpositionPlan(2000, 8, 2, 144, 120, 800, 4),
    "full": SuperpositionPlan(10000, 16, 3, 960, 200, 8000, 8),
}
DENSITIES: dict[Tier, tuple[float, ...]] = {
    "quick": (1.0, 0.03),
    "default": (1.0, 0.3, 0.1, 0.03, 0.01),
    "full": (1.0, 0.3, 0.1, 0.03, 0.01, 0.003),
}
DENSE, SPARSE = 1.0, 0.03  # compared by the checks; the others are for the figure
TOY_RATES: dict[Tier, tuple[float, ...]] = {
    "quick": (1e-2, 3e-2, 0.1),
    "default": (1e-3, 3e-3, 1e-2, 3e-2, 0.1),
    "full": (1e-3, 3e-3, 1e-2, 3e-2, 0.1),
}
CODER_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
CODER = "autoencoder"
PILOT_TEXT = 0  # the seed of the stories of the pilots
HALF = 0.5  # of the seeds: a coin's toss
SAME = 0.01  # of a loss: training ends this near its minimum


def superposition_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Toy models are tuned by their loss, the autoencoder by the variance that it leaves
    unexplained in held-out stories."""
    plan = PLANS[tier]
    toys = pilot_parts(
        Grid(
            [arm_of(density) for density in DENSITIES[tier]],
            TOY_RATES[tier],
            plan.toy_pilots,
            f"steps-{plan.toy_steps}",
        ),
        lambda arm, rate, seed: {
            "score": train_toy(density_of(arm), plan.toy_steps, rate, seed)["score"]
        },
    )
    coders = pilot_parts(
        Grid((CODER,), CODER_RATES, 1, plan.coder),
        lambda _, rate, seed: {"score": unexplained_variance(plan, rate, seed)},
    )
    return [*toys, *coders]


def arm_of(density: float) -> str:
    return f"density-{round(1000 * density)}-of-1000"


def density_of(arm: str) -> float:
    return int(arm.split("-")[1]) / 1000


def superposition_parts(plan: Plan) -> Sequence[ExperimentPart]:
    sizes = PLANS[plan.tier]
    toys = [
        ExperimentPart(
            f"toy.{arm_of(density)}.steps-{sizes.toy_steps}.rate-{plan.rate(arm_of(density)):g}"
            f".seed-{n}",
            lambda density=density, n=n: train_toy(
                density, sizes.toy_steps, plan.rate(arm_of(density)), n
            ),
        )
        for n in plan.seeds(sizes.toy_seeds)
        for density in DENSITIES[plan.tier]
    ]
    rate = plan.rate(CODER)
    coders = [
        ExperimentPart(
            f"{CODER}.{sizes.coder}.rate-{rate:g}.text-{plan.seed}.seed-{n}",
            lambda n=n: compare_dictionaries(sizes, rate, plan.seed, n),
        )
        for n in plan.seeds(sizes.seeds)
    ]
    return [*toys, *coders]


def coder_and_stream(
    plan: SuperpositionPlan, rate: float, text: int, seed: int
) -> tuple[Autoencoder, Stream]:
    stream = stream_of_stories(plan.stories, plan.length, text)
    return trained_autoencoder(stream.training, steps=plan.steps, rate=rate, seed=seed), stream


def unexplained_variance(plan: SuperpositionPlan, rate: float, seed: int) -> float:
    import torch

    from sightline.lab.measures.sparse_autoencoder import explained_variance

    coder, stream = coder_and_stream(plan, rate, PILOT_TEXT, seed)
    with torch.inference_mode():
        return 1 - explained_variance(stream.held_out, coder.reconstruct(stream.held_out))


def compare_dictionaries(
    plan: SuperpositionPlan, rate: float, text: int, seed: int
) -> dict[str, Any]:
    import torch

    coder, stream = coder_and_stream(plan, rate, text, seed)
    with torch.inference_mode():
        return measure_dictionaries(stream, coder, seed)


# ---------------------------------------------------------------------------------------- verdict


def toys_of(numbers: Numbers, density: float) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(f"toy.{arm_of(density)}.")]


def coders_of(numbers: Numbers) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(f"{CODER}.")]


def judge_superposition(numbers: Numbers) -> Sequence[Check]:
    return [*toy_checks(numbers), *dictionary_checks(coders_of(numbers))]


def toy_checks(numbers: Numbers) -> list[Check]:
    """The bounds are the number of dimensions, and the loss of the best model that gives each
    dimension to one feature."""
    dense, sparse = toys_of(numbers, DENSE), toys_of(numbers, SPARSE)
    counts = {name: [row["represented"] for row in rows] for name, rows in
              (("dense", dense), ("sparse", sparse))}  # fmt: skip
    within = sum(count <= DIMENSIONS for count in counts["dense"])
    beyond = sum(count > DIMENSIONS for count in counts["sparse"])
    gain = Interval.ratio([row["score"] for row in sparse])
    control = Interval.ratio([row["score"] for row in dense])
    return [
        Check.over_seeds(
            Words(
                f"toy: sparse features (present in 3% of the rows) share the {DIMENSIONS}"
                " dimensions: more of them are represented",
                f"トイモデル：疎な特徴（行の3%に現れる）は{DIMENSIONS}次元を分け合い、"
                "次元数より多く表現される",
            ),
            f"{span(counts['sparse'])} of {FEATURES} features, more than {DIMENSIONS} in {beyond}"
            f" of {len(sparse)} models",
            decide_count_above(beyond, len(sparse), HALF),
        ),
        Check.over_seeds(
            Words(
                "control: dense features do not: no more are represented than there are dimensions",
                "対照：密な特徴では起きず、表現されるのは次元数以下である",
            ),
            f"{span(counts['dense'])} of {FEATURES} features, at most {DIMENSIONS} in {within} of"
            f" {len(dense)} models",
            decide_count_above(within, len(dense), HALF),
        ),
        Check.over_seeds(
            Words(
                "sharing pays for sparse features only: their loss is below that of the best model"
                " with one feature per dimension, that of dense features by less than 1%",
                "分け合って得をするのは疎な特徴だけ：損失は1次元に1特徴の最良のモデルより低く、"
                "密な特徴では低くても1%未満",
            ),
            f"loss / loss without sharing: sparse {gain}, dense {control}",
            decide_below(gain, 1.0),
            decide_above(control, 1 - SAME),
        ),
    ]


def span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"


def dictionary_checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """The learned dictionary against others with the same number of atoms per token: no
    difference is 0."""
    gains = {
        other: paired_difference(
            [row["explained"][CODER] for row in rows], [row["explained"][other] for row in rows]
        )
        for other in ("leading components", "components", "random")
    }
    purity = {
        name: [row["purity"][name] for row in rows] for name in (CODER, "components", "random")
    }
    purer = {
        name: paired_difference(purity[CODER], purity[name]) for name in ("components", "random")
    }
    explained = Interval.share([row["explained"][CODER] for row in rows])
    active = Interval.of([row["active"] for row in rows]).mean
    return [
        Check.over_seeds(
            Words(
                f"stories15m: a learned dictionary explains more of the held-out residual stream"
                f" than principal components and than a random dictionary of the same size, all"
                f" with {ACTIVE} atoms per token",
                "stories15m：学習した辞書は、検証用の残差ストリームを、"
                f"主成分よりも同じ大きさの乱数の辞書よりもよく説明する（どれも1トークンに{ACTIVE}原子）",
            ),
            f"explained variance {explained} with L0 {active:.1f}; − leading components"
            f" {gains['leading components']}, − components chosen per token"
            f" {gains['components']}, − random dictionary {gains['random']}",
            *(decide_above(gain, 0.0) for gain in gains.values()),
        ),
        Check.over_seeds(
            Words(
                f"its atoms are more specific: of their {TOP} strongest held-out examples more"
                " have the same token than of principal components and of random directions",
                f"その原子はより特定的である：最も強い{TOP}個の検証例のうち同じトークンの割合が、"
                "主成分や乱数の方向より高い",
            ),
            f"share {Interval.share(purity[CODER])}, components"
            f" {Interval.share(purity['components'])}, random {Interval.share(purity['random'])}",
            *(decide_above(gap, 0.0) for gap in purer.values()),
        ),
    ]


def summarize_superposition(numbers: Numbers) -> Words:
    """The examples of some atoms, drawn at random from the first autoencoder."""
    rows = coders_of(numbers)
    shown = "; ".join(
        f"{entry['atom']}: " + " | ".join(f"“{context}”" for context in entry["contexts"])
        for entry in rows[0]["examples"]
    )
    alive = Interval.of([row["alive"] for row in rows]).mean
    return Words(
        f"Of the {ATOMS} atoms {alive:.0f} are active in the held-out stories. The strongest"
        f" examples of atoms drawn at random, not chosen: {shown}. That examples look alike does"
        " not show that the model uses an atom: only the numbers below are measured. The stream"
        f" is that of {MODEL} before its block {LAYER + 1}, reading stories it wrote itself.",
        f"{ATOMS}個の原子のうち、検証用の物語で活性化するのは{alive:.0f}個。"
        f"選ばず乱数で引いた原子の最も強い例：{shown}。"
        "例が似ていても、モデルがその原子を使っている証拠にはならない。"
        "測定したのは下の表の数値だけである。"
        f"残差ストリームは、自分で書いた物語を読む {MODEL} の第{LAYER + 1}ブロックの入口のもの。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_superposition(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (dense, sparse, counts, explained) = new_figure(4, width=3.7)
    draw_products(dense, toys_of(numbers, DENSE)[0], "Dense features")
    draw_products(sparse, toys_of(numbers, SPARSE)[0], "Sparse features")
    densities = sorted({density_of(name.split(".")[1]) for name in numbers if name[:4] == "toy."})
    means = [
        Interval.of([row["represented"] / DIMENSIONS for row in toys_of(numbers, density)])
        for density in densities
    ]
    plot_mean(counts, densities, means, label="measured", number=0)
    counts.axhline(1, color="0", linestyle=":", linewidth=1)
    counts.set(
        xscale="log",
        xlabel="share of rows with the feature",
        ylabel="features per dimension",
        title="Sparser features share",
        ylim=(0, None),
    )
    draw_explained(explained, coders_of(numbers))
    return {"superposition": figure}


def draw_products(axes: Axes, row: Mapping[str, Any], title: str) -> None:
    """WᵀW: on the diagonal the features that are represented, beside it their interference."""
    axes.grid(visible=False)
    axes.imshow(row["products"], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes.set(title=title, xlabel="feature", ylabel="feature", xticks=[], yticks=[])


def draw_explained(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    names = {
        CODER: "learned\ndictionary",
        "components": "components,\nper token",
        "leading components": "leading\ncomponents",
        "random": "random\ndictionary",
    }
    for place, name in enumerate(names):
        interval = Interval.share([row["explained"][name] for row in rows])
        axes.bar([place], [interval.mean], width=0.6, color=COLOURS[place])
        axes.plot([place, place], [interval.low, interval.high], color="0", linewidth=1.2)
    axes.set_axisbelow(True)
    axes.set(
        xticks=range(len(names)),
        ylim=(0, 1),
        ylabel="explained variance",
        title=f"stories15m, {ACTIVE} atoms per token",
    )
    axes.set_xticklabels(list(names.values()), fontsize=8)


EXPERIMENT = Experiment(
    name="superposition",
    title=Words("Superposition: more features than dimensions", "重ね合わせ：次元数より多い特徴"),
    claim=Words(
        "Sparse features share dimensions, dense ones do not; and in a real model's residual"
        " stream a sparse dictionary explains more, with atoms that are more specific, than"
        " principal components or random directions.",
        "疎な特徴は次元を分け合い、密な特徴は分け合わない。"
        "また実際のモデルの残差ストリームでは、疎な辞書が主成分や乱数の方向よりも多くを説明し、"
        "その原子はより特定的である。",
    ),
    source="Elhage et al. 2022; Bricken et al. 2023; Gao et al. 2024",
    equation="x' = ReLU(Wᵀ W x + b);   x̂ = b + W_d top_k(W_e (x − b))",
    look_for=Words(
        "dense: as many bright squares on the diagonal as dimensions, the most important features;"
        " sparse: more of them, with interference beside the diagonal",
        "密：対角線上の明るい升は次元数だけで、最も重要な特徴である。"
        "疎：それより多く、対角線の外に干渉がある",
    ),
    parts=superposition_parts,
    pilots=superposition_pilots,
    judge=judge_superposition,
    draw=draw_superposition,
    summarize=summarize_superposition,
    settle=12,
    arms={
        **{
            arm_of(density): Words(f"density {density:g}", f"密度 {density:g}")
            for density in DENSITIES["full"]
        },
        CODER: Words("autoencoder", "オートエンコーダ"),
    },
)
