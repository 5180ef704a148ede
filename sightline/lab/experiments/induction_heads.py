"""Induction heads: two attention layers learn, within a few steps, to attend to the token after the
previous occurrence of the current token.

    … A B … A  →  B      layer 0 writes into each token which token came before it;
                         layer 1 searches for its own token in what layer 0 wrote: its keys
                         are composed with layer 0's output (K-composition)

One layer cannot: its attention depends on a token and its position, not on the token before it.
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

STEPS: dict[Tier, int] = {"quick": 250, "default": 500, "full": 500}
SEEDS: dict[Tier, int] = {"quick": 1, "default": 8, "full": 20}
EVERY: dict[Tier, int] = {"quick": 25, "default": 10, "full": 10}  # steps between measurements
PILOT_STEPS: dict[Tier, int] = {"quick": 80, "default": 300, "full": 300}
PILOTS: dict[Tier, int] = {"quick": 1, "default": 2, "full": 3}
RATES: dict[Tier, tuple[float, ...]] = {
    "quick": (1e-3, 4e-3, 1.6e-2),
    "default": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    "full": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
}
LAYERS = (2, 1)
HALF = 0.5  # of the attention: what makes an induction head; of the fall: more than elsewhere
FIFTH = 0.2  # of the training, in which a loss that falls evenly would have a fifth of its fall
TENTH = 0.1  # of the training: a loss that falls from the start is steepest before


def induction_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """The score of a rate is the mean training loss over its steps."""
    steps = PILOT_STEPS[tier]
    return pilot_parts(
        Grid([arm_of(layers) for layers in LAYERS], RATES[tier], PILOTS[tier], f"steps-{steps}"),
        lambda arm, rate, seed: {"score": pilot_loss(int(arm[-1]), steps, rate, seed)},
    )


def arm_of(layers: int) -> str:
    return f"layers-{layers}"


def pilot_loss(layers: int, steps: int, rate: float, seed: int) -> float:
    from sightline.lab.measures.repeats import mean_training_loss

    return mean_training_loss(layers, steps, rate=rate, seed=seed)


def induction_parts(plan: Plan) -> Sequence[ExperimentPart]:
    steps = STEPS[plan.tier]
    rates = {layers: plan.rate(arm_of(layers)) for layers in LAYERS}
    return [
        ExperimentPart(
            f"{arm_of(layers)}.steps-{steps}.rate-{rates[layers]:g}.seed-{n}",
            lambda layers=layers, n=n: train_induction_model(
                layers, steps, rates[layers], n, every=EVERY[plan.tier]
            ),
        )
        for n in plan.seeds(SEEDS)
        for layers in LAYERS
    ]


def train_induction_model(
    layers: int, steps: int, rate: float, seed: int, *, every: int
) -> dict[str, Any]:
    """Train one model and record its losses and head scores; of two layers, their composition."""
    from sightline.lab.measures.composition import measure_composition
    from sightline.lab.measures.repeats import held_out_rows, train_and_watch

    model, row = train_and_watch(layers, steps, rate=rate, seed=seed, every=every)
    if layers == 2:
        row["composition"] = measure_composition(model, held_out_rows(steps, seed))
    return row


# ---------------------------------------------------------------------------------------- verdict


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """The fifth of the training in which the late loss falls most: its start and end as fractions
    of the training, and its share of the whole fall."""

    start: float
    end: float
    share: float


def phase_change(row: Mapping[str, Any]) -> PhaseChange:
    """share = largest fall of the late loss within a fifth of the steps / its whole fall."""
    steps = row["step"]
    late = row["late"]
    wide = max(1, round(FIFTH * (len(steps) - 1)))
    falls = [late[n] - late[n + wide] for n in range(len(steps) - wide)]
    first = max(range(len(falls)), key=falls.__getitem__)
    return PhaseChange(
        steps[first] / steps[-1],
        steps[first + wide] / steps[-1],
        falls[first] / max(late[0] - min(late), 1e-9),
    )


def formation_time(row: Mapping[str, Any]) -> float:
    """When the best head's score first exceeds 0.5, as a fraction of the training; NaN if never."""
    passed = (
        step for step, score in zip(row["step"], row["induction"], strict=True) if score > HALF
    )
    return next(passed, math.nan) / row["step"][-1]


def in_context_score(row: Mapping[str, Any], place: int) -> float:
    """Late − early loss in nats; below zero means in-context learning."""
    return row["late"][place] - row["early"][place]


def runs_with_layers(numbers: Numbers, layers: int) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(f"layers-{layers}.")]


def judge_induction_heads(numbers: Numbers) -> Sequence[Check]:
    two = runs_with_layers(numbers, 2)
    one = runs_with_layers(numbers, 1)
    return [
        *change_checks(two),
        *context_checks(two),
        *composition_checks([row["composition"] for row in two]),
        *control_checks(two, one),
    ]


def change_checks(two: Sequence[Mapping[str, Any]]) -> list[Check]:
    """There is a phase change, and the induction head forms during it. Of the seeds, more than half
    must show it: as exact counts."""
    changes = [phase_change(row) for row in two]
    score = Interval.share([row["induction"][-1] for row in two])
    share = Interval.of([change.share for change in changes])
    pairs = list(zip(two, changes, strict=True))
    later = Interval.of([formation_time(row) - change.start for row, change in pairs])
    late_starts = sum(change.start >= TENTH for change in changes)
    together = sum(
        change.start - TENTH <= formation_time(row) <= change.end + TENTH for row, change in pairs
    )
    starts = ", ".join(f"{change.start:.0%}" for change in changes)
    return [
        Check.over_seeds(
            Words(
                "after the phase change the best head of a two-layer model has an induction score"
                " above 0.5",
                "相転移のあと、2層モデルの最良ヘッドの誘導スコアは0.5を超える",
            ),
            f"score {score}",
            decide_above(score, HALF),
        ),
        Check.over_seeds(
            Words(
                "there is a phase change: after at least a tenth of the training, one fifth of the"
                " training accounts for more than half of the fall of the late loss",
                "相転移がある：学習の1割以上が過ぎてから、その5分の1の区間に後半の損失低下の半分超が集まる",
            ),
            f"share of the fall {share}, starting at {starts} of the training",
            decide_above(share, HALF),
            decide_count_above(late_starts, len(two), HALF),
        ),
        Check.over_seeds(
            Words(
                "the head forms then: its score exceeds 0.5 within this fifth, or at most a"
                " tenth of the training before or after it",
                "ヘッドはその時にできる：スコアが0.5を超えるのはこの5分の1の間か、その前後の学習1割以内",
            ),
            f"{together} of {len(two)}; {later} of the training after the start of the change",
            decide_count_above(together, len(two), HALF),
        ),
    ]


def context_checks(two: Sequence[Mapping[str, Any]]) -> list[Check]:
    """What the head contributes. The bound is the loss of a uniform guess among the tokens of the
    row: of a model that knows which tokens there are, and not their order."""
    guess = two[0]["guess"]
    after = Interval.of([row["late"][-1] for row in two])
    cut, beside = (
        Interval.of([row["without"][name] for row in two]) for name in ("late", "beside")
    )
    count = sum(row["without"]["heads"] for row in two)
    return [
        Check.over_seeds(
            Words(
                "the model then learns in context: its late loss is below that of a uniform guess"
                f" among the row's tokens ({guess:.2f} nats)",
                "そのとき文脈内学習が生じる：後半の損失は、行のトークンからの一様な推測"
                f"（{guess:.2f} ナット）より低い",
            ),
            f"{Interval.of([row['late'][0] for row in two])} before, {after} after",
            decide_below(after, guess),
        ),
        Check.over_seeds(
            Words(
                "these links are the cause: with these tokens hidden from the induction heads, the"
                " late loss is above that guess, with the tokens one position earlier hidden below"
                " it",
                "このリンクが原因である：誘導ヘッドからこのトークンだけを隠すと後半の損失はその推測より高く、"
                "一つ前のトークンを隠すとそれより低い",
            ),
            f"{cut} nats, and {beside}; {count} heads of {len(two)} models",
            decide_above(cut, guess),
            decide_below(beside, guess),
        ),
    ]


def composition_checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """K-composition, by intervention on layer 0. An induction head is one with a score above
    0.5."""
    with_others = [row for row in rows if row["other heads"]]
    intact, previous, keys, queries = (
        Interval.share([row[f"{name} score"] for row in rows])
        for name in ("intact", "previous", "keys", "queries")
    )
    others = Interval.share([row["others score"] for row in with_others])
    heads = sum(row["heads"] for row in rows)
    other_heads = sum(row["other heads"] for row in rows)
    return [
        Check.over_seeds(
            Words(
                "induction needs layer 0's previous-token heads: with them cut its score falls"
                " below 0.5; with layer 0's other heads cut instead it stays above",
                "誘導には第0層の直前トークンのヘッドが要る：それらを切るとスコアは0.5未満に落ち、"
                "代わりに第0層の他のヘッドを切っても0.5を超えたまま",
            ),
            f"score {intact} intact, {previous} without {heads} heads, {others} without the other"
            f" {other_heads}, in {len(with_others)} of {len(rows)} models",
            decide_below(previous, HALF),
            decide_above(others, HALF),
        ),
        Check.over_seeds(
            Words(
                "it needs them through the keys (K-composition): the score falls below 0.5 if only"
                " layer 1's keys are computed without them, and not if only its queries are",
                "必要なのはキーを通じてである（K合成）：第1層のキーだけをそれらなしで計算すると"
                "スコアは0.5未満に落ち、クエリだけなら落ちない",
            ),
            f"keys {keys}, queries {queries}",
            decide_below(keys, HALF),
            decide_above(queries, HALF),
        ),
    ]


def control_checks(
    two_layers: Sequence[Mapping[str, Any]], one_layer: Sequence[Mapping[str, Any]]
) -> list[Check]:
    """The one-layer control."""
    score = Interval.share([row["induction"][-1] for row in one_layer])
    behind = paired_difference(
        [row["late"][-1] for row in one_layer], [row["late"][-1] for row in two_layers]
    )
    return [
        Check.over_seeds(
            Words(
                "a one-layer model forms no such head: score below 0.5",
                "1層モデルにはそのようなヘッドはできない：スコアは0.5未満",
            ),
            f"score {score}",
            decide_below(score, HALF),
        ),
        Check.over_seeds(
            Words(
                "and its late loss stays above that of two layers",
                "後半の損失も2層より高いまま",
            ),
            f"by {behind} nats",
            decide_above(behind, 0),
        ),
    ]


def summarize_induction_heads(numbers: Numbers) -> Words:
    two = runs_with_layers(numbers, 2)
    one = runs_with_layers(numbers, 1)
    formed = [row for row in two if not math.isnan(formation_time(row))]
    when = Interval.of([formation_time(row) * row["step"][-1] for row in formed])
    late, single = (Interval.of([row["late"][-1] for row in of]) for of in (two, one))
    previous = Interval.of([row["previous"][-1] for row in two])
    return Words(
        f"In {len(formed)} of {len(two)} models the best head's score exceeds 0.5, at step"
        f" {when.mean:.0f} on average. At the end, the loss on"
        f" the last tokens is {late.mean:.2f} nats with two layers and {single.mean:.2f} with"
        " one; a"
        f" uniform guess among the tokens of the row would have {two[0]['guess']:.2f}. The best"
        f" previous-token head has a score of {previous.mean:.2f}.",
        f"{len(two)}個中{len(formed)}個のモデルで最良ヘッドのスコアが0.5を超え、平均してステップ"
        f" {when.mean:.0f} である。"
        f"最後の損失は2層で {late.mean:.2f} ナット、1層で {single.mean:.2f} ナット。"
        f"行のトークンから一様に推測すると {two[0]['guess']:.2f} ナット。"
        f"直前のトークンに注目する最良のヘッドのスコアは {previous.mean:.2f}。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_induction_heads(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (*panels, cuts) = new_figure(4, width=4.0)
    for number, layers in enumerate(LAYERS):
        runs = runs_with_layers(numbers, layers)
        label = "two layers" if layers == 2 else "one layer"
        steps = runs[0]["step"]
        late = [Interval.of([row["late"][n] for row in runs]) for n in range(len(steps))]
        score = [Interval.of([row["induction"][n] for row in runs]) for n in range(len(steps))]
        inside = [
            Interval.of([in_context_score(row, n) for row in runs]) for n in range(len(steps))
        ]
        for axes, curve in zip(panels, (late, score, inside), strict=True):
            plot_mean(axes, steps, curve, label=label, number=number)
    shade_phase_change(panels, runs_with_layers(numbers, 2))
    panels[0].set(
        xlabel="step", ylabel="nats", title="Loss on the last eight tokens", ylim=(0, None)
    )
    panels[1].set(
        xlabel="step",
        ylabel="share of attention",
        title="Induction score of the best head",
        ylim=(0, 1),
    )
    panels[2].set(xlabel="step", ylabel="nats", title="In-context score: late − early loss")
    panels[1].axhline(HALF, color="0.5", linewidth=0.8, linestyle=":")
    panels[0].legend(frameon=False, loc="center right")
    draw_cuts(cuts, [row["composition"] for row in runs_with_layers(numbers, 2)])
    return {
        "induction-heads": figure,
        "induction-heads-film": draw_film(runs_with_layers(numbers, 2)[0]),
    }


def draw_cuts(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """The induction score with parts of layer 0 cut."""
    names = {
        "intact": "nothing",
        "previous": "previous-\ntoken heads",
        "others": "other\nheads",
        "keys": "the first,\nfor keys",
        "queries": "the first,\nfor queries",
    }
    for place, name in enumerate(names):
        scores = [row[f"{name} score"] for row in rows if name != "others" or row["other heads"]]
        interval = Interval.share(scores)
        axes.bar([place], [interval.mean], width=0.6, color=COLOURS[place])
        axes.plot([place, place], [interval.low, interval.high], color="0", linewidth=1.2)
    axes.axhline(HALF, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_axisbelow(True)
    axes.set(
        xticks=range(len(names)),
        ylim=(0, 1),
        ylabel="share of attention",
        title="Induction score, layer 0 cut",
    )
    axes.set_xticklabels(list(names.values()), fontsize=7)


def shade_phase_change(panels: Sequence[Axes], two: Sequence[Mapping[str, Any]]) -> None:
    """The phase change of each seed, shaded."""
    for row in two:
        change = phase_change(row)
        last = row["step"][-1]
        for axes in panels:
            axes.axvspan(
                change.start * last,
                change.end * last,
                color=COLOURS[4],
                alpha=0.25 / len(two),
                linewidth=0,
            )


def draw_film(row: Mapping[str, Any]) -> Figure:
    """The best head's attention map before, during and after the change; a dotted line marks the
    targets of an induction head."""
    figure, panels = new_figure(len(row["film"]), width=2.3, height=2.7)
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
            xlabel="key",
        )
    panels[0].set(yticks=[0, period, size - 1], ylabel="query")
    layer, head = row["head"]
    figure.suptitle(f"Layer {layer}, head {head}: {period} random tokens, repeated", fontsize=10)
    return figure


EXPERIMENT = Experiment(
    name="induction-heads",
    title=Words("Induction heads form abruptly", "誘導ヘッドは突然形成される"),
    claim=Words(
        "A model with two attention layers suddenly forms heads that attend to the token after the"
        " previous occurrence of the current token; with them it learns in context. Their keys come"
        " from the previous-token heads of the layer below: one layer cannot.",
        "2層の注意機構をもつモデルには、同じトークンが前に現れた位置の次に注目するヘッドが突然できる。"
        "それにより文脈内学習が生じる。そのキーは下の層の直前トークンのヘッドから来るので、"
        "1層ではできない。",
    ),
    source="Elhage et al. 2021; Olsson et al. 2022, In-context Learning and Induction Heads",
    equation=(
        "induction score = mean_i Σ_j w_ij over j with token_{j−1} = token_i;   in-context score ="
        " late − early loss"
    ),
    look_for=Words(
        "a flat loss, then a steep fall; at the same step the score jumps, and in the attention"
        " maps a"
        " thin diagonal appears",
        "平らな損失、そして急な低下。同じステップでスコアが跳ね上がり、注意マップに細い対角線が現れる",
    ),
    parts=induction_parts,
    pilots=induction_pilots,
    settle=20,
    arms={"layers-2": Words("two layers", "2層"), "layers-1": Words("one layer", "1層")},
    judge=judge_induction_heads,
    draw=draw_induction_heads,
    summarize=summarize_induction_heads,
    corrections=(
        Words(
            "With repeats at one fixed distance, a fixed-offset head looks like an induction"
            " head, even"
            " in one layer. So the distance varies in training, and the score is measured at two"
            " distances, of which the worse counts.",
            "繰り返しの距離が一定なら、その距離だけを見るヘッドが1層でも誘導ヘッドに見えてしまう。"
            "だから学習では距離を変え、"
            "測定では二つの距離で確かめて悪い方を採る。",
        ),
    ),
)
