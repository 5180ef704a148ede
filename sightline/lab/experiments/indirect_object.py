"""The circuit of a small language model for "John gave a drink to → Mary", found by path patching
and judged on other sentences against random heads of the same layers."""

from __future__ import annotations

from collections import Counter
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
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    mean_of,
    paired_difference,
)
from sightline.lab.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL = "smollm2-135m-instruct"
SEEDS: Mapping[Tier, int] = {"quick": 1, "default": 6, "full": 20}
SETTLE = 12
TEMPLATES: Mapping[Tier, int] = {"quick": 1, "default": 6, "full": 6}  # to choose, and to judge
STEPS = {
    "detectors": Words("at S2: which name came before", "S2 で：どの名前が既出か"),
    "inhibitors": Words("S-inhibition: not that one", "S 抑制：その名前ではない"),
    "movers": Words("name movers: write the other", "名前移動：もう一方を書く"),
}


def indirect_object_parts(plan: Plan) -> Sequence[ExperimentPart]:
    templates = TEMPLATES[plan.tier]
    return [
        ExperimentPart(
            f"{MODEL}.templates-{templates}.seed-{n}", lambda n=n: find_and_judge(templates, n)
        )
        for n in plan.seeds(SEEDS)
    ]


def find_and_judge(templates: int, seed: int) -> dict[str, Any]:
    """Choose the heads with some templates and names, judge them with others."""
    from sightline.lab.measures.two_names import (
        CHOOSING,
        JUDGING,
        NAMES,
        find_circuit,
        judge_circuit,
        tasks_of,
    )
    from sightline.loading import load

    model = load(MODEL)
    choosing = tasks_of(model, CHOOSING[:templates], NAMES["choosing"], seed)
    found = find_circuit(model.transformer, choosing)
    judging = tasks_of(model, JUDGING[:templates], NAMES["judging"], seed)
    return found | judge_circuit(model.transformer, judging, found["heads"], seed)


# ---------------------------------------------------------------------------------------- verdict


def judge_indirect_object(numbers: Numbers) -> Sequence[Check]:
    """Every bound is 0: what the claim says is a sign, or more than random heads do."""
    rows = list(numbers.values())
    return [
        task_check(rows),
        look_check(
            rows,
            Words(
                "name movers attend to the name that is the answer more than to the repeated one",
                "名前移動ヘッドは、繰り返された名前より答えの名前に多く注目する",
            ),
            ("mover_io", "mover_s"),
        ),
        look_check(
            rows,
            Words(
                "S-inhibition heads attend to the repeated name more than to the answer",
                "S 抑制ヘッドは、答えの名前より繰り返された名前に多く注目する",
            ),
            ("inhibitor_s2", "inhibitor_io"),
        ),
        look_check(
            rows,
            Words(
                "the heads that feed them attend, at the second occurrence, to the first and the"
                " token after it, more than an even spread would",
                "その入力となるヘッドは、2度目の名前の位置から1度目とその次のトークンに、均等な場合より多く注目する",
            ),
            ("detector", "even"),
        ),
        *circuit_checks(rows),
    ]


def task_check(rows: Sequence[Mapping[str, Any]]) -> Check:
    score = Interval.of([row["score"] for row in rows])
    right = sum(row["right"] for row in rows)
    return Check.over_seeds(
        Words(
            "the model prefers the name that was not repeated",
            "モデルは繰り返されなかった名前を選ぶ",
        ),
        f"logit(IO) − logit(S) {score}, right in {right} of {sum(row['tasks'] for row in rows)}",
        decide_above(score, 0.0),
    )


def look_check(
    rows: Sequence[Mapping[str, Any]], statement: Words, looks: tuple[str, str]
) -> Check:
    ours, theirs = ([row["looks"][name] for row in rows] for name in looks)
    difference = paired_difference(ours, theirs)
    return Check.over_seeds(
        statement,
        f"attention {mean_of(ours):.2f} against {mean_of(theirs):.2f}; difference {difference}",
        decide_above(difference, 0.0),
    )


def circuit_checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Necessary and sufficient, each against random heads of the same layers."""
    checks = list[Check]()
    for name, statement, decide in (
        (
            "without",
            Words(
                "without these heads less of the preference is left than without as many random"
                " heads of the same layers",
                "これらのヘッドを除くと、同じ層の同数の無作為なヘッドを除くより選好が失われる",
            ),
            decide_below,
        ),
        (
            "alone",
            Words(
                "these heads alone keep more of the preference than as many random heads of the"
                " same layers",
                "これらのヘッドだけで、同じ層の同数の無作為なヘッドより多くの選好が残る",
            ),
            decide_above,
        ),
    ):
        ours = [row[name] for row in rows]
        theirs = [mean_of(row[f"{name}_random"]) for row in rows]
        difference = paired_difference(ours, theirs)
        checks.append(
            Check.over_seeds(
                statement,
                f"share of the preference {mean_of(ours):.2f} against {mean_of(theirs):.2f};"
                f" difference {difference}",
                decide(difference, 0.0),
            )
        )
    return checks


# --------------------------------------------------------------------------- figures and summary


def usual_heads(numbers: Numbers, step: str) -> list[tuple[tuple[int, int], int]]:
    """The heads of a step that most seeds choose, with the number of seeds."""
    counts = Counter(tuple(place) for row in numbers.values() for place in row["heads"][step])
    size = len(next(iter(numbers.values()))["heads"][step])
    return counts.most_common(size)


def draw_indirect_object(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (circuit, bars) = new_figure(2, width=6.2, height=4.0)
    draw_circuit(circuit, numbers)
    draw_shares(bars, numbers)
    return {"indirect-object": figure}


def draw_circuit(axes: Axes, numbers: Numbers) -> None:
    """The steps from left to right, with the heads and the effect of each."""
    boxes = {}
    for column, (step, words) in enumerate(STEPS.items()):
        heads = usual_heads(numbers, step)
        effects = mean_effects(numbers, step)
        lines = [f"{layer}.{head}   {effects[layer][head]:+.2f}" for (layer, head), _ in heads]
        axes.text(column, 1.02, words.en.replace(": ", ":\n"), ha="center", va="bottom", fontsize=9)
        boxes[column] = axes.text(
            column, 0.55, "\n".join(lines), ha="center", va="center", fontsize=9,
            bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": COLOURS[column]},
        )  # fmt: skip
    for start, label in ((0, "values"), (1, "queries"), (2, "logits")):
        arrow = {"arrowstyle": "->", "color": "0.3", "linewidth": 1.4}
        axes.annotate("", (start + 0.68, 0.55), (start + 0.32, 0.55), arrowprops=arrow)
        axes.text(start + 0.5, 0.59, label, ha="center", fontsize=8)
    axes.text(2.78, 0.55, "IO − S", ha="left", va="center", fontsize=10)
    axes.text(
        1.2, 0.0, "layer.head, and the change of logit(IO) − logit(S) without its path",
        ha="center", fontsize=8,
    )  # fmt: skip
    axes.set(xlim=(-0.5, 3.3), ylim=(-0.05, 1.25))
    axes.axis("off")


def mean_effects(numbers: Numbers, step: str) -> list[list[float]]:
    """The effect of each head along this step's path, over seeds."""
    tables = [row["effects"][step] for row in numbers.values()]
    return [
        [mean_of(list(values)) for values in zip(*layers, strict=True)]
        for layers in zip(*tables, strict=True)
    ]


def draw_shares(axes: Axes, numbers: Numbers) -> None:
    """The share of the preference with and without the circuit."""
    rows = list(numbers.values())
    bars = {
        "without the circuit": [row["without"] for row in rows],
        "without random heads": [mean_of(row["without_random"]) for row in rows],
        "circuit alone": [row["alone"] for row in rows],
        "random heads alone": [mean_of(row["alone_random"]) for row in rows],
    }
    for place, values in enumerate(bars.values()):
        interval = Interval.of(values)
        axes.bar(place, interval.mean, color=COLOURS[0 if place % 2 == 0 else 4], alpha=0.8)
        axes.plot([place] * 2, [interval.low, interval.high], color="0.2")
    axes.axhline(1, color="0", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(bars)), labels=[name.replace(" ", "\n") for name in bars])
    axes.set(ylabel="share of logit(IO) − logit(S)")
    axes.set_title("On other templates and names", fontsize=10)


def summarize_indirect_object(numbers: Numbers) -> Words:
    rows = list(numbers.values())
    size = rows[0]["size"]
    movers = ", ".join(
        f"{layer}.{head} ({count})" for (layer, head), count in usual_heads(numbers, "movers")
    )
    without = mean_of([row["without"] for row in rows])
    alone = mean_of([row["alone"] for row in rows])
    return Words(
        f"Name movers (in how many of {len(rows)} seeds): {movers}. Without the {size} heads"
        f" {without:.0%} of the preference is left; they alone, with all others as in a sentence"
        f" with three different names, keep {alone:.0%}. In GPT-2 small 26 heads kept 87%; there"
        " the others were set to their means, and the circuit held more helpers.",
        f"名前移動ヘッド（かっこ内は{len(rows)}シード中で選ばれた回数）：{movers}。{size}個のヘッドを除くと"
        f"選好の {without:.0%} が残る。他のヘッドをすべて三つの別の名前の文での値にして、"
        f"これらだけを残すと"
        f" {alone:.0%} が残る。GPT-2 small では26個で87%だった。そこでは他のヘッドを平均値にし、"
        "補助的なヘッドも回路に含めていた。",
    )


EXPERIMENT = Experiment(
    name="indirect-object",
    title=Words("A circuit: who gets the drink?", "回路：飲み物をもらうのは誰か"),
    claim=Words(
        "In “Mary and John went to the store, and John gave a drink to”, the model finds “Mary” in"
        " three steps of attention heads: notice that John is repeated, turn attention away from"
        " John, copy the other name.",
        "“Mary and John went to the store, and John gave a drink to” の続き “Mary” を、"
        "モデルはヘッドの3段階で見つける。"
        "John の繰り返しに気づき、John から注目をそらし、もう一方の名前を写す。",
    ),
    source="Wang et al. 2022 (GPT-2 small); here SmolLM2-135M",
    equation="effect_h = [logit(IO) − logit(S)] with h's path from another sentence − without",
    look_for=Words(
        "the blue bars against the orange ones: the heads that were found against random ones",
        "青い棒と橙の棒：見つけたヘッドと無作為なヘッド",
    ),
    parts=indirect_object_parts,
    judge=judge_indirect_object,
    draw=draw_indirect_object,
    summarize=summarize_indirect_object,
    settle=SETTLE,
)
