"""Attention sinks: heads that have nothing to look for put their weight on the first token.

cut        the rows from 16 on do not see the first token:  w_j → w_j / (1 − w_0)
silenced   they see it, but get nothing from it:            w_0 v_0 → 0
removed    it was never in the text: another token is the first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.geometry_pictures import MODEL_NAMES
from sightline.lab.statistics import Interval, decide_above, decide_below, paired_difference
from sightline.lab.style import COLOURS, MARKS, new_figure, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGE, SMALL = "smollm2-135m-instruct", "stories15m"
TEXTS: dict[Tier, int] = {"quick": 3, "default": 12, "full": 40}
SETTLE = 24
NONE = 0.0  # no difference from the control: what a token that is no sink would show
HALF = 0.5  # a head gives most of its weight; most of a cost
EQUAL = 1.0  # as long as the others
CUTS = {
    "cut": "first token: cut",
    "silenced": "first token: silenced",
    "removed": "first token: removed",
    "other cut": "other token: cut",
    "other silenced": "other token: silenced",
}
WEIGHTS = {
    "as is": "as it is",
    "other length": "with the others' length",
    "other direction": "with the others' direction",
}
LENGTHS = {"key length": "key", "value length": "value"}


def sink_parts(plan: Plan) -> Sequence[ExperimentPart]:
    return [
        ExperimentPart(
            f"text.{model}.tokens-128.seed-{n}", lambda model=model, n=n: measure_text(model, n)
        )
        for model, n in product((LARGE, SMALL), plan.seeds(TEXTS))
    ]


def measure_text(model: str, seed: int) -> dict[str, Any]:
    """One text of one model."""
    from sightline.lab.measures.sinks import measure_sinks

    return measure_sinks(model, seed)


# ---------------------------------------------------------------------------------------- verdict


def texts_of(numbers: Numbers, model: str) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(f"text.{model}.")]


def costs_of(numbers: Numbers, model: str, cut: str) -> list[float]:
    """Nats per token that a cut costs, text by text."""
    return [row["losses"][cut] - row["losses"]["as is"] for row in texts_of(numbers, model)]


def over_layers(numbers: Numbers, model: str, name: str) -> list[float]:
    """The mean over the layers, text by text."""
    return [sum(row[name]) / len(row[name]) for row in texts_of(numbers, model)]


def sink_heads(numbers: Numbers, model: str) -> tuple[int, int]:
    """How many heads give the first token most of their weight on average over the texts, of how
    many."""
    rows = [
        [weight for layer in row["heads"] for weight in layer] for row in texts_of(numbers, model)
    ]
    means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    return sum(mean > HALF for mean in means), len(means)


def judge_sinks(numbers: Numbers) -> Sequence[Check]:
    return [*weight_checks(numbers), *cause_checks(numbers), *cost_checks(numbers)]


def weight_checks(numbers: Numbers) -> list[Check]:
    """Where the weight goes."""
    first, others = ([row[name] for row in texts_of(numbers, LARGE)] for name in ("first", "next"))
    moved, inside = (
        [row[name] for row in texts_of(numbers, LARGE)] for name in ("word first", "word inside")
    )
    heads, count = sink_heads(numbers, LARGE)
    return [
        Check.over_seeds(
            Words(
                "in SmolLM2 the first token gets more weight than any other of the first 16, on"
                " average over all heads and the rows after them",
                "SmolLM2 では、先頭のトークンが最初の16トークンの中で最も大きな重みを得る"
                "（全ヘッドとそれ以降の行の平均）",
            ),
            f"first {Interval.share(first)}, the largest other {Interval.share(others)};"
            f" {heads} of {count} heads give it more than half",
            decide_above(paired_difference(first, others), NONE),
        ),
        Check.over_seeds(
            Words(
                "it is the place, not the word: the same token gets more as the first of the text"
                " than inside it",
                "理由は単語ではなく位置である：同じトークンが、文中より先頭にあるときに大きな重みを得る",
            ),
            f"as the first {Interval.share(moved)}, inside {Interval.share(inside)}",
            decide_above(paired_difference(moved, inside), NONE),
        ),
    ]


def cause_checks(numbers: Numbers) -> list[Check]:
    """Its key and its value, with lengths from zero."""
    weight = {name: over_layers(numbers, LARGE, name) for name in WEIGHTS}
    value, key = (over_layers(numbers, LARGE, name) for name in ("value length", "key length"))
    longer = paired_difference(weight["other length"], weight["as is"])
    turned = paired_difference(weight["other direction"], weight["as is"])
    return [
        Check.over_seeds(
            Words(
                "direction makes the sink: with the mean cosine of the other keys, its weight"
                " falls",
                "シンクを作るのは方向である：他のキーの平均コサインにすると、その重みは下がる",
            ),
            f"as it is {Interval.share(weight['as is'])},"
            f" with the others' direction {Interval.share(weight['other direction'])}",
            decide_below(turned, NONE),
        ),
        Check.over_seeds(
            Words(
                "length holds it back: its key is short, and with the others' mean length it would"
                " get more",
                "長さはそれを抑えている：そのキーは短く、他のキーの平均の長さにすると重みはさらに増える",
            ),
            f"|k| of the first / of the others {Interval.ratio(key)}; weight with the others'"
            f" length {Interval.share(weight['other length'])}",
            decide_below(Interval.ratio(key), EQUAL),
            decide_above(longer, NONE),
        ),
        Check.over_seeds(
            Words(
                "its value is shorter than the others', on average over heads and layers",
                "そのバリューは他より短い（ヘッドと層の平均）",
            ),
            f"|v| of the first / of the others {Interval.ratio(value)}",
            decide_below(Interval.ratio(value), EQUAL),
        ),
    ]


def cost_checks(numbers: Numbers) -> list[Check]:
    """What the loss says when it is cut."""
    costs = {cut: costs_of(numbers, LARGE, cut) for cut in CUTS}
    small = costs_of(numbers, SMALL, "cut")
    text = {cut: f"{CUTS[cut]} +{Interval.of(costs[cut])}" for cut in CUTS}
    none, of = sink_heads(numbers, SMALL)
    return [
        Check.over_seeds(
            Words(
                "cutting the first token off costs SmolLM2 more than cutting another token",
                "SmolLM2 では、先頭のトークンを切ると他のトークンを切るより損失が増える",
            ),
            f"{text['cut']}, {text['other cut']} nats",
            decide_above(paired_difference(costs["cut"], costs["other cut"]), NONE),
        ),
        Check.over_seeds(
            Words(
                "what is missed is not the token: removing it from the text, so that another is the"
                " first, costs less than cutting it",
                "失われるのはトークンの情報ではない：文から取り除き、別のトークンを先頭にする方が損失の増分は小さい",
            ),
            f"{text['removed']} nats",
            decide_below(paired_difference(costs["removed"], costs["cut"]), NONE),
        ),
        Check.over_seeds(
            Words(
                "nor what it says: silencing it costs less than half of cutting it; most of the"
                " cost is the weight that the other tokens then get",
                "その内容でもない：寄与をゼロにしても増分は切ったときの半分未満で、"
                "残りは他のトークンに移った重みによる",
            ),
            f"{text['silenced']}, {text['other silenced']} nats",
            decide_below(
                paired_difference(costs["silenced"], [HALF * cost for cost in costs["cut"]]), NONE
            ),
        ),
        Check.over_seeds(
            Words(
                "not every model has one: the cut costs stories15m less than SmolLM2",
                "すべてのモデルにあるわけではない："
                "stories15m では切ったときの増分が SmolLM2 より小さい",
            ),
            f"stories15m +{Interval.of(small)} nats; {none} of {of} heads give the first token more"
            " than half",
            decide_below(paired_difference(small, costs["cut"]), NONE),
        ),
    ]


def summarize_sinks(numbers: Numbers) -> Words:
    cut, removed = (Interval.of(costs_of(numbers, LARGE, name)).mean for name in ("cut", "removed"))
    first = Interval.share([row["first"] for row in texts_of(numbers, LARGE)]).mean
    value = Interval.ratio(over_layers(numbers, LARGE, "value length")).mean
    small = Interval.share([row["first"] for row in texts_of(numbers, SMALL)]).mean
    return Words(
        f"SmolLM2 gives its first token {first:.0%} of the weight of the rows from 16 on (a passage"
        f" of Shakespeare, without a start token), stories15m its start token {small:.0%} (stories"
        f" of its own). Cutting it off costs {cut:+.2f} nats per token, removing it {removed:+.2f}:"
        " a head needs a place for weight that it does not use, and the next token serves as well."
        " That is why a window over the KV cache must keep the first tokens (Xiao et al.). The"
        f" value is often said to be near zero: it has {value:.0%} of the others' length, the mean"
        " over layers. Rows before 16 see the first token in every cut: if no row did, the second"
        " token would be the sink, as if the first had been removed.",
        f"SmolLM2 は先頭のトークンに16行目以降の重みの {first:.0%} を置く"
        "（シェイクスピアの一節、開始トークンなし）。"
        f"stories15m は開始トークンに {small:.0%}（自身が書いた物語）。"
        f"切ると1トークンあたり {cut:+.2f} nats、"
        f"取り除くと {removed:+.2f} nats である。"
        "ヘッドは使わない重みの置き場所を必要とし、次のトークンでも同じ役を果たす。"
        "KV キャッシュの窓が最初のトークンを残さねばならないのはこのためである（Xiao et al.）。"
        f"バリューはほぼゼロと言われることが多いが、長さは他の {value:.0%}（層の平均）。"
        "16行目より前の行は常に先頭のトークンを見る。どの行からも見えなければ、"
        "取り除いたときと同じく2番目のトークンがシンクになる。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_sinks(numbers: Numbers) -> Mapping[str, Figure]:
    return {
        "attention-sinks-heads": draw_heads(numbers),
        "attention-sinks-cause": draw_cause(numbers),
    }


def draw_heads(numbers: Numbers) -> Figure:
    """The weight of each head on the first token, and what each cut costs."""
    figure, (large, small, costs) = new_figure(3, width=4.4)
    for axes, model in ((large, LARGE), (small, SMALL)):
        rows = [row["heads"] for row in texts_of(numbers, model)]
        means = [
            [sum(values) / len(values) for values in zip(*layer, strict=True)]
            for layer in zip(*rows, strict=True)
        ]
        image = axes.imshow(means, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.grid(visible=False)
        axes.set(xlabel="head", ylabel="layer", title=f"{MODEL_NAMES[model]}: weight on the first")
        figure.colorbar(image, ax=axes)
    for number, model in enumerate((LARGE, SMALL)):
        values = [Interval.of(costs_of(numbers, model, cut)) for cut in CUTS]
        places = [place + 0.1 * (2 * number - 1) for place in range(len(CUTS))]
        costs.hlines(places, [v.low for v in values], [v.high for v in values], COLOURS[number])
        costs.plot(
            [value.mean for value in values],
            places,
            linestyle="",
            marker=MARKS[number],
            color=COLOURS[number],
            label=MODEL_NAMES[model],
        )
    costs.set_yticks(range(len(CUTS)), labels=list(CUTS.values()))
    costs.set(
        ylim=(len(CUTS) - 0.5, -0.5),
        xlabel="additional loss, nats per token",
        title="Cost of each cut",
    )
    costs.axvline(0, color="0", linewidth=0.8)
    costs.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def draw_cause(numbers: Numbers) -> Figure:
    """By layer: the weight on the first token with another length or direction; its lengths."""
    figure, (weights, lengths) = new_figure(2, width=5.0)
    for number, (name, label) in enumerate(WEIGHTS.items()):
        plot_layers(weights, numbers, name, label, number)
    for number, (name, label) in enumerate(LENGTHS.items()):
        plot_layers(lengths, numbers, name, label, number)
    weights.set(
        xlabel="layer", ylabel="weight on the first token", ylim=(0, 1.05),
        title="SmolLM2: direction makes the sink",
    )  # fmt: skip
    lengths.set(
        xlabel="layer", ylabel="length of the first / of the others", ylim=(0, None),
        title="SmolLM2: its key and value are short",
    )  # fmt: skip
    lengths.axhline(1, color="0.5", linestyle=":", linewidth=1)
    for axes in (weights, lengths):
        axes.legend(
            frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3
        )
    return figure


def plot_layers(axes: Axes, numbers: Numbers, name: str, label: str, number: int) -> None:
    rows = [row[name] for row in texts_of(numbers, LARGE)]
    intervals = [Interval.of(list(column)) for column in zip(*rows, strict=True)]
    places = [float(layer) for layer in range(len(intervals))]
    plot_mean(axes, places, intervals, label=label, number=number)


EXPERIMENT = Experiment(
    name="attention-sinks",
    title=Words("Attention sinks", "アテンションシンク"),
    claim=Words(
        "Many heads of a language model give most of their weight to the first token, whatever it"
        " is. The direction of its key draws the weight, although key and value are short; where it"
        " is cut off, the weight falls on other tokens and the loss rises.",
        "言語モデルの多くのヘッドは、内容にかかわらず先頭のトークンに大半の重みを置く。"
        "キーもバリューも短いが、キーの方向が重みを集める。"
        "シンクを切ると重みは他のトークンに移り、損失が増える。",
    ),
    source="Xiao et al. 2023 (StreamingLLM); Gu et al. 2024; Barbero et al. 2025",
    equation=(
        "w_0 = exp(q·k_0) / Σ_j exp(q·k_j);   output = w_0 v_0 + Σ_{j>0} w_j v_j,   |v_0| small"
    ),
    look_for=Words(
        "bright heads in the first map and none in the second; the cut far to the right of all"
        " other changes",
        "1枚目の図の明るいヘッドと、それがない2枚目。他のどの変更よりずっと右にある「切る」",
    ),
    parts=sink_parts,
    judge=judge_sinks,
    draw=draw_sinks,
    summarize=summarize_sinks,
    settle=SETTLE,
    corrections=(
        Words(
            "A bright first column in an attention map does not mean that the first token matters:"
            " remove it, and the next one gets the weight at almost no loss.",
            "注意の図で最初の列が明るくても、先頭のトークンが重要とは限らない。"
            "取り除いても、次のトークンがその重みを得て、損失はほとんど変わらない。",
        ),
    ),
)
