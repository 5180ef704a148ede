"""Pruning attention heads of a trained model: loss against the number of heads removed, in the
order of their importance on other texts, of a gradient, of their norm, and at random."""

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
    Tier,
    Words,
)
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    mean_of,
    paired_difference,
)
from sightline.lab.style import COLOURS, new_figure, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL = "stories15m"  # 6 layers of 6 heads: small enough to ablate each head on many texts
HEADS = 36
SEEDS: Mapping[Tier, int] = {"quick": 2, "default": 12, "full": 30}
SETTLE = 24
TEXTS: Mapping[Tier, int] = {"quick": 2, "default": 4, "full": 8}  # to choose, and again to judge
TOKENS: Mapping[Tier, int] = {"quick": 48, "default": 96, "full": 192}
COUNTS = (4, 7, 11, 18, 29, HEADS)
FIFTH = 7  # of 36; Michel et al. find that 20 to 40% can go
THIRD = 11  # the middle of these
ORDERS = {
    "importance": Words("least important first", "重要度の低い順"),
    "gradient": Words("smallest gradient first", "勾配の小さい順"),
    "random": Words("at random", "無作為"),
    "norm": Words("smallest norm first", "ノルムの小さい順"),
}


def pruning_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    texts, tokens = TEXTS[tier], TOKENS[tier]
    return [
        ExperimentPart(f"{MODEL}.roles", count_roles),
        *(
            ExperimentPart(
                f"{MODEL}.texts-{texts}.tokens-{tokens}.seed-{n}",
                lambda n=n: prune_stories(texts, tokens, n),
            )
            for n in plan.seeds(SEEDS)
        ),
    ]


def prune_stories(texts: int, tokens: int, seed: int) -> dict[str, Any]:
    """The orders from some stories, the losses on others. All are the model's own, sampled at
    temperature 1: so the loss is its entropy, and a rise of the loss is the divergence from it."""
    import torch

    from sightline.lab.measures.head_pruning import prune
    from sightline.loading import load

    model = load(MODEL)
    start = model.tokenizer.bos if model.tokenizer is not None else None
    assert start is not None
    stories = torch.tensor(
        [
            [
                start,
                *model.generate([start], seed=story, temperature=1.0, max_tokens=tokens - 1).tokens,
            ]
            for story in range(2 * texts * seed, 2 * texts * (seed + 1))
        ]
    )
    return prune(model.transformer, stories[:texts], stories[texts:], counts=COUNTS, seed=seed)


def count_roles() -> list[list[str]]:
    """The role of each head, by layer."""
    from sightline.lens.heads.profile import heads_of
    from sightline.loading import load

    return [[head.role for head in row] for row in heads_of(load(MODEL)).grid("decoder")]


# ---------------------------------------------------------------------------------------- verdict


def seed_rows(numbers: Numbers) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if ".seed-" in name]


def losses_without(numbers: Numbers, by: str, order: str, count: int) -> list[float]:
    """The loss of every seed without so many heads."""
    return [
        row["loss"] if count == 0 else row["curves"][by][order][row["counts"].index(count)]
        for row in seed_rows(numbers)
    ]


def gap(numbers: Numbers, ours: tuple[str, str], theirs: tuple[str, str]) -> Interval:
    """Loss of one way (how removed, in which order) − loss of another, without a third of the
    heads, on the same texts."""
    return paired_difference(
        losses_without(numbers, *ours, THIRD), losses_without(numbers, *theirs, THIRD)
    )


def judge_pruning(numbers: Numbers) -> Sequence[Check]:
    """Every bound is 0: the claims say which of two ways costs less on the same texts."""
    return [
        few_heads_matter(numbers),
        *(order_check(numbers, *row) for row in COMPARISONS),
        costs_add_up(numbers),
    ]


def few_heads_matter(numbers: Numbers) -> Check:
    costliest = [row["costliest"] for row in seed_rows(numbers)]
    whole = losses_without(numbers, "zero", "importance", 0)
    without = losses_without(numbers, "zero", "importance", FIFTH)
    difference = paired_difference(without, costliest)
    return Check.over_seeds(
        Words(
            f"the {FIFTH} least important of {HEADS} heads (20%) together cost less than the most"
            " important one alone (ranked on other texts)",
            f"重要度の低い{FIFTH}個（{HEADS}個の20%）をまとめて除く損失は、"
            "最も重要な1個を除く損失より小さい（順位は別の文で決める）",
        ),
        f"{FIFTH} heads +{paired_difference(without, whole)}, one head"
        f" +{paired_difference(costliest, whole)} nats; difference {difference}",
        decide_below(difference, 0.0),
    )


def costs_add_up(numbers: Numbers) -> Check:
    """All heads, so that no choice biases the sum of the single costs."""
    rows = seed_rows(numbers)
    sums = [sum(sum(layer) for layer in row["importance"]) for row in rows]
    joint = [row["curves"]["zero"]["importance"][-1] - row["loss"] for row in rows]
    difference = paired_difference(joint, sums)
    return Check.over_seeds(
        Words(
            "costs do not add up: all heads together cost more than the sum of each alone",
            "損失は足し算にならない：全ヘッドをまとめて除く損失は、1個ずつの損失の合計より大きい",
        ),
        f"all together +{mean_of(joint):.2f}, sum of each +{mean_of(sums):.2f} nats; difference"
        f" {difference}",
        decide_above(difference, 0.0),
    )


COMPARISONS: Sequence[tuple[Words, tuple[str, str], tuple[str, str]]] = (
    (
        Words(
            "removed in the order of importance, a third costs less than at random",
            "重要度の低い順に3分の1を除く損失は、無作為に除くより小さい",
        ),
        ("zero", "importance"),
        ("zero", "random"),
    ),
    (
        Words(
            "the gradient, one backward pass for all heads, also orders them better than chance",
            "全ヘッドを1回の逆伝播で評価する勾配の順も、無作為より良い",
        ),
        ("zero", "gradient"),
        ("zero", "random"),
    ),
    (
        Words(
            "the norm of what a head adds is no measure of its importance: smallest first is worse"
            " than at random",
            "ヘッドの出力のノルムは重要度の尺度にならない：小さい順は無作為より悪い",
        ),
        ("zero", "random"),
        ("zero", "norm"),
    ),
    (
        Words(
            "a head replaced by its mean output costs less than one set to zero (a third, at"
            " random)",
            "平均出力で置き換える方が、ゼロにするより損失が小さい（無作為に3分の1）",
        ),
        ("mean", "random"),
        ("zero", "random"),
    ),
)


def order_check(
    numbers: Numbers, statement: Words, ours: tuple[str, str], theirs: tuple[str, str]
) -> Check:
    difference = gap(numbers, ours, theirs)
    names = [f"{mean_of(losses_without(numbers, *way, THIRD)):.2f}" for way in (ours, theirs)]
    return Check.over_seeds(
        statement,
        f"without {THIRD} heads: {names[0]} against {names[1]} nats per token; difference"
        f" {difference}",
        decide_below(difference, 0.0),
    )


# --------------------------------------------------------------------------- figures and summary


def draw_pruning(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (zero, mean, heads) = new_figure(3, width=4.4, height=3.8)
    counts = [0, *seed_rows(numbers)[0]["counts"]]
    for axes, by in ((zero, "zero"), (mean, "mean")):
        for number, (order, label) in enumerate(ORDERS.items()):
            intervals = [Interval.of(losses_without(numbers, by, order, count)) for count in counts]
            plot_mean(axes, list(map(float, counts)), intervals, label=label.en, number=number)
        axes.set(xlabel=f"heads removed, of {HEADS}", ylabel="nats per token")
    zero.set_title("Set to zero")
    mean.set_title("Replaced by their mean output")
    mean.sharey(zero)
    zero.legend(frameon=False, fontsize=8)
    draw_heads(heads, numbers)
    return {"pruning-heads": figure}


def draw_heads(axes: Axes, numbers: Numbers) -> None:
    """What each head costs, with its role."""
    ranked = ranked_heads(numbers)
    roles = sorted({role for _, role, _ in ranked})
    for number, role in enumerate(roles):
        places = [place for place, (_, other, _) in enumerate(ranked) if other == role]
        costs = [ranked[place][2] for place in places]
        axes.bar(
            places,
            [cost.mean for cost in costs],
            yerr=[[c.mean - c.low for c in costs], [c.high - c.mean for c in costs]],
            color=COLOURS[number % len(COLOURS)],
            ecolor="0.4",
            label=role,
        )
    axes.set(xlabel="heads, most important first", ylabel="nats per token", title="Each head alone")
    axes.legend(frameon=False, fontsize=8)


def ranked_heads(numbers: Numbers) -> list[tuple[str, str, Interval]]:
    """Each head's name, role and cost when set to zero, most important first."""
    roles = numbers[f"{MODEL}.roles"]
    rows = seed_rows(numbers)
    heads = [
        (
            f"{layer}.{head}",
            roles[layer][head],
            Interval.of([row["importance"][layer][head] for row in rows]),
        )
        for layer, head in product(range(len(roles)), range(len(roles[0])))
    ]
    return sorted(heads, key=lambda head: -head[2].mean)


def summarize_pruning(numbers: Numbers) -> Words:
    ranked = ranked_heads(numbers)
    whole = mean_of(losses_without(numbers, "zero", "importance", 0))
    total = sum(head[2].mean for head in ranked)
    top = ranked[: HEADS // 10]
    share = sum(head[2].mean for head in top) / total
    named = ", ".join(f"{name} ({role})" for name, role, _ in top)
    return Words(
        f"{MODEL} has a loss of {whole:.2f} nats on its own stories. Alone, the {len(top)} most"
        f" important of {HEADS} heads ({named}) make up {share:.0%} of the sum of all"
        " single costs. But costs do not add up: heads that can be spared alone stand in for each"
        " other, so every further head costs more.",
        f"{MODEL} 自身の物語での損失は {whole:.2f} ナット。単独で除いたときの損失の合計のうち、"
        f"{HEADS}個中最も重要な{len(top)}個（{named}）が {share:.0%} を占める。"
        "ただし損失は足し算にならない。単独なら除けるヘッドも互いに補い合っているので、"
        "除くほど1個あたりの損失は大きくなる。",
    )


EXPERIMENT = Experiment(
    name="pruning-heads",
    title=Words("How many heads are needed?", "ヘッドはいくつ必要か"),
    claim=Words(
        "A few heads do most of the work: a fifth can be removed for less than the most important"
        " head costs. Which ones must be measured by removing them, or by the gradient; the norm of"
        " their output misleads.",
        "仕事の多くは少数のヘッドが担う。5分の1を除いても、最も重要な1個を除くより損失は小さい。"
        "どれが要らないかは、実際に除くか勾配で測る。出力のノルムは当てにならない。",
    ),
    source="Michel, Levy & Neubig 2019; Voita et al. 2019",
    equation="importance_h = loss(ξ_h = 0) − loss(ξ_h = 1);   gradient_h = |∂ loss / ∂ξ_h|",
    look_for=Words(
        "how long the lowest curve stays flat; the curve of the norm above the random one",
        "最も低い曲線がどこまで平らか、ノルムの曲線が無作為より上にあること",
    ),
    parts=pruning_parts,
    judge=judge_pruning,
    draw=draw_pruning,
    summarize=summarize_pruning,
    settle=SETTLE,
    corrections=(
        Words(
            "Heads that are useless alone are not useless together: their costs do not add up.",
            "単独では要らないヘッドも、まとめて除けば要らないとは限らない。損失は足し算にならない。",
        ),
    ),
)
