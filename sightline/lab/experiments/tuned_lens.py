"""The tuned lens against the raw logit lens: affine translators, trained per layer, judged on
held-out stories, with translators trained on shuffled targets as the control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from sightline.lab.statistics import Interval, decide_below, mean_of, paired_difference
from sightline.lab.style import new_figure, plot_mean
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.lab.measures.translators import Reading, Readout

LAYERS = 6  # of stories15m
ARMS = {
    "tuned": Words("tuned lens", "調整済みレンズ"),
    "shuffled": Words("shuffled targets", "目標をシャッフル"),
}
LENSES = {"raw": Words("raw logit lens", "ロジットレンズ（そのまま）"), **ARMS}
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
PILOT_SEEDS = 2
SEEDS: Mapping[Tier, int] = {"quick": 3, "default": 6, "full": 20}
SETTLE = 12
STORIES: Mapping[Tier, int] = {"quick": 8, "default": 32, "full": 64}
STEPS: Mapping[Tier, int] = {"quick": 20, "default": 80, "full": 400}
LENGTH = 80  # tokens of a story


def tuned_lens_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    detail = f"stories-{STORIES[tier]}.steps-{STEPS[tier]}"
    return pilot_parts(
        Grid(tuple(ARMS), RATES, PILOT_SEEDS, detail),
        lambda arm, rate, seed: pilot(tier, arm, rate, seed),
    )


def tuned_lens_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier: Tier = plan.tier
    rates = {arm: plan.rate(arm) for arm in ARMS}
    named = ".".join(f"{arm}-{rate:g}" for arm, rate in rates.items())
    return [
        ExperimentPart(
            f"run.{named}.stories-{STORIES[tier]}.steps-{STEPS[tier]}.seed-{n}",
            lambda n=n: run_on_stories(tier, rates, n),
        )
        for n in plan.seeds(SEEDS)
    ]


def stories_of(tier: Tier, seed: int) -> tuple[Readout, Reading, Reading]:
    from sightline.lab.measures.translators import read_stories

    return read_stories(STORIES[tier], LENGTH, seed)


def run_on_stories(tier: Tier, rates: Mapping[str, float], seed: int) -> dict[str, list[float]]:
    return compare_lenses(*stories_of(tier, seed), rates, STEPS[tier], seed)


def pilot(tier: Tier, arm: str, rate: float, seed: int) -> dict[str, Any]:
    """The divergence from the arm's own targets on the held-out stories."""
    import torch

    from sightline.lab.measures.translators import (
        frequent_tokens,
        restricted_score,
        train_translators,
    )

    readout, training, held_out = stories_of(tier, seed)
    is_shuffled = arm == "shuffled"
    made = train_translators(
        readout, training, rate=rate, steps=STEPS[tier], seed=seed, shuffled=is_shuffled
    )
    order = torch.randperm(len(held_out.last), generator=torch.Generator().manual_seed(seed))
    targets = held_out.last[order] if is_shuffled else held_out.last
    tokens = frequent_tokens(readout, training)
    return {"score": restricted_score(readout, held_out, made, tokens, targets)}


def compare_lenses(
    readout: Readout,
    training: Reading,
    held_out: Reading,
    rates: Mapping[str, float],
    steps: int,
    seed: int,
) -> dict[str, list[float]]:
    """KL(final ‖ lens) on held-out stories, by layer, of the raw lens and of each arm."""
    from sightline.lab.measures.translators import (
        Translators,
        held_out_divergences,
        train_translators,
    )

    rows, _, width = training.streams.shape
    lenses = {"raw": Translators.identity(rows, width)} | {
        arm: train_translators(
            readout, training, rate=rate, steps=steps, seed=seed, shuffled=arm == "shuffled"
        )
        for arm, rate in rates.items()
    }
    return {name: held_out_divergences(readout, held_out, lens) for name, lens in lenses.items()}


# ---------------------------------------------------------------------------------------- verdict


def by_layer(numbers: Numbers, lens: str) -> list[list[float]]:
    """For each layer the divergences of all seeds."""
    runs = [row[lens] for name, row in numbers.items() if name.startswith("run.")]
    return [list(layer) for layer in zip(*runs, strict=True)]


def judge_tuned_lens(numbers: Numbers) -> Sequence[Check]:
    """Every bound is 0: which of two divergences is smaller on the same tokens."""
    tuned, raw, shuffled = (by_layer(numbers, lens) for lens in ("tuned", "raw", "shuffled"))
    return [
        compared(
            Words(
                "at every layer, the tuned lens is closer to the final distribution than the raw"
                " one",
                "どの層でも、調整済みレンズはそのままのレンズより最終分布に近い",
            ),
            tuned,
            raw,
        ),
        compared(
            Words(
                "and closer than translators that learned from shuffled targets: it reads the"
                " text, not only which tokens are frequent",
                "目標をシャッフルした変換より近い：頻度だけでなく文脈を読み取っている",
            ),
            tuned,
            shuffled,
        ),
        compared(
            Words(
                "each layer brings the tuned lens closer to the end",
                "層が進むごとに調整済みレンズは最終分布へ近づく",
            ),
            tuned[1:],
            tuned[:-1],
        ),
    ]


def compared(
    statement: Words, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> Check:
    """Whether ours is smaller at every layer."""
    gaps = [paired_difference(a, b) for a, b in zip(ours, theirs, strict=True)]
    worst = max(gaps, key=lambda gap: gap.high)
    means = [mean_of([mean_of(row) for row in rows]) for rows in (ours, theirs)]
    return Check.over_seeds(
        statement,
        f"mean {means[0]:.2f} against {means[1]:.2f} nats; smallest lead {worst}",
        *(decide_below(gap, 0.0) for gap in gaps),
    )


# --------------------------------------------------------------------------- figures and summary


def draw_tuned_lens(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (axes,) = new_figure(1, width=5.4, height=3.8)
    for number, (lens, label) in enumerate(LENSES.items()):
        rows = by_layer(numbers, lens)
        places = list(map(float, range(len(rows))))
        intervals = [Interval.of(row) for row in rows]
        plot_mean(axes, places, intervals, label=label.en, number=number)
    axes.set(
        xlabel="stream that enters the layer",
        ylabel="KL(final ‖ lens), nats per token",
        title="On held-out stories",
        yscale="log",
    )
    axes.legend(frameon=False)
    return {"tuned-lens": figure}


def summarize_tuned_lens(numbers: Numbers) -> Words:
    raw, tuned, shuffled = (
        [mean_of(row) for row in by_layer(numbers, lens)] for lens in ("raw", "tuned", "shuffled")
    )
    middle = len(raw) // 2
    lead = 1 - tuned[middle] / raw[middle]
    first = shuffled[0] < raw[0]
    also = Words(
        " At the first layer the shuffled control also beats the raw lens: part of the gain is the"
        " frequency of tokens alone."
        if first
        else "",
        "最初の層ではシャッフルした対照もそのままのレンズより近い。利得の一部は単語の頻度だけによる。"
        if first
        else "",
    )
    return Words(
        f"Into layer {middle}: raw {raw[middle]:.2f} nats, tuned {tuned[middle]:.2f}"
        f" ({lead:.0%} less), shuffled {shuffled[middle]:.2f}.{also.en}",
        f"第{middle}層の入力：そのまま {raw[middle]:.2f} ナット、調整済み {tuned[middle]:.2f}"
        f"（{lead:.0%} 減）、シャッフル {shuffled[middle]:.2f}。{also.ja}",
    )


EXPERIMENT = Experiment(
    name="tuned-lens",
    title=Words("The tuned lens", "調整済みレンズ"),
    claim=Words(
        "What a layer already predicts is underestimated by the logit lens: an affine translator,"
        " trained for each layer, reads a distribution much closer to the final one.",
        "ロジットレンズは、途中の層がすでに予測していることを過小評価する。"
        "層ごとに学習したアフィン変換なら、最終分布にずっと近い分布が読み取れる。",
    ),
    source="nostalgebraist 2020; Belrose et al. 2023",
    equation="lens_n(x) = head(norm(x + A_n x + b_n)),  min KL(final ‖ lens_n);  A = b = 0: raw",
    look_for=Words(
        "the tuned curve below the raw one, and below the control",
        "調整済みの曲線がそのままの曲線と対照の下にあること",
    ),
    pilots=tuned_lens_pilots,
    parts=tuned_lens_parts,
    judge=judge_tuned_lens,
    draw=draw_tuned_lens,
    summarize=summarize_tuned_lens,
    settle=SETTLE,
    arms=ARMS,
)
