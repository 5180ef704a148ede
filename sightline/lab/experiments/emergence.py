"""Emergence: as models grow, exact answers seem to appear abruptly, while the likelihood of each of
their tokens rises smoothly.

The task is a telephone book: a name followed by eight random digits. A model is tested only on
entries that it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.statistics import Interval, lies_above, lies_within
from sightline.lab.style import COLOURS, new_figure, plain_log_ticks, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.core.model import Transformer


@dataclass(frozen=True, slots=True)
class EmergencePlan:
    """The widths of the models and the number of names in the book they are trained on."""

    widths: tuple[int, ...]
    names: int
    steps: int
    seeds: int


PLANS = {
    "quick": EmergencePlan((3, 5, 8, 12, 18, 27), 128, 300, 4),
    "default": EmergencePlan((3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20), 256, 400, 5),
    "full": EmergencePlan((3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32), 512, 800, 10),
}
DIGITS = 8
LENGTHS = (1, 2, 4, 8)
RATE = 1e-2
TIMES = 8
VISIBLE = 0.05
SHARP = 1.5
EARLY = 1 / 3
NEAR = 0.05


def emergence_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    sizes = PLANS[tier]
    return [
        ExperimentPart(
            f"width-{width}.names-{sizes.names}.steps-{sizes.steps}.seed-{n}",
            lambda width=width, n=n: train_on_book(sizes, width, n),
        )
        for n in range(seed, seed + sizes.seeds)
        for width in sizes.widths
    ]


def phone_book(names: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (name and all digits but the last) and targets (all digits). The ten digits are tokens
    0 to 9, names follow."""
    import torch

    from sightline.lab.learning import seeded_generator

    digits = torch.randint(10, (names, DIGITS), generator=seeded_generator(seed, 1))
    return torch.cat([10 + torch.arange(names)[:, None], digits[:, :-1]], 1), digits


def train_on_book(plan: EmergencePlan, width: int, seed: int) -> dict[str, Any]:
    """Train one layer of this width on half the book per step; measure recall at eight points of
    the training."""
    import torch

    from sightline.architectures import gpt
    from sightline.lab.learning import (
        GeneratedTask,
        labelled_batch,
        seeded_generator,
        training_steps,
    )
    from sightline.training.data.batch import Batch

    tokens, digits = phone_book(plan.names, seed)

    def page(step: int) -> Batch:
        rows = torch.randint(
            plan.names, (plan.names // 2,), generator=seeded_generator(seed, 2, step)
        )
        return labelled_batch(tokens[rows], digits[rows])

    config = gpt(
        width=width, layers=1, heads=1, vocab_size=10 + plan.names, max_positions=DIGITS, tied=False
    )
    when = {plan.steps * n // TIMES for n in range(1, TIMES + 1)}
    scores = list[dict[str, Any]]()
    parameters = 0
    for learner, event in training_steps(
        config, GeneratedTask(page), steps=plan.steps, lr=RATE, seed=seed
    ):
        if event.step in when:
            parameters = sum(parameter.numel() for parameter in learner.transformer.parameters())
            scores.append({"step": event.step} | recall_scores(learner.transformer, tokens, digits))
    return {"width": width, "parameters": parameters, "course": scores}


def recall_scores(model: Transformer, tokens: Tensor, digits: Tensor) -> dict[str, Any]:
    """Nats per digit; top-1 accuracy per position; share of answers whose first 1, 2, 4, 8 digits
    are all correct.

    Greedy decoding gives the right answer if and only if each digit is the most likely one given
    the correct digits before it.
    """
    import torch

    with torch.no_grad():
        logits = model(tokens)
    right = logits.argmax(-1) == digits
    nats = -logits.double().log_softmax(-1).gather(-1, digits[..., None]).mean()
    exact = {str(length): float(right[:, :length].all(1).double().mean()) for length in LENGTHS}
    return {"nats": float(nats), "right": right.double().mean(0).tolist(), "exact": exact}


@dataclass(frozen=True, slots=True)
class SizeSweep:
    """The trained models of one seed, by size: log parameters, nats per digit, accuracy per
    position, exact answers by length."""

    size: list[float]
    nats: list[float]
    right: list[list[float]]
    exact: list[Mapping[str, float]]

    def matches(self, length: int) -> list[float]:
        return [row[str(length)] for row in self.exact]

    def predicted(self, length: int) -> list[float]:
        return [power_law(row, length) for row in self.right]


def power_law(right: Sequence[float], length: int) -> float:
    """p^L with p the accuracy on the first L digits."""
    return (sum(right[:length]) / length) ** length


def sweeps_by_seed(numbers: Numbers) -> list[SizeSweep]:
    """One sweep per seed."""
    seeds = sorted({int(name.rsplit("-", 1)[1]) for name in numbers})
    return [
        size_sweep([row for name, row in numbers.items() if name.endswith(f".seed-{seed}")])
        for seed in seeds
    ]


def size_sweep(rows: Sequence[Mapping[str, Any]]) -> SizeSweep:
    rows = sorted(rows, key=lambda row: row["parameters"])
    ends = [row["course"][-1] for row in rows]
    size = [math.log(row["parameters"]) for row in rows]
    return SizeSweep(
        size,
        [end["nats"] for end in ends],
        [end["right"] for end in ends],
        [end["exact"] for end in ends],
    )


def first_crossing(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """Where a rising curve first reaches the level, by linear interpolation; NaN if it never
    does."""
    if y[0] >= level:
        return x[0]
    for n in range(1, len(x)):
        if y[n - 1] < level <= y[n]:
            return x[n - 1] + (x[n] - x[n - 1]) * (level - y[n - 1]) / (y[n] - y[n - 1])
    return math.nan


def likelihood_progress(sweep: SizeSweep) -> list[float]:
    """Log-likelihood rescaled: 0 at uniform guessing (log 10 nats per digit), 1 at certainty."""
    return [1 - value / math.log(10) for value in sweep.nats]


def rise_width(x: Sequence[float], y: Sequence[float]) -> float:
    """The distance between the 10% and 90% levels; from the first point where that is already above
    10%."""
    return first_crossing(x, y, 0.9) - first_crossing(x, y, 0.1)


def sharpness(sweep: SizeSweep) -> float:
    """Rise width of log-likelihood over that of exact answers, in log parameters."""
    return rise_width(sweep.size, likelihood_progress(sweep)) / rise_width(
        sweep.size, sweep.matches(DIGITS)
    )


def progress_at_first_exact(sweep: SizeSweep) -> float:
    """Rescaled log-likelihood at the size where 5% of the answers are exact."""
    import numpy as np

    return float(
        np.interp(
            first_crossing(sweep.size, sweep.matches(DIGITS), VISIBLE),
            sweep.size,
            likelihood_progress(sweep),
        )
    )


def power_law_excess(numbers: Numbers, seed: int) -> float:
    """Mean of exact − p^L over all sizes and times of a seed where p^L is between 5% and 95%."""
    pairs = [pair for pair in power_law_points(numbers, seed) if VISIBLE < pair[0] < 1 - VISIBLE]
    return sum(after - before for before, after in pairs) / len(pairs) if pairs else math.nan


def power_law_points(numbers: Numbers, seed: int | None = None) -> list[tuple[float, float]]:
    """(p^L, exact) of all sizes and times."""
    rows = [row for name, row in numbers.items() if seed is None or name.endswith(f".seed-{seed}")]
    return [
        (power_law(point["right"], DIGITS), point["exact"][str(DIGITS)])
        for row in rows
        for point in row["course"]
    ]


def half_exact_size(sweep: SizeSweep, length: int) -> float:
    """Log parameters at which half of the answers of a length are exact."""
    return first_crossing(sweep.size, sweep.matches(length), 0.5)


def judge_emergence(numbers: Numbers) -> Sequence[Check]:
    """All checks but the power law are undecided if the largest models recall less than half of the
    book."""
    sweeps = sweeps_by_seed(numbers)
    is_learned = all(sweep.matches(DIGITS)[-1] >= 0.5 for sweep in sweeps)
    sharp = Interval.of([sharpness(sweep) for sweep in sweeps])
    early = Interval.of([progress_at_first_exact(sweep) for sweep in sweeps])
    seeds = sorted({int(name.rsplit("-", 1)[1]) for name in numbers})
    error = Interval.of([power_law_excess(numbers, seed) for seed in seeds])
    later = Interval.of(
        [math.exp(half_exact_size(sweep, DIGITS) - half_exact_size(sweep, 2)) for sweep in sweeps]
    )
    return [
        Check(
            Words(
                "over model size, exact answers rise more than 1.5 times as sharply as"
                " log-likelihood (10% to 90% of the way, log axis)",
                "モデルの大きさに対し、"
                "完全一致は対数尤度の1.5倍を超える急さで立ち上がる（10%から90%まで、対数軸）",
            ),
            lies_above(sharp, SHARP) if is_learned else None,
            f"{sharp} times",
        ),
        Check(
            Words(
                "when 5% of the answers are exact, log-likelihood is already a third of the way"
                " from"
                " uniform guessing to certainty",
                "完全一致が5%に達した時点で、対数尤度は一様な推測から確信までの3分の1まで改善している",
            ),
            lies_above(early, EARLY) if is_learned else None,
            f"{early} of the way",
        ),
        Check(
            Words(
                f"exact match is p^{DIGITS}, p the accuracy per digit: within 5 points on"
                " average, where p^8 is between 5% and 95%",
                f"完全一致は p^{DIGITS}（p は桁ごとの正解率）："
                "p^8 が5%から95%のあいだで平均の差は5ポイント以内",
            ),
            lies_within(error, -NEAR, NEAR),
            f"exact − p^{DIGITS}: {error}",
        ),
        Check(
            Words(
                "scored on 8 digits instead of 2, the same models jump later: half of the"
                " answers are"
                " exact at more than 1.1 times the parameters",
                "2桁でなく8桁で採点すると同じモデル群の立ち上がりは遅れる：半数が正解するパラメータ数は1.1倍より大きい",
            ),
            lies_above(later, 1.1) if is_learned else None,
            f"{later} times",
        ),
    ]


def summarize_emergence(numbers: Numbers) -> Words:
    """The result in sentences."""
    sweeps = sweeps_by_seed(numbers)
    nats, right, exact = (
        Interval.of([pick(sweep) for sweep in sweeps]).mean
        for pick in (small_nats, small_right, small_exact)
    )
    needed = round(1 / max(right**DIGITS, 1e-12))
    last = Interval.of([sweep.matches(DIGITS)[-1] for sweep in sweeps]).mean
    law = judge_emergence(numbers)[2]
    return Words(
        f"The smallest models predict {right:.0%} of the digits correctly ({nats:.2f} nats per"
        " digit;"
        f" uniform guessing is {math.log(10):.2f}) and {exact:.1%} of the answers: p^{DIGITS}"
        " predicts"
        f" one in about {needed:,}. The largest have {last:.0%}. "
        + (
            f"The jump is the smooth per-digit accuracy raised to the power of {DIGITS}."
            if law.holds
            else f"Yet p^{DIGITS} is not shown to be the law ({law.measured})."
        ),
        f"最小のモデルは桁の{right:.0%}が正しい（1桁あたり{nats:.2f}ナット、"
        f"一様な推測では{math.log(10):.2f}）が、答え全体では{exact:.1%}である。p^{DIGITS}"
        f" の予想は約{needed:,}件に1件である。最大のモデルは{last:.0%}。"
        + (
            f"飛躍は、滑らかに上がる桁ごとの正解率を{DIGITS}乗したものである。"
            if law.holds
            else f"ただし p^{DIGITS} の法則は確かめられていない（{law.measured}）。"
        ),
    )


def small_nats(sweep: SizeSweep) -> float:
    return sweep.nats[0]


def small_right(sweep: SizeSweep) -> float:
    return sum(sweep.right[0]) / DIGITS


def small_exact(sweep: SizeSweep) -> float:
    return sweep.matches(DIGITS)[0]


def draw_emergence(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (smooth, sharp, lengths, law) = new_figure(4, width=3.7)
    sweeps = sweeps_by_seed(numbers)
    sizes = [math.exp(value) for value in sweeps[0].size]
    plot_mean(
        smooth,
        sizes,
        over_seeds([[-value for value in sweep.nats] for sweep in sweeps]),
        label="log-likelihood",
        number=0,
    )
    smooth.axhline(-math.log(10), color="0.5", linestyle=":", linewidth=1)
    smooth.annotate(
        "uniform guess",
        (sizes[-1], -math.log(10)),
        ha="right",
        va="bottom",
        fontsize=8,
        color="0.4",
    )
    smooth.set(ylabel="log-likelihood per digit, nats", title="Per digit")
    plot_mean(
        sharp,
        sizes,
        over_seeds([sweep.matches(DIGITS) for sweep in sweeps]),
        label="measured",
        number=1,
    )
    expected = [
        interval.mean for interval in over_seeds([sweep.predicted(DIGITS) for sweep in sweeps])
    ]
    sharp.plot(sizes, expected, color="0", linestyle="--", linewidth=1.2, label=f"p^{DIGITS}")
    sharp.set(ylim=(-0.03, 1.03), ylabel="share of exact answers", title=f"All {DIGITS} digits")
    sharp.legend(frameon=False, fontsize=8)
    draw_answer_lengths(lengths, sizes, sweeps)
    for axes in (smooth, sharp, lengths):
        axes.set(xscale="log", xlabel="parameters")
        plain_log_ticks(axes.xaxis)
    before, after = zip(*power_law_points(numbers), strict=True)
    law.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    law.scatter(before, after, s=12, color=COLOURS[2], alpha=0.5, linewidth=0)
    law.set(xlabel=f"p^{DIGITS}", ylabel="share of exact answers", title="All sizes and times")
    return {"emergence": figure}


def over_seeds(rows: Sequence[Sequence[float]]) -> list[Interval]:
    return [Interval.of(list(column)) for column in zip(*rows, strict=True)]


def draw_answer_lengths(axes: Axes, sizes: list[float], sweeps: Sequence[SizeSweep]) -> None:
    """The same models scored on the first 1, 2, 4 or 8 digits."""
    for number, length in enumerate(LENGTHS):
        means = over_seeds([sweep.matches(length) for sweep in sweeps])
        plot_mean(
            axes,
            sizes,
            means,
            label=f"first {length} digits" if length > 1 else "first digit",
            number=number,
        )
    axes.set(ylim=(-0.03, 1.03), ylabel="share of exact answers", title="Scored on fewer digits")
    axes.legend(frameon=False, fontsize=8)


EXPERIMENT = Experiment(
    name="emergence",
    title=Words(
        "Emergence: a jump in the metric, not in the model",
        "創発：飛躍するのはモデルではなく評価指標",
    ),
    claim=Words(
        "Abilities seem to emerge abruptly where the metric requires many tokens to be correct at"
        " once; the likelihood of each token improves smoothly.",
        "能力が突然現れるように見えるのは、"
        "多くのトークンがすべて正しいことを求める評価指標のためで、"
        "各トークンの尤度は滑らかに良くなる。",
    ),
    source="Schaeffer et al. 2023; Wei et al. 2022",
    equation="P(all L tokens right) ≈ p^L,   log p ≈ −loss",
    look_for=Words(
        "a smooth curve on the left, a jump beside it, the dashed p^L line through the jump, and"
        " jumps"
        " that move right as more digits are scored",
        "左の滑らかな曲線、その隣の飛躍、飛躍を通る破線（p^L）、そして採点する桁が増えるほど右へ動く飛躍",
    ),
    parts=emergence_parts,
    judge=judge_emergence,
    draw=draw_emergence,
    summarize=summarize_emergence,
)
