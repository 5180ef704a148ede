"""Does Post-LN, when it trains, end with a lower loss than Pre-LN? Both with warm-up, each at its
best learning rate, at two depths and equal parameter counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from sightline.lab.experiment import (
    Check,
    Experiment,
    ExperimentPart,
    Numbers,
    Plan,
    Tier,
    Words,
)
from sightline.lab.measures.norm_measures import (
    MARGIN,
    init_glorot,
    placement_config,
    plays_for_seed,
    unigram_nats,
)
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    decide_count_above,
    paired_difference,
)
from sightline.lab.style import COLOURS, MARKS, new_figure, plain_log_ticks
from sightline.lab.tuning import Grid, pilot_parts, tuned_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.core.model import Transformer
    from sightline.lab.learning import GeneratedTask
    from sightline.training.data.packed import PackedText

Form = Literal["pre", "post"]
FORMS: dict[Form, str] = {"pre": "Pre-LN", "post": "Post-LN"}
DEPTHS: dict[Tier, tuple[int, int]] = {"quick": (2, 3), "default": (2, 6), "full": (2, 12)}
STEPS = {"quick": 60, "default": 800, "full": 4000}
SEEDS: dict[Tier, int] = {"quick": 2, "default": 12, "full": 16}
PILOTS = {"quick": 1, "default": 2, "full": 2}
RATES = {
    "quick": (1e-2, 3e-2, 9e-2),
    "default": (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2),
    "full": (6e-4, 1.2e-3, 2.5e-3, 5e-3, 1e-2),
}
WIDTH = {"quick": 32, "default": 32, "full": 64}
WINDOWS = 512  # of the held-out plays
VISIBLE = 0.4  # nats above the lowest loss; runs that do not train are outside the figure
HALF = 0.5  # an arm trains if it does so more often than not
ARMS = {
    f"{form}-{depth}": Words(f"{name}, {depth} layer{'s' * (depth > 1)}", f"{name}、{depth}層")
    for depth in sorted({depth for both in DEPTHS.values() for depth in both})
    for form, name in FORMS.items()
}


def arms_of(tier: Tier) -> list[str]:
    return [f"{form}-{depth}" for depth, form in product(DEPTHS[tier], FORMS)]


def size_text(tier: Tier) -> str:
    return f"width-{WIDTH[tier]}.steps-{STEPS[tier]}"


def post_ln_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    grid = Grid(arms_of(tier), RATES[tier], PILOTS[tier], detail=size_text(tier))
    return pilot_parts(grid, partial(train_arm, tier=tier))


def post_ln_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    return [
        ExperimentPart(
            f"run.{arm}.rate-{plan.rate(arm):g}.{size_text(tier)}.seed-{n}",
            partial(train_arm, arm, plan.rate(arm), n, tier=tier),
        )
        for n in plan.seeds(SEEDS)
        for arm in arms_of(tier)
    ]


# ------------------------------------------------------------------------------------ measurement


def equal_model(form: Form, depth: int, width: int, vocabulary: int, seed: int) -> Transformer:
    """Pre-LN has a norm after its last block; Post-LN gets one after the embedding, as in BERT, so
    that both have 2 · depth + 1. Glorot initialisation as in 2017."""
    from sightline.config import LayerNorm
    from sightline.lab.learning import build_seeded

    config = placement_config(form, depth, width, vocabulary)
    assert config.decoder is not None
    if form == "post":
        embedding = replace(config.decoder.embedding, norm=LayerNorm())
        config = replace(config, decoder=replace(config.decoder, embedding=embedding))
    model = build_seeded(config, seed)
    init_glorot(model, vocabulary, width)
    return model


def train_arm(arm: str, rate: float, seed: int, *, tier: Tier) -> dict[str, Any]:
    """One training on the plays."""
    form, depth = arm.split("-")
    task, vocabulary = plays_for_seed(seed)
    task.evaluated = WINDOWS
    model = equal_model(
        "post" if form == "post" else "pre", int(depth), WIDTH[tier], vocabulary, seed
    )
    return train_and_compare(
        model, task, unigram_nats(seed), steps=STEPS[tier], rate=rate, seed=seed
    )


def train_and_compare(
    model: Transformer,
    task: GeneratedTask | PackedText,
    unigram: Sequence[float],
    *,
    steps: int,
    rate: float,
    seed: int,
) -> dict[str, Any]:
    """Train with AdamW, a sixth of the steps as warm-up, cosine decay to a tenth and clipping. A
    run with a loss that is not finite has neither losses nor a score."""
    import torch

    from sightline.lab.learning import held_out_loss, training_steps
    from sightline.training.loop import NotFiniteError

    parameters = sum(weight.numel() for weight in model.parameters())
    frequencies = torch.tensor(unigram)
    try:
        events = list(
            training_steps(model, task, steps=steps, lr=rate, warmup=steps // 6, seed=seed)
        )
    except NotFiniteError:
        return {"score": math.inf, "trained": False, "parameters": parameters}
    learner = events[-1][0]
    last = [event.loss for _, event in events][-max(1, steps // 10) :]
    held_out = held_out_loss(learner, task)
    ignorant = [float(frequencies[batch.targets].mean()) for batch in task.validation()]
    return {
        "score": held_out,
        "training": sum(last) / len(last),
        "trained": held_out < sum(ignorant) / len(ignorant) - MARGIN,
        "parameters": parameters,
    }


# ---------------------------------------------------------------------------------------- verdict


def runs_of(numbers: Numbers, arm: str) -> list[Mapping[str, Any]]:
    """The runs of an arm on fresh seeds."""
    return [row for name, row in numbers.items() if name.startswith(f"run.{arm}.")]


def depths_in(numbers: Numbers) -> list[int]:
    names = [name.split(".")[1] for name in numbers if name.startswith("run.")]
    return sorted({int(arm.split("-")[1]) for arm in names})


def pairs(numbers: Numbers, depth: int, what: str = "score") -> list[tuple[float, float]]:
    """Post-LN's and Pre-LN's loss per seed, where both trained."""
    rows = zip(runs_of(numbers, f"post-{depth}"), runs_of(numbers, f"pre-{depth}"), strict=True)
    return [(a[what], b[what]) for a, b in rows if a["trained"] and b["trained"]]


def gap(numbers: Numbers, depth: int, what: str = "score") -> Interval:
    """Post-LN − Pre-LN in nats per character, paired by seed: the same batches, and the same
    held-out text."""
    both = pairs(numbers, depth, what)
    return paired_difference([a for a, _ in both], [b for _, b in both])


def judge_post_ln(numbers: Numbers) -> Sequence[Check]:
    shallow, deep = depths_in(numbers)
    return [
        equal_check(numbers),
        trained_check(numbers),
        Check.over_seeds(
            Words(
                f"{shallow} layers: Post-LN ends with a lower held-out loss than Pre-LN",
                f"{shallow}層：最後の検証損失は Post-LN の方が Pre-LN より低い",
            ),
            f"Post-LN − Pre-LN: {gap(numbers, shallow)} nats per character",
            decide_below(gap(numbers, shallow), 0),
        ),
        Check.over_seeds(
            Words(
                f"{deep} layers: Post-LN ends with a higher one",
                f"{deep}層：Post-LN の方が高い",
            ),
            f"Post-LN − Pre-LN: {gap(numbers, deep)} nats per character",
            decide_above(gap(numbers, deep), 0),
        ),
    ]


def equal_check(numbers: Numbers) -> Check:
    counts = {
        depth: sorted(
            {row["parameters"] for form in FORMS for row in runs_of(numbers, f"{form}-{depth}")}
        )
        for depth in depths_in(numbers)
    }
    listed = ", ".join(
        f"{depth} layers {' and '.join(f'{n:,}' for n in count)}" for depth, count in counts.items()
    )
    return Check(
        Words(
            "both have exactly equal parameter counts at each depth",
            "どちらの深さでもパラメータ数は完全に等しい",
        ),
        all(len(count) == 1 for count in counts.values()),
        listed,
    )


def trained_check(numbers: Numbers) -> Check:
    """The condition of the claim: at its best rate each arm ends below the unigram loss."""
    outcomes = {
        f"{form}-{depth}": [row["trained"] for row in runs_of(numbers, f"{form}-{depth}")]
        for depth in depths_in(numbers)
        for form in FORMS
    }
    decisions = [decide_count_above(sum(row), len(row), HALF) for row in outcomes.values()]
    return Check.over_seeds(
        Words(
            "both train at their best rates at both depths (more often than not): they end below"
            " the unigram loss",
            "最良の学習率では、どちらの深さでも両方とも学習できる（半数を超えるシードで）："
            "ユニグラム頻度の損失を下回る",
        ),
        ", ".join(f"{ARMS[arm].en}: {sum(row)} of {len(row)}" for arm, row in outcomes.items()),
        *decisions,
    )


# --------------------------------------------------------------------------- figures and summary


def draw_post_ln(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (rates, gaps) = new_figure(2, width=4.8)
    for number, (arm, tuned) in enumerate(tuned_rates(numbers).items()):
        finite = [(rate, score) for rate, score in tuned.scores if math.isfinite(score)]
        rates.plot(
            *zip(*finite, strict=True),
            color=COLOURS[number % 2],
            marker=MARKS[number],
            linestyle="-" if number < 2 else "--",
            markersize=4,
            linewidth=1.4,
            label=ARMS[arm].en,
        )
    rates.set(
        xscale="log",
        xlabel="learning rate",
        ylabel="held-out loss, nats per character",
        title="Tuning, on pilot seeds",
    )
    lowest = min(score for tuned in tuned_rates(numbers).values() for _, score in tuned.scores)
    rates.set_ylim(lowest - 0.03, lowest + VISIBLE)
    plain_log_ticks(rates.xaxis)
    rates.legend(frameon=False)
    draw_gaps(gaps, numbers)
    return {"post-ln-ends-better": figure}


def draw_gaps(axes: Axes, numbers: Numbers) -> None:
    """Differences per seed, and their mean with its interval."""
    depths = depths_in(numbers)
    for place, depth in enumerate(depths):
        interval = gap(numbers, depth)
        every = [a - b for a, b in pairs(numbers, depth)]
        axes.scatter(every, [place + 0.15] * len(every), s=14, color="0.5", alpha=0.7, linewidth=0)
        axes.plot([interval.low, interval.high], [place, place], color=COLOURS[2], linewidth=2)
        axes.plot([interval.mean], [place], marker=MARKS[place], color=COLOURS[2])
    axes.axvline(0, color="0", linewidth=0.8)
    axes.set_yticks(range(len(depths)), labels=[f"{depth} layers" for depth in depths])
    axes.set(
        ylim=(len(depths) - 0.5, -0.5),
        xlabel="Post-LN − Pre-LN, nats per character (left: Post-LN is better)",
    )
    axes.set_title("Differences: seeds in grey, mean, 95% interval", fontsize=10)


def summarize_post_ln(numbers: Numbers) -> Words:
    rates = tuned_rates(numbers)
    losses = {
        arm: Interval.of([row["score"] for row in runs_of(numbers, arm) if row["trained"]]).mean
        for arm in rates
    }
    listed = Words(
        *(
            ", ".join(
                f"{ARMS[arm][language]} {loss:.3f} ({rates[arm].rate:g})"
                for arm, loss in losses.items()
            )
            for language in ("en", "ja")
        )
    )
    shallow, deep = (gap(numbers, depth, "training") for depth in depths_in(numbers))
    return Words(
        f"Held-out loss at the end (learning rate): {listed.en}. The training losses at the end"
        f" differ by {shallow} and {deep} nats; every batch is new, so the forms differ in how well"
        " they are optimised, not in how well they generalise. Liu et al. 2020 (translation) and"
        " Takase et al. 2022 (several text generation tasks) report better results of Post-LN in"
        " shallow models, in the latter six layers or fewer, and failures in deep ones; Xiong et"
        " al. 2020 report comparable results. Their models are much wider and trained much longer,"
        " with dropout: here six layers already count as deep, since a narrow Post-LN model trains"
        " only at low rates. After many more steps the order may be another.",
        f"最後の検証損失（学習率）：{listed.ja}。"
        f"最後の訓練損失の差は {shallow} と {deep} ナット。どのバッチも初めて見るデータなので、"
        "ここでの差は汎化ではなく最適化の差である。"
        "Liu et al. 2020（翻訳）と Takase et al. 2022（複数の文生成タスク）は、"
        "浅いモデル（後者では6層以下）では Post-LN の方が良く、深いと学習に失敗すると報告する。"
        "Xiong et al. 2020 では同程度である。"
        "それらのモデルははるかに幅が広く、ドロップアウト付きで長く学習している。"
        "幅の狭い Post-LN は低い学習率でしか学習できないので、ここでは6層でもう深い。"
        "ステップ数がはるかに多ければ順序が変わる可能性がある。",
    )


EXPERIMENT = Experiment(
    name="post-ln-ends-better",
    title=Words("Does Post-LN end better?", "Post-LN の方が最後は良いか"),
    claim=Words(
        "Post-LN that trains does not always end better than Pre-LN: with warm-up, each at its best"
        " learning rate and with equal parameter counts, it ends with a lower loss where the model"
        " is shallow and with a higher one where it is deeper.",
        "Post-LN は学習できても Pre-LN より良い結果になるとは限らない。ウォームアップを付け、"
        "それぞれ最良の学習率、同じパラメータ数で比べると、"
        "最後の損失は浅いモデルでは Post-LN の方が低く、より深いモデルでは高い。",
    ),
    source="Liu et al. 2020; Xiong et al. 2020; Takase et al. 2022",
    equation="pre: x + f(norm(x));   post: norm(x + f(x))",
    look_for=Words(
        "the shallow models' interval is to the left of zero, the deeper ones' to the right; on the"
        " left, deep Post-LN's loss climbs at rates where Pre-LN is at its best",
        "浅いモデルの区間はゼロの左、深いモデルの区間は右にある。"
        "左の図では、Pre-LN が最良となる学習率で深い Post-LN の損失が上がる",
    ),
    pilots=post_ln_pilots,
    arms=ARMS,
    parts=post_ln_parts,
    judge=judge_post_ln,
    draw=draw_post_ln,
    summarize=summarize_post_ln,
    settle=24,
    corrections=(
        Words(
            "“Post-LN, when it trains, ends with a better result” is a finding about shallow"
            " models: it holds here with 2 layers and not with 6.",
            "「Post-LN は学習できれば最後は良い」は浅いモデルについての知見である。"
            "ここでは2層で成り立ち、6層では成り立たない。",
        ),
    ),
)
