"""Emergence: as training compute grows, exact answers seem to appear abruptly, while the likelihood
of each of their digits rises earlier and less sharply.

The task is column addition: each token is a column of two digits, the lowest first, and the target
at each column is the digit of the sum. A carry may run through several columns, so that errors of
one answer may come together; nothing in the task makes them independent.
"""

from __future__ import annotations

import math
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
from sightline.lab.measures.column_sums import (
    DIGITS,
    LENGTHS,
    VISIBLE,
    Course,
    delay_of_long_answers,
    likelihood_progress,
    progress_at_first_exact,
    random_sums,
    scores_of_model,
    sharpness,
)
from sightline.lab.measures.curves import first_crossing, log_spaced_steps
from sightline.lab.statistics import (
    Decision,
    Interval,
    decide_above,
    decide_below,
)
from sightline.lab.style import COLOURS, new_figure, plain_log_ticks, plot_mean
from sightline.lab.tuning import PILOT, Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class EmergencePlan:
    """The width of the models, the base of the digits, and the length of the training."""

    width: int
    base: int
    steps: int
    seeds: int
    pilots: int

    @property
    def place(self) -> str:
        return f"width-{self.width}.base-{self.base}.steps-{self.steps}"


PLANS: dict[Tier, EmergencePlan] = {
    "quick": EmergencePlan(24, 5, 400, 3, 1),
    "default": EmergencePlan(24, 10, 800, 12, 3),
    "full": EmergencePlan(48, 10, 2000, 24, 3),
}
ARM = "adder"
RATES = (0.005, 0.01, 0.02, 0.04, 0.08)  # of Muon; AdamW, for the embeddings, has half of it
ROWS = 64
TESTED = 1000
STEP_RATIO = 1.08  # each measurement this much later than the one before
LEARNED = 0.5  # exact answers at the end: below it, there is no jump to measure


def emergence_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """The score of a rate is the mean loss over all steps: how early it learns."""
    plan = PLANS[tier]
    return pilot_parts(
        Grid((ARM,), RATES, plan.pilots, plan.place),
        lambda _, rate, seed: {"score": mean_loss(train_on_sums(plan, rate, seed))},
    )


def mean_loss(row: Mapping[str, Any]) -> float:
    """The mean over the steps, each with the next measurement after it."""
    looks = row["course"]
    starts = [0, *(look["step"] for look in looks)]
    total = sum(
        look["nats"] * (look["step"] - start) for start, look in zip(starts, looks, strict=False)
    )
    return total / starts[-1]


def emergence_parts(plan: Plan) -> Sequence[ExperimentPart]:
    sizes = PLANS[plan.tier]
    rate = plan.rate(ARM)
    return [
        ExperimentPart(
            f"{sizes.place}.rate-{rate:g}.seed-{n}", lambda n=n: train_on_sums(sizes, rate, n)
        )
        for n in plan.seeds(sizes.seeds)
    ]


def train_on_sums(plan: EmergencePlan, rate: float, seed: int) -> dict[str, Any]:
    """Train one layer on fresh sums; measure it on others, at steps evenly spaced on a logarithmic
    axis. The rate is constant: a decaying one could be mistaken for the end of a jump."""
    from sightline.architectures import gpt
    from sightline.lab.learning import (
        GeneratedTask,
        labelled_batch,
        seeded_generator,
        training_steps,
    )
    from sightline.training.config import AdamW, Muon, Schedule

    base = plan.base
    task = GeneratedTask(
        lambda step: labelled_batch(*random_sums(ROWS, base, seeded_generator(seed, 1, step)))
    )
    tokens, digits = random_sums(TESTED, base, seeded_generator(seed, 2))
    config = gpt(
        width=plan.width, layers=1, heads=1, vocab_size=base**2, max_positions=DIGITS, tied=False
    )
    when = log_spaced_steps(plan.steps, STEP_RATIO)
    course = list[dict[str, Any]]()
    for learner, event in training_steps(
        config,
        task,
        steps=plan.steps,
        optimizer=Muon(lr=rate, rest=AdamW(lr=rate / 2)),
        shape=Schedule(shape="constant", warmup=10),
        seed=seed,
    ):
        if event.step in when:
            scores = scores_of_model(learner.transformer, tokens, digits, base)
            course.append({"step": event.step} | scores)
    return {"base": base, "course": course}


# ---------------------------------------------------------------------------------------- verdict


def runs_of(numbers: Numbers) -> dict[str, Mapping[str, Any]]:
    """Without the pilots."""
    return {name: row for name, row in numbers.items() if not name.startswith(PILOT)}


def courses(numbers: Numbers) -> list[Course]:
    """One course per seed."""
    return [Course.of(row) for row in runs_of(numbers).values()]


def is_learned(course: Course) -> bool:
    return max(course.matches(DIGITS)) >= LEARNED


def power_law_points(course: Course) -> list[tuple[float, float]]:
    """(p^L, exact) at all times."""
    return list(zip(course.predicted(DIGITS), course.matches(DIGITS), strict=True))


def power_law_excess(course: Course) -> float:
    """Mean of exact − p^L over the times at which p^L is between 5% and 95%."""
    pairs = [pair for pair in power_law_points(course) if VISIBLE < pair[0] < 1 - VISIBLE]
    return sum(after - before for before, after in pairs) / len(pairs) if pairs else math.nan


def judge_emergence(numbers: Numbers) -> Sequence[Check]:
    """All checks but the power law are undecided unless every model solves half of the sums."""
    runs = courses(numbers)
    all_learned = all(is_learned(course) for course in runs)
    error = Interval.of([power_law_excess(course) for course in runs])
    return [
        curve_check(
            SHARPER,
            Interval.ratio([sharpness(course) for course in runs]),
            1.0,  # as sharp as the likelihood: the metric adds nothing
            "{} times",
            is_learned=all_learned,
        ),
        curve_check(
            EARLIER,
            Interval.share([progress_at_first_exact(course) for course in runs]),
            VISIBLE,  # as far as the exact answers: both rise together
            "{} of the way",
            is_learned=all_learned,
        ),
        Check.over_seeds(
            NEAR_POWER,
            f"exact − p^{DIGITS}: {error}",
            decide_above(error, -VISIBLE),
            decide_below(error, VISIBLE),
        ),
        curve_check(
            LATER,
            Interval.ratio([delay_of_long_answers(course) for course in runs]),
            1.0,  # no delay
            "{} times",
            is_learned=all_learned,
        ),
    ]


SHARPER = Words(
    "over training compute, exact answers rise more sharply than log-likelihood (10% to 90% of the"
    " way, log axis)",
    "学習の計算量に対し、完全一致は対数尤度より急に立ち上がる（10%から90%まで、対数軸）",
)
EARLIER = Words(
    "when 5% of the answers are exact, log-likelihood has already covered more than 5% of the way"
    " from uniform guessing to certainty",
    "完全一致が5%に達した時点で、対数尤度は一様な推測から確信までの5%より先まで改善している",
)
NEAR_POWER = Words(
    f"although carries connect the digits, exact match is near p^{DIGITS}, p the accuracy per"
    f" digit: within 5 points on average, where p^{DIGITS} is between 5% and 95%",
    f"繰り上がりが桁をつないでいても、完全一致は p^{DIGITS}（p は桁ごとの正解率）に近い："
    f"p^{DIGITS} が5%から95%のあいだで平均の差は5ポイント以内",
)
LATER = Words(
    "scored on 8 digits instead of 2, the same models jump later: more steps until half of the"
    " answers are exact",
    "2桁でなく8桁で採点すると同じモデルの立ち上がりは遅れる：半数が正解するまでのステップ数が増える",
)


def curve_check(
    statement: Words, interval: Interval, bound: float, text: str, *, is_learned: bool
) -> Check:
    """A comparison of curves, undecided where no model has learned the task."""
    decision = decide_above(interval, bound)
    if not is_learned:
        decision = Decision(None, interval, bound)
    return Check.over_seeds(statement, text.format(interval), decision)


def mean_over_seeds(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def jump_of_likelihood(course: Course) -> float:
    """The share of log-likelihood's way that it covers while exact answers rise from 5% to 90%."""
    import numpy as np

    exact = course.matches(DIGITS)
    ends = [first_crossing(course.time, exact, level) for level in (VISIBLE, 0.9 * max(exact))]
    first, last = np.interp(ends, course.time, likelihood_progress(course))
    return float(last - first)


def error_correlations(numbers: Numbers) -> list[float]:
    """Per seed: the correlation of two digits' errors while half of the answers are exact."""
    looks = [row["course"] for row in runs_of(numbers).values()]
    nearest = [min(row, key=lambda look: abs(look["exact"][str(DIGITS)] - 0.5)) for row in looks]
    return [look["together"] for look in nearest]


def summarize_emergence(numbers: Numbers) -> Words:
    """The result in sentences."""
    runs = courses(numbers)
    base = runs[0].base
    learned = sum(is_learned(course) for course in runs)
    if learned < len(runs):
        return Words(
            f"{learned} of {len(runs)} models solved half of the sums: more steps may be needed.",
            f"{len(runs)}個のモデルのうち、和の半数を解けたのは{learned}個である。"
            "ステップ数が足りない可能性がある。",
        )
    right = mean_over_seeds([(digits_right_before(course)) for course in runs])
    last = mean_over_seeds([course.matches(DIGITS)[-1] for course in runs])
    jump = mean_over_seeds([jump_of_likelihood(course) for course in runs])
    together = Interval.of(error_correlations(numbers))
    return Words(
        f"Digits of base {base}, {DIGITS} columns. Before 5% of the answers are exact,"
        f" {right:.0%} of the digits already are correct; at the end {last:.0%} of the answers are"
        f" exact. While exact answers rise from there to 90%, log-likelihood covers the last"
        f" {jump:.0%} of its way: learning the carry is a real step, which the metric makes look"
        " like the whole. When half of the answers are exact, the errors of two digits have a"
        f" correlation of {together}.",
        f"{base}進数、{DIGITS}桁。完全一致が5%に達する前に、桁の{right:.0%}はすでに正しい。"
        f"最後は答えの{last:.0%}が完全に一致する。完全一致がそこから90%まで上がるあいだに対数尤度が"
        f"進むのは残りの{jump:.0%}だけである。繰り上がりの学習は実際の一歩だが、"
        "指標はそれを全体の飛躍に見せる。"
        f"答えの半数が正しい時点で、二つの桁の誤りの相関は {together}。",
    )


def digits_right_before(course: Course) -> float:
    """The accuracy per digit at the last measurement with less than 5% exact answers."""
    exact = course.matches(DIGITS)
    last = max((n for n, value in enumerate(exact) if value < VISIBLE), default=0)
    return sum(course.right[last]) / DIGITS


def draw_emergence(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (smooth, sharp, lengths, law) = new_figure(4, width=4.2)
    runs = courses(numbers)
    steps = [math.exp(value) for value in runs[0].time]
    plot_mean(
        smooth,
        steps,
        over_seeds([[-value for value in course.nats] for course in runs]),
        label="log-likelihood",
        number=0,
    )
    guess = -math.log(runs[0].base)
    smooth.axhline(guess, color="0.5", linestyle=":", linewidth=1)
    smooth.annotate(
        "uniform guess",
        (steps[-1], guess),
        ha="right",
        va="bottom",
        fontsize=8,
        color="0.4",
    )
    smooth.set(ylabel="log-likelihood per digit, nats", title="Per digit")
    plot_mean(
        sharp,
        steps,
        over_seeds([course.matches(DIGITS) for course in runs]),
        label="measured",
        number=1,
    )
    expected = [
        interval.mean for interval in over_seeds([course.predicted(DIGITS) for course in runs])
    ]
    sharp.plot(steps, expected, color="0", linestyle="--", linewidth=1.2, label=f"p^{DIGITS}")
    sharp.set(ylim=(-0.03, 1.03), ylabel="share of exact answers", title=f"All {DIGITS} digits")
    sharp.legend(frameon=False, fontsize=8)
    draw_answer_lengths(lengths, steps, runs)
    for axes in (smooth, sharp, lengths):
        axes.set(xscale="log", xlabel="step")
        plain_log_ticks(axes.xaxis)
    points = [point for course in runs for point in power_law_points(course)]
    before, after = zip(*points, strict=True)
    law.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    law.scatter(before, after, s=12, color=COLOURS[2], alpha=0.5, linewidth=0)
    law.set(xlabel=f"p^{DIGITS}", ylabel="share of exact answers", title="All seeds and times")
    return {"emergence": figure}


def over_seeds(rows: Sequence[Sequence[float]]) -> list[Interval]:
    """Means and intervals of each size; shares stay between 0 and 1."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    is_share = all(0 <= value <= 1 for column in columns for value in column)
    return [Interval.share(column) if is_share else Interval.of(column) for column in columns]


def draw_answer_lengths(axes: Axes, steps: list[float], runs: Sequence[Course]) -> None:
    """The same models scored on the first 1, 2, 4 or 8 digits."""
    for number, length in enumerate(LENGTHS):
        means = over_seeds([course.matches(length) for course in runs])
        plot_mean(
            axes,
            steps,
            means,
            label=f"first {length} digits" if length > 1 else "first digit",
            number=number,
        )
    axes.set(ylim=(-0.03, 1.03), ylabel="share of exact answers", title="Scored on fewer digits")
    axes.legend(frameon=False, fontsize=8)


EXPERIMENT = Experiment(
    name="emergence",
    title=Words(
        "Emergence: a jump that the metric makes",
        "創発：評価指標が作る飛躍",
    ),
    claim=Words(
        "As training compute grows, exact answers to column addition appear abruptly, because the"
        " metric requires all digits to be correct at once; the likelihood of each digit improves"
        " earlier and less sharply.",
        "筆算の足し算の学習で計算量が増えるとき、"
        "すべての桁が正しいことを求める指標では能力が突然現れるように見えるが、"
        "各桁の尤度はより早く、より緩やかに良くなる。",
    ),
    source="Schaeffer et al. 2023; Wei et al. 2022",
    equation="P(all L tokens right) ≈ p^L,   log p ≈ −loss",
    look_for=Words(
        "a gradual curve on the left, a jump beside it, and jumps that move right as more digits"
        " are scored. The dashed line is p^L, from the accuracy per digit; the points on the right"
        " would lie above the diagonal if wrong digits came together in few answers",
        "左の緩やかな曲線、その隣の飛躍、そして採点する桁が増えるほど右へ動く飛躍。"
        "破線は桁ごとの正解率からの p^L。"
        "誤りが少数の答えに集まるなら、右の図の点は対角線より上に来る",
    ),
    parts=emergence_parts,
    pilots=emergence_pilots,
    judge=judge_emergence,
    draw=draw_emergence,
    summarize=summarize_emergence,
    settle=24,
    arms={ARM: Words("adder", "足し算のモデル")},
    corrections=(
        Words(
            "That one metric makes a jump does not show that no ability emerges abruptly: in"
            " grokking and induction-heads the loss itself falls within few steps.",
            "ある指標が飛躍を作ることは、突然現れる能力がないことを意味しない。"
            "グロッキングと誘導ヘッドでは損失自体が少ないステップで下がる。",
        ),
    ),
)
