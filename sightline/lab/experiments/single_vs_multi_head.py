"""One head or several, at equal parameter counts: a task whose answer is in two positions, found by
two relations.

    k₃v₁  k₀v₄  k₁v₁  k₄v₂  k₂v₀   ask(k₀, place 3)   →   (v₄, v₂)

    v₄ by content: the token whose key is k₀;   v₂ by position: the fourth token

The answer is an ordered pair, so the model must know which value came from which relation, and one
head gives one weighted mean of values. The same model is also trained on "one at a time": each
question names a key or a position, never both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.statistics import Interval, lies_above, lies_below
from sightline.lab.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.record import Record
    from sightline.training.data.batch import Batch

HEADS = (1, 2, 4, 8)
SIZE = 5  # keys, values and positions
PAIRS = (
    SIZE * SIZE
)  # ids 0 … 24 are (key, value); then 25 questions for both, 5 for a key, 5 for a position
VOCABULARY = 2 * PAIRS + 2 * SIZE
WIDTH = 32
ROWS = 128
RATE = 1e-2
ASKED = 1000
EVERY = 20  # steps between two measurements
LEARNED = 0.95  # the accuracy that counts as learned
TASKS = ("together", "apart")
STEPS = {
    "together": {"quick": 360, "default": 1200, "full": 6000},
    "apart": {"quick": 300, "default": 400, "full": 2000},
}
SEEDS = {"quick": 3, "default": 5, "full": 10}


def multi_head_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    return [
        ExperimentPart(
            f"{task}.heads-{heads}.steps-{STEPS[task][tier]}.seed-{n}",
            lambda task=task, heads=heads, n=n: train_heads(task, heads, STEPS[task][tier], n),
        )
        for task in TASKS
        for heads in (HEADS if task == "together" else HEADS[:1])
        for n in range(seed, seed + SEEDS[tier])
    ]


def questions(task: str, rows: int, seed: int, step: int) -> tuple[Batch, Tensor, Tensor]:
    """Rows of five (key, value) tokens and a question, and the positions of the two answers, by
    content and by position, which never coincide."""
    import torch

    from sightline.lab.learning import labelled_batch, seeded_generator
    from sightline.training.data.batch import IGNORED

    random = seeded_generator(seed, TASKS.index(task), step)
    row = torch.arange(rows)
    keys = torch.rand(rows, SIZE, generator=random).argsort(1)
    values = torch.randint(SIZE, (rows, SIZE), generator=random)
    content = torch.randint(SIZE, (rows,), generator=random)
    place = (content + torch.randint(1, SIZE, (rows,), generator=random)) % SIZE
    first = values[row, content]
    second = values[row, place]
    question = PAIRS + keys[row, content] * SIZE + place
    if task == "apart":
        by_content = torch.rand(rows, generator=random) < 0.5
        first = second = torch.where(by_content, first, second)
        question = 2 * PAIRS + torch.where(by_content, keys[row, content], SIZE + place)
    tokens = torch.cat((keys * SIZE + values, question[:, None]), dim=1)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -1] = first * SIZE + second
    return labelled_batch(tokens, targets), content, place


def one_block_config(heads: int) -> ModelConfig:
    """One block. The heads share the width: head_dim = width / heads."""
    from sightline.architectures import gpt

    return gpt(width=WIDTH, layers=1, heads=heads, vocab_size=VOCABULARY, max_positions=SIZE + 1)


def train_heads(task: str, heads: int, steps: int, seed: int) -> dict[str, Any]:
    """Accuracy during training and at the end, of the whole answer and of each half, and where each
    head attends at the end."""
    import torch

    from sightline.lab.learning import GeneratedTask, training_steps
    from sightline.record import Recorder

    batch, content, place = questions(task, ASKED, seed, 10**9)
    targets = batch.targets[:, -1]
    row = torch.arange(ASKED)
    record = Recorder({"weights"})
    course = list[float]()
    learner = None
    for learner, event in training_steps(
        one_block_config(heads),
        GeneratedTask(lambda step: questions(task, ROWS, seed, step)[0]),
        steps=steps,
        lr=RATE,
        seed=seed,
    ):
        if event.step % EVERY == 0 or event.step == steps:
            course.append(
                float(
                    (predict_answers(learner.transformer, batch.tokens) == targets).double().mean()
                )
            )
    assert learner is not None
    answers = predict_answers(learner.transformer, batch.tokens, record)
    looks = record["decoder", 0, "weights"][:, :, -1]
    matrices = [
        parameter
        for name, parameter in learner.transformer.named_parameters()
        if ".attention." in name and parameter.ndim == 2
    ]
    return {
        "right": course[-1],
        "course": course,
        "steps": steps,
        "content right": float((answers // SIZE == targets // SIZE).double().mean()),
        "place right": float((answers % SIZE == targets % SIZE).double().mean()),
        "to content": looks[row, :, content].mean(0),
        "to place": looks[row, :, place].mean(0),
        "attention parameters": sum(parameter.numel() for parameter in matrices),
        "parameters": sum(parameter.numel() for parameter in learner.transformer.parameters()),
    }


def predict_answers(
    transformer: Transformer, tokens: Tensor, record: Record | None = None
) -> Tensor:
    """The most likely pair for each row."""
    import torch

    from sightline.record import NOTHING

    with torch.no_grad():
        return transformer(tokens, record=record or NOTHING)[:, -1, :PAIRS].argmax(-1)


def runs_with_heads(numbers: Numbers, task: str, heads: int) -> list[Mapping[str, Any]]:
    """The runs of all seeds with this number of heads."""
    return [row for name, row in numbers.items() if name.startswith(f"{task}.heads-{heads}.")]


def accuracies(numbers: Numbers, task: str, heads: int, what: str = "right") -> list[float]:
    return [row[what] for row in runs_with_heads(numbers, task, heads)]


def steps_to_learn(row: Mapping[str, Any]) -> float:
    """Steps until the task is learned; all steps (a lower bound) where it is not."""
    return float(
        next(
            (
                min(row["steps"], EVERY * n)
                for n, right in enumerate(row["course"], 1)
                if right > LEARNED
            ),
            row["steps"],
        )
    )


def accuracy_when_two_learned(single: Mapping[str, Any], double: Mapping[str, Any]) -> float:
    """The accuracy of one head at the step at which two heads have learned the task."""
    return single["course"][math.ceil(steps_to_learn(double) / EVERY) - 1]


def division_of_work(row: Mapping[str, Any]) -> float:
    """Division of work between two heads: the maximum over i ≠ j of min(weight of head i on the
    content position, weight of head j on the other); 0 with one head."""
    content = row["to content"]
    place = row["to place"]
    return max(
        (min(a, b) for i, a in enumerate(content) for j, b in enumerate(place) if i != j),
        default=0.0,
    )


def judge_multi_head(numbers: Numbers) -> Sequence[Check]:
    single = runs_with_heads(numbers, "together", 1)
    double = runs_with_heads(numbers, "together", 2)
    then = Interval.of(
        [accuracy_when_two_learned(one, two) for one, two in zip(single, double, strict=True)]
    )
    alone = Interval.of(accuracies(numbers, "apart", 1))
    two = Interval.of(accuracies(numbers, "together", 2))
    faster = {
        heads: Interval.of(
            [
                steps_to_learn(a) / steps_to_learn(b)
                for a, b in zip(runs_with_heads(numbers, "together", heads), single, strict=True)
            ]
        )
        for heads in HEADS[1:]
    }
    least = max(faster.values(), key=lambda ratio: ratio.high)
    work = Interval.of([division_of_work(row) for row in double])
    counts = {
        (row["attention parameters"], row["parameters"])
        for name, row in numbers.items()
        if name.startswith("together.")
    }
    return [
        Check(
            Words(
                "attention has 4d² parameters for any number of heads",
                "注意層のパラメータ数はヘッド数によらず 4d²",
            ),
            len(counts) == 1 and next(iter(counts))[0] == 4 * WIDTH**2,
            ", ".join(f"{attention:,} of {whole:,}" for attention, whole in sorted(counts)),
        ),
        Check(
            Words(
                "one head finds either position when the question names only one (> 0.95)",
                "1ヘッドでも、質問が一つだけならどちらの位置も見つけられる（> 0.95）",
            ),
            lies_above(alone, LEARNED),
            f"accuracy {alone}",
        ),
        Check(
            Words(
                "two heads find both at once (> 0.95)",
                "2ヘッドなら二つ同時に見つけられる（> 0.95）",
            ),
            lies_above(two, LEARNED),
            f"accuracy {two}",
        ),
        Check(
            Words(
                "one head does not within the steps that two heads need to learn it (< 0.8)",
                "2ヘッドが学び終えるまでのステップ数では、1ヘッドは見つけられない（< 0.8）",
            ),
            lies_below(then, 0.8),
            f"accuracy {then}",
        ),
        Check(
            Words(
                "2, 4 and 8 heads all need less than 0.7 of one head's steps (of all steps where"
                " one"
                " head does not learn it)",
                "2・4・8ヘッドに要るステップ数はいずれも1ヘッドの0.7倍未満（1ヘッドが学ばなければ全ステップ数と比べる）",
            ),
            lies_below(least, 0.7),
            ", ".join(f"{heads} heads {ratio}" for heads, ratio in faster.items()),
        ),
        Check(
            Words(
                "two heads divide the work: each attends to one of the two positions (both > 0.5)",
                "2ヘッドは分業する。それぞれが二つの位置の一方に注目する（どちらも > 0.5）",
            ),
            lies_above(work, 0.5),
            f"smaller of the two weights {work}",
        ),
    ]


def summarize_multi_head(numbers: Numbers) -> Words:
    single = runs_with_heads(numbers, "together", 1)
    steps = {
        heads: Interval.of(
            [steps_to_learn(row) for row in runs_with_heads(numbers, "together", heads)]
        ).mean
        for heads in HEADS
    }
    late = [row for row in single if row["right"] > LEARNED]
    runs = len(single)
    limit = single[0]["steps"]
    looks = [sorted((row["to content"][0], row["to place"][0]), reverse=True) for row in late]
    english = (
        f"Two heads need {steps[2]:.0f} steps on average, four {steps[4]:.0f}, eight"
        f" {steps[8]:.0f}. Of {runs} models with one head, {len(late)} learned it within {limit:,}"
        " steps."
    )
    japanese = (
        f"平均して2ヘッドは{steps[2]:.0f}、4ヘッドは{steps[4]:.0f}、"
        f"8ヘッドは{steps[8]:.0f}ステップを要した。"
        f"1ヘッドのモデルは{runs}個中{len(late)}個が{limit:,}ステップ以内に学んだ。"
    )
    if looks:
        more, less = (Interval.of([pair[n] for pair in looks]).mean for n in range(2))
        english += (
            f" They put unequal weights on the two positions ({more:.2f} and {less:.2f}), so"
            " that the"
            " mean tells which value is which."
        )
        japanese += (
            f"二つの位置に異なる重み（{more:.2f} と {less:.2f}）を置き、"
            "平均からどちらの値かを読み取れるようにしている。"
        )
    else:
        english += (
            " Unequal weights on the two positions would distinguish the values; no run found"
            " this in"
            " these steps."
        )
        japanese += (
            "二つの位置に異なる重みを置けば値を区別できるが、"
            "この学習量ではどれもそれを見つけなかった。"
        )
    return Words(english, japanese)


def draw_multi_head(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (answers, *panels) = new_figure(4, width=3.3, height=3.3)
    for number, heads in enumerate(HEADS):
        rows = runs_with_heads(numbers, "together", heads)
        at = [float(min(rows[0]["steps"], EVERY * n)) for n in range(1, len(rows[0]["course"]) + 1)]
        for place, row in enumerate(rows):
            label = f"{heads} head{'s' * (heads > 1)}" if place == 0 else None
            answers.plot(
                at, row["course"], color=COLOURS[number], linewidth=1.2, alpha=0.8, label=label
            )
    answers.axhline(1 / PAIRS, color="0.5", linestyle=":", label="uniform guess")
    answers.set(
        xlabel="step",
        ylabel="accuracy",
        ylim=(0, 1.05),
        title="Both at once, equal parameters",
    )
    answers.legend(
        frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3
    )
    for axes, heads in zip(panels, (1, 2, 8), strict=True):
        draw_head_targets(axes, numbers, heads)
    panels[0].legend(frameon=False, fontsize=8, loc="upper right")
    return {"single-vs-multi-head": figure}


def draw_head_targets(axes: Axes, numbers: Numbers, heads: int) -> None:
    """Each head of each seed as a point: its weights on the two positions."""
    for seed, row in enumerate(runs_with_heads(numbers, "together", heads)):
        colour = COLOURS[seed % len(COLOURS)]
        axes.scatter(
            row["to content"],
            row["to place"],
            s=36,
            color=colour,
            alpha=0.8,
            linewidth=0,
            label=f"run {seed + 1}",
            clip_on=False,
        )
    axes.plot([0, 1], [1, 0], color="0.6", linewidth=0.8, linestyle=":")
    title = f"{heads} head{'s' * (heads > 1)}: attention targets"
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="weight on the key's position",
        ylabel="weight on the named position",
        title=title,
    )


EXPERIMENT = Experiment(
    name="single-vs-multi-head",
    title=Words("One head or several", "1ヘッドか複数ヘッドか"),
    claim=Words(
        "Several heads let a token attend to several positions by different relations at once; a"
        " single head's averaging prevents this.",
        "複数のヘッドがあれば、異なる関係で複数の位置に同時に注目できる。1ヘッドでは平均がそれを妨げる。",
    ),
    source="Vaswani et al. 2017, section 3.2.2",
    equation="MultiHead(x) = Concat(head_1 … head_h) W_O,   h · 3 · d · (d / h) + d² = 4d²",
    look_for=Words(
        "the lines of several heads jump to 1 together, those of one head stay low; with two heads"
        " the points sit in opposite corners",
        "複数ヘッドの線はそろって1に跳ね上がり、1ヘッドの線は低いまま残る。"
        "2ヘッドの点は向かい合う二つの隅に集まる",
    ),
    parts=multi_head_parts,
    judge=judge_multi_head,
    draw=draw_multi_head,
    summarize=summarize_multi_head,
    corrections=(
        Words(
            "More heads do not save parameters. Each head is d / h wide and there are h of them:"
            f" 4d² = {4 * WIDTH**2:,} here, for any h.",
            "ヘッドを増やしてもパラメータは減らない。幅 d / h のヘッドが h 個あるので、h によらず"
            f" 4d²（ここでは {4 * WIDTH**2:,}）。",
        ),
    ),
)
