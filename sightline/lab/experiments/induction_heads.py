"""Induction heads: two layers of attention learn, within a few steps, to look behind the last place
where a token stood.

    … A B … A  →  B      layer 0 writes into each token which one came before it;
                         layer 1 looks for its own token in what layer 0 wrote

One layer cannot: where it looks depends on a token and its place, not on what stood before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.statistics import Interval, above, below, differences
from sightline.lab.style import COLOURS, figure, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = {"quick": 250, "default": 500, "full": 500}
SEEDS = {"quick": 3, "default": 6, "full": 20}
LAYERS = (2, 1)
HALF = 0.5
FIFTH = 0.2
TENTH = 0.1


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    return [
        Part(
            f"layers-{layers}.steps-{STEPS[tier]}.seed-{n}",
            lambda layers=layers, n=n: grown_part(layers, STEPS[tier], n),
        )
        for n in range(seed, seed + SEEDS[tier])
        for layers in LAYERS
    ]


def grown_part(layers: int, steps: int, seed: int) -> dict[str, Any]:
    """One model while it learns."""
    from sightline.lab.measures.repeats import grown

    return grown(layers, steps, seed=seed)


# ------------------------------------------------------------------------------------ the verdict


@dataclass(frozen=True, slots=True)
class Change:
    """The fifth of the training in which the late loss falls most: its two ends as parts of the
    training, and its share of the fall."""

    start: float
    end: float
    share: float


def change_of(row: Mapping[str, Any]) -> Change:
    """share = largest fall of the late loss within a fifth of the steps / its whole fall."""
    steps = row["step"]
    late = row["late"]
    wide = max(1, round(FIFTH * (len(steps) - 1)))
    falls = [late[n] - late[n + wide] for n in range(len(steps) - wide)]
    first = max(range(len(falls)), key=falls.__getitem__)
    return Change(
        steps[first] / steps[-1],
        steps[first + wide] / steps[-1],
        falls[first] / max(late[0] - min(late), 1e-9),
    )


def crossing(row: Mapping[str, Any]) -> float:
    """When the best head's score first passes one half, as a part of the training; NaN if it never
    does."""
    passed = (
        step for step, score in zip(row["step"], row["induction"], strict=True) if score > HALF
    )
    return next(passed, math.nan) / row["step"][-1]


def in_context(row: Mapping[str, Any], place: int) -> float:
    """late − early, in nats: what the row itself tells about its end. Below zero is learning in
    context."""
    return row["late"][place] - row["early"][place]


def of_layers(numbers: Numbers, layers: int) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(f"layers-{layers}.")]


def judge(numbers: Numbers) -> Sequence[Check]:
    two = of_layers(numbers, 2)
    one = of_layers(numbers, 1)
    return [*change_checks(two), *context_checks(two), *control_checks(two, one)]


def change_checks(two: Sequence[Mapping[str, Any]]) -> list[Check]:
    """There is a phase change, and the induction head forms in it."""
    changes = [change_of(row) for row in two]
    score = Interval.of([row["induction"][-1] for row in two])
    share = Interval.of([change.share for change in changes])
    later = Interval.of(
        [crossing(row) - change.start for row, change in zip(two, changes, strict=True)]
    )
    together = all(
        change.start - TENTH <= crossing(row) <= change.end + TENTH
        for row, change in zip(two, changes, strict=True)
    )
    return [
        Check(
            Words(
                "after the phase change the best head of two layers has an induction score"
                " above 0.5",
                "相転移のあと、2層モデルの最良ヘッドの誘導スコアは0.5を超える",
            ),
            above(score, HALF),
            f"score {score}",
        ),
        Check(
            Words(
                "there is a phase change: after a tenth of the training or more, one fifth of it"
                " has over half of the late loss's fall",
                "相転移がある：学習の1割以上が過ぎてから、その5分の1の区間に後半の損失低下の半分超が集まる",
            ),
            both(above(share, HALF), all(change.start >= TENTH for change in changes)),
            f"share of the fall {share}, beginning at"
            f" {', '.join(f'{change.start:.0%}' for change in changes)} of the training",
        ),
        Check(
            Words(
                "the head forms then: its score passes 0.5 in this fifth, or at most a tenth of the"
                " training before or after it",
                "ヘッドはその時にできる：スコアが0.5を超えるのはこの5分の1の間か、その前後の学習1割以内",
            ),
            together,
            f"{later} of the training after the change begins",
        ),
    ]


def both(first: bool | None, second: bool) -> bool | None:
    return False if not second or first is False else first


def context_checks(two: Sequence[Mapping[str, Any]]) -> list[Check]:
    """What the head is good for."""
    before = Interval.of([in_context(row, 0) for row in two])
    after = Interval.of([in_context(row, -1) for row in two])
    lost = differences(
        [row["without"]["late"] for row in two], [row["without"]["beside"] for row in two]
    )
    whole = Interval.of([row["late"][-1] for row in two])
    beside = Interval.of([row["without"]["beside"] for row in two])
    count = sum(row["without"]["heads"] for row in two)
    return [
        Check(
            Words(
                "the model then learns in context: late − early loss is below −2 nats",
                "そのとき文脈内学習が生じる：後半−前半の損失は −2 nat 未満",
            ),
            below(after, -2),
            f"{before} before, {after} after",
        ),
        Check(
            Words(
                "these links are the cause: with the induction heads kept from these tokens alone,"
                " the late loss is over 1 nat higher than with them kept from the tokens one"
                " before",
                "このリンクが原因である：誘導ヘッドからこのトークンだけを隠すと、"
                "一つ前のトークンを隠すより後半の損失が 1 nat 以上高くなる",
            ),
            above(lost, 1),
            f"{lost} nats higher; {count} heads of {len(two)} models; {whole.mean:.2f} nats uncut,"
            f" {beside.mean:.2f} cut beside",
        ),
    ]


def control_checks(
    two: Sequence[Mapping[str, Any]], one: Sequence[Mapping[str, Any]]
) -> list[Check]:
    """One layer does not get there."""
    score = Interval.of([row["induction"][-1] for row in one])
    behind = differences([row["late"][-1] for row in one], [row["late"][-1] for row in two])
    return [
        Check(
            Words(
                "one layer grows no such head: score below 0.2",
                "1層ではそのようなヘッドはできない：スコアは0.2未満",
            ),
            below(score, 0.2),
            f"score {score}",
        ),
        Check(
            Words(
                "and its late loss stays more than 1 nat above that of two layers",
                "後半の損失も2層より 1 nat より高いまま",
            ),
            above(behind, 1),
            f"by {behind} nats",
        ),
    ]


def told(numbers: Numbers) -> Words:
    two = of_layers(numbers, 2)
    one = of_layers(numbers, 1)
    when = Interval.of([crossing(row) * row["step"][-1] for row in two])
    late, single = (Interval.of([row["late"][-1] for row in of]) for of in (two, one))
    previous = Interval.of([row["previous"][-1] for row in two])
    return Words(
        f"The best head's score passes 0.5 at step {when.mean:.0f} on average. At the end, two"
        f" layers lose {late.mean:.2f} nats on the last tokens, one layer {single.mean:.2f}; a"
        f" guess among the tokens of the row, knowing no order, would lose {two[0]['guess']:.2f}."
        f" The best head for the token before has a score of {previous.mean:.2f}.",
        f"最良ヘッドのスコアは平均してステップ {when.mean:.0f} で0.5を超える。"
        f"最後の損失は2層で {late.mean:.2f} nat、1層で {single.mean:.2f} nat。"
        f"順序を知らずに行のトークンから当てずっぽうに選ぶなら {two[0]['guess']:.2f} nat。"
        f"直前のトークンを見る最良のヘッドのスコアは {previous.mean:.2f}。",
    )


# ------------------------------------------------------------------------------------ the figures


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, panels = figure(3, width=4.0)
    for number, layers in enumerate(LAYERS):
        found = of_layers(numbers, layers)
        label = "two layers" if layers == 2 else "one layer"
        steps = found[0]["step"]
        late = [Interval.of([row["late"][n] for row in found]) for n in range(len(steps))]
        score = [Interval.of([row["induction"][n] for row in found]) for n in range(len(steps))]
        inside = [Interval.of([in_context(row, n) for row in found]) for n in range(len(steps))]
        for axes, curve in zip(panels, (late, score, inside), strict=True):
            line(axes, steps, curve, label=label, number=number)
    mark(panels, of_layers(numbers, 2))
    panels[0].set(
        xlabel="step", ylabel="nats", title="Loss on the last eight tokens", ylim=(0, None)
    )
    panels[1].set(
        xlabel="step",
        ylabel="share of its attention",
        title="Induction score of the best head",
        ylim=(0, 1),
    )
    panels[2].set(xlabel="step", ylabel="nats", title="In-context score: late − early loss")
    panels[1].axhline(HALF, color="0.5", linewidth=0.8, linestyle=":")
    panels[0].legend(frameon=False, loc="center right")
    return {"induction-heads": made, "induction-heads-film": film(of_layers(numbers, 2)[0])}


def mark(panels: Sequence[Axes], two: Sequence[Mapping[str, Any]]) -> None:
    """The phase change of each seed, shaded."""
    for row in two:
        change = change_of(row)
        last = row["step"][-1]
        for axes in panels:
            axes.axvspan(
                change.start * last,
                change.end * last,
                color=COLOURS[4],
                alpha=0.25 / len(two),
                linewidth=0,
            )


def film(row: Mapping[str, Any]) -> Figure:
    """The best head's map before, during and after the change; where an induction head looks is
    marked by a thin line."""
    made, panels = figure(len(row["film"]), width=2.3, height=2.7)
    size = len(row["tokens"])
    period = len(row["tokens"]) // 2
    for axes, frame in zip(panels, row["film"], strict=True):
        axes.grid(visible=False)
        axes.imshow(frame["map"], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.plot(
            [0.5, size - period + 0.5],
            [period - 0.5, size - 0.5],
            color=COLOURS[1],
            linewidth=0.7,
            linestyle=":",
        )
        axes.set(
            title=f"step {frame['step']}",
            xticks=[0, period, size - 1],
            yticks=[],
            xlabel="looked at",
        )
    panels[0].set(yticks=[0, period, size - 1], ylabel="looking")
    layer, head = row["head"]
    made.suptitle(f"Layer {layer}, head {head}: {period} random tokens, twice", fontsize=10)
    return made


EXPERIMENT = Experiment(
    name="induction-heads",
    title=Words("Induction heads form at once", "誘導ヘッドは一気に生まれる"),
    claim=Words(
        "A model with two layers of attention suddenly grows heads that look behind the last place"
        " of the same token; with them it learns in context. One layer cannot.",
        "2層の注意をもつモデルには、同じトークンが前に現れた所の次を見るヘッドが突然できる。"
        "それにより文脈内学習が生じる。1層ではできない。",
    ),
    source="Elhage et al. 2021; Olsson et al. 2022, In-context Learning and Induction Heads",
    equation=(
        "induction score = mean_i Σ_j w_ij over j with token_{j−1} = token_i;   in-context score ="
        " late − early loss"
    ),
    look_for=Words(
        "a flat loss, then a cliff; at the same step the score jumps, and in the film one thin"
        " diagonal lights up",
        "平らな損失、そして崖。同じステップでスコアが跳ね上がり、フィルムでは細い対角線が一本だけ光る",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "With repeats at one fixed distance a head of that distance passes for an induction"
            " head, even in one layer. So the distance varies in training, and the lens asks at two"
            " distances and takes the worse.",
            "繰り返しの距離が一定なら、その距離だけを見るヘッドが1層でも誘導ヘッドに見えてしまう。"
            "だから学習では距離を変え、"
            "測定では二つの距離で確かめて悪い方を採る。",
        ),
    ),
)
