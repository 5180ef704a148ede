"""Self-attention on three words: every number of the smallest example, computed in three
independent ways; and how far from uniform the weights of random queries and keys are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.explain.example import WORDS, X, three_words
from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.statistics import Interval, decide_above, decide_count_below
from sightline.lab.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (
    (0.396, 0.324, 0.279),
    (0.313, 0.380, 0.307),
    (0.277, 0.315, 0.408),
)  # by hand, to three places
FIRST_OUTPUT = (0.549, 0.606, 0.488, 0.244)  # of the first word, by hand
MASKED = (0.0900, 0.2447, 0.0, 0.6652)  # softmax([1, 2, −∞, 3])
THREE_PLACES = 0.5e-3 + 1e-9  # what rounding to three places changes
FOUR_PLACES = 0.5e-4 + 1e-6  # to four, of float32
ROUNDING = 1e-12  # of float64, after some dozens of operations
TOKENS = 5
DRAWS = 2000
FLAT = 0.015  # “about 0.2”: 0.185 … 0.215, what 0.2 is to one place and a little more


def three_words_parts(plan: Plan) -> Sequence[ExperimentPart]:
    return [
        ExperimentPart("by-hand", attention_by_hand),
        ExperimentPart("by-kernel", attention_by_kernel),
        ExperimentPart("masked", masked_example),
        ExperimentPart(
            f"random.draws-{DRAWS}.repeat-{plan.seed}", lambda: random_weights(plan.seed)
        ),
    ]


def attention_by_hand() -> dict[str, Any]:
    """The example in pure Python."""
    return {step.name: step.rows for step in three_words()}


def attention_by_kernel() -> dict[str, Any]:
    """The example with both attention kernels."""
    import torch

    from sightline.core.multi_head import attention

    x = torch.tensor(X, dtype=torch.float64)[None, None]
    by_kernel: dict[str, Any] = {}
    for kernel in ("equation", "fused"):
        output, weights = attention(x, x, x, kernel=kernel, return_weights=True)
        by_kernel[kernel] = {"output": output[0, 0], "weights": weights[0, 0]}
    return by_kernel


def masked_example(masked: float = float("-inf")) -> list[float]:
    """softmax([1, 2, −∞, 3])"""
    import torch

    return torch.tensor([1.0, 2.0, masked, 3.0]).softmax(-1).tolist()


def random_weights(seed: int, spread: float = 1.0) -> dict[str, Any]:
    """Weights over five tokens with random x of width 8 and random W_Q and W_K to d_k = 4: in how
    many draws all of them are near 1/5, and the largest of each draw's rows on average."""
    import torch

    random = torch.Generator().manual_seed(seed)
    x = torch.randn(DRAWS, TOKENS, 8, generator=random)
    query, key = (spread * x @ torch.randn(DRAWS, 8, 4, generator=random) for _ in range(2))
    weights = (query @ key.transpose(1, 2) / 2).softmax(-1)
    flat = ((weights - 1 / TOKENS).abs() < FLAT).all(-1).all(-1)
    return {
        "flat": int(flat.sum()),
        "draws": DRAWS,
        "largest": weights.amax(-1).mean(-1),
    }


def judge_three_words(numbers: Numbers) -> Sequence[Check]:
    return [*judge_example(numbers), *judge_random(numbers)]


def judge_example(numbers: Numbers) -> Sequence[Check]:
    """The bounds are those of rounding."""
    hand = numbers["by-hand"]
    kernels = numbers["by-kernel"]
    to_hand = max(
        largest_difference(hand["weights"], WEIGHTS),
        largest_difference(hand["output"][:1], [FIRST_OUTPUT]),
    )
    between_kernels = max(
        largest_difference(kernels[kernel][what], hand[what])
        for kernel in kernels
        for what in ("weights", "output")
    )
    rows = [row for way in (hand, *kernels.values()) for row in way["weights"]]
    sums = max(abs(sum(row) - 1) for row in rows)
    masked = largest_difference([numbers["masked"]], [MASKED])
    return [
        Check(
            Words(
                "the weights, and the first word's output, equal those computed by hand, to three"
                " decimals",
                "重みと第1語の出力は手計算と小数第3位まで一致する",
            ),
            to_hand < THREE_PLACES,
            f"largest difference {to_hand:.1e}",
        ),
        Check(
            Words(
                "both kernels give the same numbers (to 1e-12)",
                "二つのカーネルは同じ値を出す（誤差 1e-12 以内）",
            ),
            between_kernels < ROUNDING,
            f"largest difference {between_kernels:.1e}",
        ),
        Check(
            Words(
                "every row of weights is positive and sums to 1",
                "重みの各行は正で、和は1",
            ),
            sums < ROUNDING and min(min(row) for row in rows) > 0,
            f"largest difference {sums:.1e}",
        ),
        Check(
            Words(
                "softmax([1, 2, −∞, 3]) = 0.0900 0.2447 0 0.6652",
                "softmax([1, 2, −∞, 3]) = 0.0900 0.2447 0 0.6652",
            ),
            masked < FOUR_PLACES,
            " ".join(f"{value:.4f}" for value in numbers["masked"]),
        ),
    ]


def judge_random(numbers: Numbers) -> Sequence[Check]:
    """A half: in most draws; one token outweighs the other four together."""
    row = next(row for name, row in numbers.items() if name.startswith("random."))
    largest = Interval.bootstrap(row["largest"])
    return [
        Check.over_seeds(
            Words(
                "random queries and keys of five tokens do not give uniform weights: in fewer than"
                " half of all draws are all of them near 0.2, and the largest is above 0.5 on"
                " average",
                "5トークンの乱数のクエリとキーの重みは一様にならない。すべてが 0.2 に近い試行は"
                "半数未満で、最大の重みは平均 0.5 を超える",
            ),
            f"{row['flat']} of {row['draws']}, largest weight {largest}",
            decide_count_below(row["flat"], row["draws"], 0.5),
            decide_above(largest, 0.5),
        )
    ]


def largest_difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    return max(
        abs(a - b)
        for row, other in zip(ours, theirs, strict=True)
        for a, b in zip(row, other, strict=True)
    )


def draw_three_words(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (scores, weights) = new_figure(2, width=3.6, height=3.3)
    for axes, what in ((scores, "scores"), (weights, "weights")):
        values = numbers["by-hand"][what]
        axes.imshow(values, cmap="cividis", vmin=0)
        axes.grid(False)
        axes.set(xticks=range(3), yticks=range(3), title=what, xlabel="key", ylabel="query")
        axes.set_xticklabels(WORDS)
        axes.set_yticklabels(WORDS)
        middle = max(max(row) for row in values) * 0.6
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                axes.text(
                    j,
                    i,
                    f"{value:.3f}",
                    ha="center",
                    va="center",
                    color="black" if value > middle else "white",
                )
    return {"three-words": figure}


EXPERIMENT = Experiment(
    name="three-words",
    title=Words("Self-attention on three words", "三つの単語の自己注意"),
    claim=Words(
        "Attention is a weighted mean: each output is a mixture of all values, weighted by how"
        " well the"
        " keys match the query.",
        "注意機構は加重平均である。各単語の出力は、"
        "そのクエリと各単語のキーがどれだけ合うかに応じた、全単語のバリューの混合になる。",
    ),
    source="Vaswani et al. 2017, equation 1",
    equation="a = softmax(q kᵀ / √d_k),   z = a v",
    look_for=Words(
        "each row of weights sums to 1; each word attends to itself most",
        "各行の和は1。どの単語も自分自身への重みが最も大きい",
    ),
    parts=three_words_parts,
    judge=judge_three_words,
    draw=draw_three_words,
    corrections=(
        Words(
            "Other values for these weights are in circulation. With these vectors they are the"
            " ones"
            " above; check one by hand.",
            "この重みには別の値が出回っているが、このベクトルでは上の値が正しい。一つ手で計算して確かめよう。",
        ),
        Words(
            "The same holds for softmax([1, 2, −∞, 3]): a masked score does not change the ratio"
            " of the"
            " others, e : e² : e³.",
            "softmax([1, 2, −∞, 3]) も同様。マスクされたスコアは残りの比 e : e² : e³ を変えない。",
        ),
        Words(
            f"The first word's output is {' '.join(map(str, FIRST_OUTPUT))}.",
            f"第1語の出力は {' '.join(map(str, FIRST_OUTPUT))}。",
        ),
        Words(
            "Untrained weights are not uniform: with random queries and keys the largest of five"
            " weights is about 0.85.",
            "学習前の重みは一様ではない。"
            "乱数のクエリとキーでは五つの重みの最大値は約 0.85 になる。",
        ),
    ),
)
