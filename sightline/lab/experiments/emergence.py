"""Emergence: as models grow, whole answers seem to come all at once, while each token of them
becomes likelier bit by bit.

The task is a telephone book: a name, and eight random digits to be said behind it. A model is asked
only for what it was taught.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.statistics import Interval, above, within
from sightline.lab.style import COLOURS, figure, line, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.core.model import Transformer


@dataclass(frozen=True, slots=True)
class Plan:
    """Models of these widths, each taught a book of so many names."""

    widths: tuple[int, ...]
    names: int
    steps: int
    seeds: int


PLANS = {
    "quick": Plan((3, 5, 8, 12, 18, 27), 128, 300, 4),
    "default": Plan((3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20), 256, 400, 5),
    "full": Plan((3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32), 512, 800, 10),
}
DIGITS = 8
LENGTHS = (1, 2, 4, 8)
RATE = 1e-2
TIMES = 8
SEEN = 0.05
SHARP = 1.5
EARLY = 1 / 3
NEAR = 0.05


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    plan = PLANS[tier]
    return [
        Part(
            f"width-{width}.names-{plan.names}.steps-{plan.steps}.seed-{n}",
            lambda width=width, n=n: taught(plan, width, n),
        )
        for n in range(seed, seed + plan.seeds)
        for width in plan.widths
    ]


def book(names: int, seed: int) -> tuple[Tensor, Tensor]:
    """What is read, name and digits but the last; what should be said, all digits. Names are tokens
    behind the ten digits."""
    import torch

    from sightline.lab.learning import random_of

    digits = torch.randint(10, (names, DIGITS), generator=random_of(seed, 1))
    return torch.cat([10 + torch.arange(names)[:, None], digits[:, :-1]], 1), digits


def taught(plan: Plan, width: int, seed: int) -> dict[str, Any]:
    """One layer of a width, taught half the book at each step; how well it knows the book, a few
    times on the way and at the end."""
    import torch

    from sightline.architectures import gpt
    from sightline.lab.learning import Drill, asked, learn, random_of
    from sightline.training.data.batch import Batch

    tokens, digits = book(plan.names, seed)

    def page(step: int) -> Batch:
        rows = torch.randint(plan.names, (plan.names // 2,), generator=random_of(seed, 2, step))
        return asked(tokens[rows], digits[rows])

    config = gpt(
        width=width, layers=1, heads=1, vocab_size=10 + plan.names, max_positions=DIGITS, tied=False
    )
    when = {plan.steps * n // TIMES for n in range(1, TIMES + 1)}
    found = list[dict[str, Any]]()
    parameters = 0
    for learner, event in learn(config, Drill(page), steps=plan.steps, lr=RATE, seed=seed):
        if event.step in when:
            parameters = sum(parameter.numel() for parameter in learner.transformer.parameters())
            found.append({"step": event.step} | known(learner.transformer, tokens, digits))
    return {"width": width, "parameters": parameters, "course": found}


def known(model: Transformer, tokens: Tensor, digits: Tensor) -> dict[str, Any]:
    """Nats a digit; the share of digits that are likeliest, by place; the share of answers whose
    first 1, 2, 4, 8 digits all are.

    Greedy decoding gives the right answer if and only if each digit is the likeliest behind the
    right ones before it.
    """
    import torch

    with torch.no_grad():
        logits = model(tokens)
    right = logits.argmax(-1) == digits
    nats = -logits.double().log_softmax(-1).gather(-1, digits[..., None]).mean()
    exact = {str(length): float(right[:, :length].all(1).double().mean()) for length in LENGTHS}
    return {"nats": float(nats), "right": right.double().mean(0).tolist(), "exact": exact}


@dataclass(frozen=True, slots=True)
class Ladder:
    """One seed's models at the end of training, from the smallest: log parameters, nats a digit,
    digits right, answers exact."""

    size: list[float]
    nats: list[float]
    right: list[list[float]]
    exact: list[Mapping[str, float]]

    def matches(self, length: int) -> list[float]:
        return [row[str(length)] for row in self.exact]

    def predicted(self, length: int) -> list[float]:
        return [power(row, length) for row in self.right]


def power(right: Sequence[float], length: int) -> float:
    """p^L with p the share of right digits among the first L."""
    return (sum(right[:length]) / length) ** length


def ladders(numbers: Numbers) -> list[Ladder]:
    """One for each seed."""
    seeds = sorted({int(name.rsplit("-", 1)[1]) for name in numbers})
    return [
        ladder([row for name, row in numbers.items() if name.endswith(f".seed-{seed}")])
        for seed in seeds
    ]


def ladder(rows: Sequence[Mapping[str, Any]]) -> Ladder:
    rows = sorted(rows, key=lambda row: row["parameters"])
    ends = [row["course"][-1] for row in rows]
    size = [math.log(row["parameters"]) for row in rows]
    return Ladder(
        size,
        [end["nats"] for end in ends],
        [end["right"] for end in ends],
        [end["exact"] for end in ends],
    )


def crossing(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """Where a rising curve first reaches the level, on straight lines between its points; NaN where
    it does not."""
    if y[0] >= level:
        return x[0]
    for n in range(1, len(x)):
        if y[n - 1] < level <= y[n]:
            return x[n - 1] + (x[n] - x[n - 1]) * (level - y[n - 1]) / (y[n] - y[n - 1])
    return math.nan


def way(one: Ladder) -> list[float]:
    """How far the log-likelihood has come: 0 for a blind guess of log 10 nats a digit, 1 for
    certainty."""
    return [1 - value / math.log(10) for value in one.nats]


def rise(x: Sequence[float], y: Sequence[float]) -> float:
    """The distance from 10% to 90% of the way. From the first point, where that is above 10%
    already: no more than what is seen."""
    return crossing(x, y, 0.9) - crossing(x, y, 0.1)


def sharpness(one: Ladder) -> float:
    """The rise of the log-likelihood over that of exact answers, on the axis of log parameters."""
    return rise(one.size, way(one)) / rise(one.size, one.matches(DIGITS))


def unseen(one: Ladder) -> float:
    """How far the log-likelihood has come when 5% of the answers are exact."""
    import numpy as np

    return float(np.interp(crossing(one.size, one.matches(DIGITS), SEEN), one.size, way(one)))


def excess(numbers: Numbers, seed: int) -> float:
    """Mean of exact − p^L over all sizes and times of a seed where p^L is neither nearly 0 nor
    nearly 1; its noise averages out."""
    pairs = [pair for pair in points(numbers, seed) if SEEN < pair[0] < 1 - SEEN]
    return sum(after - before for before, after in pairs) / len(pairs) if pairs else math.nan


def points(numbers: Numbers, seed: int | None = None) -> list[tuple[float, float]]:
    """(p^L, exact) of all sizes and times."""
    rows = [row for name, row in numbers.items() if seed is None or name.endswith(f".seed-{seed}")]
    return [
        (power(one["right"], DIGITS), one["exact"][str(DIGITS)])
        for row in rows
        for one in row["course"]
    ]


def half(one: Ladder, length: int) -> float:
    """Log parameters at which half of the answers of a length are exact."""
    return crossing(one.size, one.matches(length), 0.5)


def judge(numbers: Numbers) -> Sequence[Check]:
    """Open, all but the power law, where the largest models do not know half of the book."""
    found = ladders(numbers)
    over = all(one.matches(DIGITS)[-1] >= 0.5 for one in found)
    sharp = Interval.of([sharpness(one) for one in found])
    early = Interval.of([unseen(one) for one in found])
    seeds = sorted({int(name.rsplit("-", 1)[1]) for name in numbers})
    error = Interval.of([excess(numbers, seed) for seed in seeds])
    later = Interval.of([math.exp(half(one, DIGITS) - half(one, 2)) for one in found])
    return [
        Check(
            Words(
                "over model size, exact answers rise more than 1.5 times as sharply as"
                " log-likelihood (10% to 90% of the way, log axis)",
                "モデルの大きさに対し、"
                "完全一致は対数尤度の1.5倍を超える急さで立ち上がる（10%から90%まで、対数軸）",
            ),
            above(sharp, SHARP) if over else None,
            f"{sharp} times",
        ),
        Check(
            Words(
                "when 5% of the answers are exact, log-likelihood has already come a third of the"
                " way from a blind guess to certainty",
                "完全一致が5%に達した時、対数尤度はでたらめから確信までの道のりの3分の1をすでに進んでいる",
            ),
            above(early, EARLY) if over else None,
            f"{early} of the way",
        ),
        Check(
            Words(
                f"exact match is p^{DIGITS}, p the share of right digits: within 5 points on"
                " average, where p^8 is between 5% and 95%",
                f"完全一致は p^{DIGITS}（p は桁ごとの正解率）："
                "p^8 が5%から95%のあいだで平均の差は5ポイント以内",
            ),
            within(error, -NEAR, NEAR),
            f"exact − p^{DIGITS}: {error}",
        ),
        Check(
            Words(
                "asked for 8 digits and not for 2, the same models jump later: half are exact at"
                " more than 1.1 times the parameters",
                "2桁でなく8桁を尋ねると同じモデル群の立ち上がりは遅れる：半分正解に要する大きさは1.1倍より大きい",
            ),
            above(later, 1.1) if over else None,
            f"{later} times",
        ),
    ]


def told(numbers: Numbers) -> Words:
    """In sentences."""
    found = ladders(numbers)
    nats, right, exact = (
        Interval.of([pick(one) for one in found]).mean
        for pick in (small_nats, small_right, small_exact)
    )
    needed = round(1 / max(right**DIGITS, 1e-12))
    last = Interval.of([one.matches(DIGITS)[-1] for one in found]).mean
    law = judge(numbers)[2]
    return Words(
        f"The smallest models have {right:.0%} of the digits right ({nats:.2f} nats a digit;"
        f" {math.log(10):.2f} is a blind guess) and {exact:.1%} of the answers: p^{DIGITS} expects"
        f" one in about {needed:,}. The largest have {last:.0%}. "
        + (
            f"The digits' steady progress, raised to the power of {DIGITS}, is the jump."
            if law.holds
            else f"Yet p^{DIGITS} is not shown to be the law ({law.found})."
        ),
        f"最小のモデルは桁の{right:.0%}が正しい（1桁あたり{nats:.2f}ナット、"
        f"当てずっぽうは{math.log(10):.2f}）が、答え全体では{exact:.1%}である。p^{DIGITS}"
        f" の予想は約{needed:,}件に1件である。最大のモデルは{last:.0%}。"
        + (
            f"桁ごとの着実な進歩を{DIGITS}乗したものが飛躍である。"
            if law.holds
            else f"ただし p^{DIGITS} の法則は確かめられていない（{law.found}）。"
        ),
    )


def small_nats(one: Ladder) -> float:
    return one.nats[0]


def small_right(one: Ladder) -> float:
    return sum(one.right[0]) / DIGITS


def small_exact(one: Ladder) -> float:
    return one.matches(DIGITS)[0]


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, (smooth, sharp, lengths, law) = figure(4, width=3.7)
    found = ladders(numbers)
    sizes = [math.exp(value) for value in found[0].size]
    line(
        smooth,
        sizes,
        over_seeds([[-value for value in one.nats] for one in found]),
        label="log-likelihood",
        number=0,
    )
    smooth.axhline(-math.log(10), color="0.5", linestyle=":", linewidth=1)
    smooth.annotate(
        "blind guess", (sizes[-1], -math.log(10)), ha="right", va="bottom", fontsize=8, color="0.4"
    )
    smooth.set(ylabel="log-likelihood a digit, nats", title="Each digit")
    line(
        sharp, sizes, over_seeds([one.matches(DIGITS) for one in found]), label="measured", number=1
    )
    expected = [one.mean for one in over_seeds([one.predicted(DIGITS) for one in found])]
    sharp.plot(sizes, expected, color="0", linestyle="--", linewidth=1.2, label=f"p^{DIGITS}")
    sharp.set(ylim=(-0.03, 1.03), ylabel="share of exact answers", title=f"All {DIGITS} digits")
    sharp.legend(frameon=False, fontsize=8)
    draw_lengths(lengths, sizes, found)
    for axes in (smooth, sharp, lengths):
        axes.set(xscale="log", xlabel="parameters")
        plain_numbers(axes.xaxis)
    before, after = zip(*points(numbers), strict=True)
    law.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    law.scatter(before, after, s=12, color=COLOURS[2], alpha=0.5, linewidth=0)
    law.set(xlabel=f"p^{DIGITS}", ylabel="share of exact answers", title="All sizes and times")
    return {"emergence": made}


def over_seeds(rows: Sequence[Sequence[float]]) -> list[Interval]:
    return [Interval.of(list(column)) for column in zip(*rows, strict=True)]


def draw_lengths(axes: Axes, sizes: list[float], found: Sequence[Ladder]) -> None:
    """The same models' answers, of which more or less is asked."""
    for number, length in enumerate(LENGTHS):
        means = over_seeds([one.matches(length) for one in found])
        line(
            axes,
            sizes,
            means,
            label=f"first {length}" if length > 1 else "first digit",
            number=number,
        )
    axes.set(ylim=(-0.03, 1.03), ylabel="share of exact answers", title="Asked for fewer digits")
    axes.legend(frameon=False, fontsize=8)


EXPERIMENT = Experiment(
    name="emergence",
    title=Words(
        "Emergence: a jump in the measure, not in the model",
        "創発：飛躍するのはモデルではなく測り方",
    ),
    claim=Words(
        "Abilities seem to appear at once where the measure asks for many tokens at a time; each"
        " token's likelihood improves smoothly.",
        "能力が突然現れるように見えるのは、"
        "多くのトークンを一度に正しく言うことを求める測り方のためで、"
        "各トークンの尤度は滑らかに良くなる。",
    ),
    source="Schaeffer et al. 2023; Wei et al. 2022",
    equation="P(all L tokens right) ≈ p^L,   log p ≈ −loss",
    look_for=Words(
        "a slope on the left, a jump beside it, the dashed line through the jump, and jumps that"
        " move right as more digits are asked for",
        "左の緩やかな坂、その隣の飛躍、飛躍を通る破線、そして求める桁が増えるほど右へ動く飛躍",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
)
