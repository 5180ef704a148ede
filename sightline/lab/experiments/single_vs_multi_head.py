"""One head or several, at equal parameters: a task whose answer lies in two places at once, found
by two relations.

    k₃v₁  k₀v₄  k₁v₁  k₄v₂  k₂v₀   ask(k₀, place 3)   →   (v₄, v₂)

    v₄ by content: the token whose key is k₀;   v₂ by place: the fourth token

The answer is an ordered pair, so it must be known which value came by which relation. One head
gives one weighted mean of values. The same model also learns "one at a time": each question names a
key or a place, never both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.statistics import Interval, above, below
from sightline.lab.style import COLOURS, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.record import Record
    from sightline.training.data.batch import Batch

HEADS = (1, 2, 4, 8)
SIZE = 5  # keys, values and places, five of each
PAIRS = (
    SIZE * SIZE
)  # ids 0 … 24 are (key, value); then 25 questions for both, 5 for a key, 5 for a place
VOCABULARY = 2 * PAIRS + 2 * SIZE
WIDTH = 32
ROWS = 128
RATE = 1e-2
ASKED = 1000
EVERY, LEARNED = 20, 0.95  # steps between two looks; what counts as learned
TASKS = ("together", "apart")
STEPS = {
    "together": {"quick": 360, "default": 1200, "full": 6000},
    "apart": {"quick": 300, "default": 400, "full": 2000},
}
SEEDS = {"quick": 3, "default": 5, "full": 10}


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    return [
        Part(
            f"{task}.heads-{heads}.steps-{STEPS[task][tier]}.seed-{n}",
            lambda task=task, heads=heads, n=n: trained(task, heads, STEPS[task][tier], n),
        )
        for task in TASKS
        for heads in (HEADS if task == "together" else HEADS[:1])
        for n in range(seed, seed + SEEDS[tier])
    ]


def questions(task: str, rows: int, seed: int, step: int) -> tuple[Batch, Tensor, Tensor]:
    """Rows of five (key, value) tokens and a question; and where the two answers stand: by content,
    by place. They never coincide."""
    import torch

    from sightline.lab.learning import asked, random_of
    from sightline.training.data.batch import IGNORED

    random = random_of(seed, TASKS.index(task), step)
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
    return asked(tokens, targets), content, place


def model(heads: int) -> ModelConfig:
    """One block. The heads share the width: head_dim = width / heads."""
    from sightline.architectures import gpt

    return gpt(width=WIDTH, layers=1, heads=heads, vocab_size=VOCABULARY, max_positions=SIZE + 1)


def trained(task: str, heads: int, steps: int, seed: int) -> dict[str, Any]:
    """How often the answer is right while it learns and at the end, how often each half of it, and
    where each head looks then."""
    import torch

    from sightline.lab.learning import Drill, learn
    from sightline.record import Recorder

    batch, content, place = questions(task, ASKED, seed, 10**9)
    wanted = batch.targets[:, -1]
    row = torch.arange(ASKED)
    record = Recorder({"weights"})
    course = list[float]()
    learner = None
    for learner, event in learn(
        model(heads),
        Drill(lambda step: questions(task, ROWS, seed, step)[0]),
        steps=steps,
        lr=RATE,
        seed=seed,
    ):
        if event.step % EVERY == 0 or event.step == steps:
            course.append(
                float((answered(learner.transformer, batch.tokens) == wanted).double().mean())
            )
    assert learner is not None
    said = answered(learner.transformer, batch.tokens, record)
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
        "content right": float((said // SIZE == wanted // SIZE).double().mean()),
        "place right": float((said % SIZE == wanted % SIZE).double().mean()),
        "to content": looks[row, :, content].mean(0),
        "to place": looks[row, :, place].mean(0),
        "attention parameters": sum(parameter.numel() for parameter in matrices),
        "parameters": sum(parameter.numel() for parameter in learner.transformer.parameters()),
    }


def answered(transformer: Transformer, tokens: Tensor, record: Record | None = None) -> Tensor:
    """The pair that the model finds likeliest, for each row."""
    import torch

    from sightline.record import NOTHING

    with torch.no_grad():
        return transformer(tokens, record=record or NOTHING)[:, -1, :PAIRS].argmax(-1)


def of(numbers: Numbers, task: str, heads: int) -> list[Mapping[str, Any]]:
    """All seeds of one kind."""
    return [row for name, row in numbers.items() if name.startswith(f"{task}.heads-{heads}.")]


def rights(numbers: Numbers, task: str, heads: int, what: str = "right") -> list[float]:
    return [row[what] for row in of(numbers, task, heads)]


def steps_to(row: Mapping[str, Any]) -> float:
    """The steps until the task is learned; all steps where it is not, so that the true number is
    larger."""
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


def behind(one: Mapping[str, Any], two: Mapping[str, Any]) -> float:
    """How often one head is right at the step at which two have learned it."""
    return one["course"][math.ceil(steps_to(two) / EVERY) - 1]


def divided(row: Mapping[str, Any]) -> float:
    """How far two heads share the work: the best min(head i's look at the content's place, head j's
    at the other), i ≠ j. 0 with one."""
    content = row["to content"]
    place = row["to place"]
    return max(
        (min(a, b) for i, a in enumerate(content) for j, b in enumerate(place) if i != j),
        default=0.0,
    )


def judge(numbers: Numbers) -> Sequence[Check]:
    single = of(numbers, "together", 1)
    double = of(numbers, "together", 2)
    then = Interval.of([behind(one, two) for one, two in zip(single, double, strict=True)])
    alone = Interval.of(rights(numbers, "apart", 1))
    two = Interval.of(rights(numbers, "together", 2))
    faster = {
        heads: Interval.of(
            [
                steps_to(a) / steps_to(b)
                for a, b in zip(of(numbers, "together", heads), single, strict=True)
            ]
        )
        for heads in HEADS[1:]
    }
    least = max(faster.values(), key=lambda ratio: ratio.high)
    work = Interval.of([divided(row) for row in double])
    counts = {
        (row["attention parameters"], row["parameters"])
        for name, row in numbers.items()
        if name.startswith("together.")
    }
    return [
        Check(
            Words(
                "attention has 4d² parameters, whatever the number of heads",
                "注意のパラメータ数はヘッド数によらず 4d²",
            ),
            len(counts) == 1 and next(iter(counts))[0] == 4 * WIDTH**2,
            ", ".join(f"{own:,} of {whole:,}" for own, whole in sorted(counts)),
        ),
        Check(
            Words(
                "one head finds either place when asked for one at a time (> 0.95)",
                "1ヘッドでも、一度に一つなら見つけられる（> 0.95）",
            ),
            above(alone, LEARNED),
            f"right {alone}",
        ),
        Check(
            Words(
                "two heads find both at once (> 0.95)",
                "2ヘッドなら二つ同時に見つけられる（> 0.95）",
            ),
            above(two, LEARNED),
            f"right {two}",
        ),
        Check(
            Words(
                "one head does not, after as many steps as two heads needed to learn it (< 0.8)",
                "2ヘッドが学び終えるまでのステップ数では、1ヘッドは見つけられない（< 0.8）",
            ),
            below(then, 0.8),
            f"right {then}",
        ),
        Check(
            Words(
                "2, 4 and 8 heads all need less than 0.7 of one head's steps (where it does not"
                " learn at all: of all steps)",
                "2・4・8ヘッドに要るステップ数はいずれも1ヘッドの0.7倍未満（1ヘッドが学ばなければ全ステップ数と比べる）",
            ),
            below(least, 0.7),
            ", ".join(f"{heads} heads {ratio}" for heads, ratio in faster.items()),
        ),
        Check(
            Words(
                "two heads divide the work: one looks at the one place, the other at the other"
                " (both > 0.5)",
                "2ヘッドは分業する。一方が一つの場所を、他方がもう一つの場所を見る"
                "（どちらも > 0.5）",
            ),
            above(work, 0.5),
            f"the lesser of the two looks {work}",
        ),
    ]


def told(numbers: Numbers) -> Words:
    single = of(numbers, "together", 1)
    steps = {
        heads: Interval.of([steps_to(row) for row in of(numbers, "together", heads)]).mean
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
            f" They put unequal weights on the two places ({more:.2f} and {less:.2f}), so that the"
            " mean tells which value is which."
        )
        japanese += (
            f"二つの場所に異なる重み（{more:.2f} と {less:.2f}）を置き、"
            "平均からどちらの値かを読み取れるようにしている。"
        )
    else:
        english += (
            " Unequal weights on the two places would tell the values apart; none found that in"
            " this time."
        )
        japanese += (
            "二つの場所に異なる重みを置けば値を区別できるが、"
            "この学習量ではどれもそれを見つけなかった。"
        )
    return Words(english, japanese)


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, (answers, *panels) = figure(4, width=3.3, height=3.3)
    for number, heads in enumerate(HEADS):
        rows = of(numbers, "together", heads)
        at = [float(min(rows[0]["steps"], EVERY * n)) for n in range(1, len(rows[0]["course"]) + 1)]
        for place, row in enumerate(rows):
            label = f"{heads} head{'s' * (heads > 1)}" if place == 0 else None
            answers.plot(
                at, row["course"], color=COLOURS[number], linewidth=1.2, alpha=0.8, label=label
            )
    answers.axhline(1 / PAIRS, color="0.5", linestyle=":", label="a guess")
    answers.set(
        xlabel="step",
        ylabel="share of right answers",
        ylim=(0, 1.05),
        title="Both at once, at equal parameters",
    )
    answers.legend(
        frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3
    )
    for axes, heads in zip(panels, (1, 2, 8), strict=True):
        where(axes, numbers, heads)
    panels[0].legend(frameon=False, fontsize=8, loc="upper right")
    return {"single-vs-multi-head": made}


def where(axes: Axes, numbers: Numbers, heads: int) -> None:
    """Each head of each seed as a point: how much it looks at the one place and at the other."""
    for seed, row in enumerate(of(numbers, "together", heads)):
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
    title = f"{heads} head{'s' * (heads > 1)}: where each looks"
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="weight on the key's place",
        ylabel="weight on the named place",
        title=title,
    )


EXPERIMENT = Experiment(
    name="single-vs-multi-head",
    title=Words("One head or several", "1ヘッドか複数ヘッドか"),
    claim=Words(
        "Several heads let a token look at several places by different relations at once; one"
        " head's averaging stands in the way.",
        "複数のヘッドがあれば、異なる関係で複数の場所を同時に見られる。1ヘッドでは平均がそれを妨げる。",
    ),
    source="Vaswani et al. 2017, section 3.2.2",
    equation="MultiHead(x) = Concat(head_1 … head_h) W_O,   h · 3 · d · (d / h) + d² = 4d²",
    look_for=Words(
        "the lines of several heads jump to 1 together, those of one head stay low; with two heads"
        " the points sit in opposite corners",
        "複数ヘッドの線はそろって1に跳ね上がり、1ヘッドの線は低いまま残る。"
        "2ヘッドの点は向かい合う二つの隅に集まる",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "More heads do not save parameters. Each head is d / h wide and there are h of them:"
            f" 4d² = {4 * WIDTH**2:,} here, whatever h.",
            "ヘッドを増やしてもパラメータは減らない。幅 d / h のヘッドが h 個あるので、h によらず"
            f" 4d²（ここでは {4 * WIDTH**2:,}）。",
        ),
    ),
)
