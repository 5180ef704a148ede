"""Self-attention on three words: every number of the smallest example, computed in three
independent ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.explain.example import WORDS, X, three_words
from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (
    (0.396, 0.324, 0.279),
    (0.313, 0.380, 0.307),
    (0.277, 0.315, 0.408),
)  # by hand, to three places
MASKED = (0.0900, 0.2447, 0.0, 0.6652)  # softmax([1, 2, −∞, 3])


def three_words_parts(plan: Plan) -> Sequence[ExperimentPart]:
    del plan
    return [
        ExperimentPart("by-hand", attention_by_hand),
        ExperimentPart("by-kernel", attention_by_kernel),
        ExperimentPart("masked", masked_example),
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


def masked_example() -> list[float]:
    """softmax([1, 2, −∞, 3])"""
    import torch

    return torch.tensor([1.0, 2.0, -torch.inf, 3.0]).softmax(-1).tolist()


def judge_three_words(numbers: Numbers) -> Sequence[Check]:
    hand = numbers["by-hand"]
    kernels = numbers["by-kernel"]
    to_hand = largest_difference(hand["weights"], WEIGHTS)
    between_kernels = max(
        largest_difference(kernels[kernel][what], hand[what])
        for kernel in kernels
        for what in ("weights", "output")
    )
    sums = max(abs(sum(row) - 1) for row in hand["weights"])
    off = largest_difference([numbers["masked"]], [MASKED])
    return [
        Check(
            Words(
                "the weights equal those computed by hand, to three decimals",
                "重みは手計算と小数第3位まで一致する",
            ),
            to_hand < 6e-4,
            f"largest difference {to_hand:.1e}",
        ),
        Check(
            Words("both kernels give the same numbers", "二つのカーネルは同じ値を出す"),
            between_kernels < 1e-6,
            f"largest difference {between_kernels:.1e}",
        ),
        Check(
            Words("every row of weights sums to 1", "重みの各行の和は1"),
            sums < 1e-9,
            f"largest difference {sums:.1e}",
        ),
        Check(
            Words(
                "softmax([1, 2, −∞, 3]) = 0.0900 0.2447 0 0.6652",
                "softmax([1, 2, −∞, 3]) = 0.0900 0.2447 0 0.6652",
            ),
            off < 1e-4,
            " ".join(f"{value:.4f}" for value in numbers["masked"]),
        ),
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
    ),
)
