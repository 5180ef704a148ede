"""Why attention: how far an LSTM, convolutions and attention remember, how many layers a distance
takes, and what N tokens cost."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.measures.kernel_costs import KERNELS, exponent, memory, seconds_of
from sightline.lab.statistics import Interval, above, below, within
from sightline.lab.style import figure, line, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Generator, Tensor

MODELS = {"attention": "attention", "lstm": "LSTM", "plain": "plain CNN", "dilated": "dilated CNN"}
VALUES, QUESTION = (
    8,
    23,
)  # symbols to be remembered are those below 8; between 8 and the question is noise
LAYERS = 7  # of both CNNs: with kernel 3 they see back 14 tokens plain, 254 dilated
BEYOND_PLAIN = 2 * LAYERS
DISTANCES = {
    "quick": (4, 16, 64),
    "default": (4, 8, 16, 32, 64, 128),
    "full": (4, 8, 16, 32, 64, 128, 250),
}
STEPS = {"quick": 100, "default": 400, "full": 4000}
SEEDS = {"quick": 3, "default": 4, "full": 8}
PATHS = (2, 4, 8, 16, 32, 64)
TIMED = {
    "quick": (64, 128, 256, 512),
    "default": (64, 128, 256, 512, 1024),
    "full": (64, 128, 256, 512, 1024, 2048),
}
LENGTHS = {
    "quick": (512, 1024, 2048),
    "default": (512, 1024, 2048),
    "full": (512, 1024, 2048, 4096),
}
TIMED_KERNELS = {
    "quick": (1024, 1536, 2048),
    "default": (1024, 1536, 2048),
    "full": (1024, 1536, 2048, 3072, 4096),
}
TIMES_MEASURED = 5
REPEATS = {"quick": 1, "default": 3, "full": 5}


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    seeds = range(seed, seed + SEEDS[tier])
    steps = STEPS[tier]
    recalls = [
        Part(
            f"recall.{name}.{far}.steps-{steps}.seed-{n}",
            lambda name=name, far=far, n=n: recall(name, far, n, steps),
        )
        for n in seeds
        for far in DISTANCES[tier]
        for name in MODELS
    ]
    memories = [
        Part(
            f"memory.{kernel}.to-{LENGTHS[tier][-1]}.again-{n}",
            lambda kernel=kernel: memory(kernel, LENGTHS[tier]),
            alone=True,
        )
        for n in range(REPEATS[tier])
        for kernel in KERNELS
    ]
    kernel_times = [
        Part(
            f"kernel-time.to-{TIMED_KERNELS[tier][-1]}.seed-{n}",
            lambda n=n: seconds_of(TIMED_KERNELS[tier], n),
            alone=True,
        )
        for n in range(seed, seed + TIMES_MEASURED)
    ]
    steps_timed = [
        Part(
            f"step-time.to-{TIMED[tier][-1]}.seed-{n}",
            lambda n=n: step_times(TIMED[tier], n),
            alone=True,
        )
        for n in seeds
    ]
    return [
        Part(f"path.seed-{seed}", lambda: paths(seed)),
        *memories,
        *kernel_times,
        *steps_timed,
        *recalls,
    ]


# ----------------------------------------------------------------------------------------- recall


def asked(far: int, rows: int, random: Generator) -> tuple[Tensor, Tensor]:
    """[symbol, noise …, ?]: what stood `far` tokens before the question?"""
    import torch

    symbol = torch.randint(0, VALUES, (rows, 1), generator=random)
    noise = torch.randint(VALUES, QUESTION, (rows, far - 1), generator=random)
    return torch.cat((symbol, noise, torch.full((rows, 1), QUESTION)), dim=1), symbol[:, 0]


def recall(name: str, far: int, seed: int, steps: int) -> dict[str, float]:
    """The share that is recalled after training on this distance, and the steps used: it ends early
    when all of 512 are right."""
    import torch
    from torch.nn import functional as F
    from torch.nn.utils import clip_grad_norm_

    from sightline.lab.learning import random_of
    from sightline.lab.measures.rivals import made

    model = made(name, seed, longest=far + 1)
    random = random_of(seed, far)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    held_out, truth = asked(far, 512, random_of(seed, far, 1))
    right = 0.0
    step = 0
    while step < steps and right < 1:
        tokens, symbols = asked(far, 16, random)
        F.cross_entropy(model(tokens)[:, -1], symbols).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 25 == 0 or step == steps:
            with torch.no_grad():
                right = float((model(held_out)[:, -1].argmax(-1) == truth).double().mean())
    return {"right": right, "steps": step, "parameters": sum(p.numel() for p in model.parameters())}


# ----------------------------------------------------------------------------------- path lengths


def paths(seed: int) -> dict[str, dict[str, int]]:
    """The fewest layers with which the last of N + 1 outputs depends on the first input, found by
    its gradient."""
    from sightline.lab.measures.rivals import fewest_layers

    return {name: {str(far): fewest_layers(name, far, seed) for far in PATHS} for name in MODELS}


def formula(name: str, far: int) -> int:
    """⌈N / (k − 1)⌉ plain, ⌈log₂(N / (k − 1) + 1)⌉ dilated, 1 for attention and for an LSTM, which
    takes N steps in it."""
    span = 2
    return {"plain": math.ceil(far / span), "dilated": math.ceil(math.log2(far / span + 1))}.get(
        name, 1
    )


# --------------------------------------------------------------------------------- time of a step


def step_times(lengths: Sequence[int], seed: int) -> dict[str, dict[str, float]]:
    """Seconds of one training step on 4 rows, model after model in turns; medians of 5."""
    import torch

    from sightline.lab.measures.rivals import made

    random = torch.Generator().manual_seed(seed)
    models = {name: made(name, seed, longest=lengths[-1]) for name in MODELS}
    found: dict[str, dict[str, float]] = {name: {} for name in MODELS}
    for length in lengths:
        tokens = torch.randint(0, QUESTION, (4, length), generator=random)
        taken: dict[str, list[float]] = {name: [] for name in MODELS}
        for turn in range(6):
            for name, model in models.items():
                start = time.perf_counter()
                model(tokens).square().mean().backward()
                taken[name] += [time.perf_counter() - start] * (turn > 0)
        for name, seconds in taken.items():
            found[name][str(length)] = statistics.median(seconds)
    return found


# ---------------------------------------------------------------------------------------- verdict


def rows_of(numbers: Numbers, kind: str) -> list[Any]:
    return [row for name, row in numbers.items() if name.startswith(f"{kind}.")]


def distances_in(numbers: Numbers) -> list[int]:
    return sorted({int(name.split(".")[2]) for name in numbers if name.startswith("recall.")})


def recalled(numbers: Numbers, name: str, far: int, pick: str = "right") -> Interval:
    return Interval.of([row[pick] for row in rows_of(numbers, f"recall.{name}.{far}")])


def judge(numbers: Numbers) -> Sequence[Check]:
    return [*path_checks(numbers), *recall_checks(numbers), *cost_checks(numbers)]


def path_checks(numbers: Numbers) -> list[Check]:
    found = rows_of(numbers, "path")[0]
    far = PATHS[-1]
    exact = all(found[name][str(n)] == formula(name, n) for name in MODELS for n in PATHS)
    said = ", ".join(f"{label} {found[name][str(far)]}" for name, label in MODELS.items())
    says = Words(
        "layers to reach distance N: 1 for attention, ⌈N/(k−1)⌉ for a plain CNN, about log₂ N for a"
        " dilated one; an LSTM takes N steps in its one",
        "距離 N に届く層数：注意は1、普通の CNN は ⌈N/(k−1)⌉、膨張 CNN は約 log₂ N。LSTM"
        " は1層の中で N ステップ",
    )
    return [Check(says, exact, f"layers at distance {far}: {said}")]


def recall_checks(numbers: Numbers) -> list[Check]:
    far = distances_in(numbers)[-1]
    found = {name: recalled(numbers, name, far) for name in MODELS}
    return [
        Check(
            Words(
                f"attention recalls what stood {far} tokens before (> 0.9)",
                f"注意は{far}語前を思い出せる（> 0.9）",
            ),
            above(found["attention"], 0.9),
            f"{found['attention']}",
        ),
        Check(
            Words(
                f"so does a dilated CNN of {LAYERS} layers (> 0.9)",
                f"{LAYERS}層の膨張 CNN も（> 0.9）",
            ),
            above(found["dilated"], 0.9),
            f"{found['dilated']}",
        ),
        Check(
            Words(
                f"a plain CNN, which sees back {BEYOND_PLAIN}, does not (< 0.25; chance is 0.125)",
                f"{BEYOND_PLAIN}語前までしか見えない普通の CNN にはできない"
                "（< 0.25、偶然なら0.125）",
            ),
            below(found["plain"], 0.25),
            f"{found['plain']}",
        ),
        Check(
            Words(
                "an LSTM, trained for as many steps, recalls less than half of it (< 0.5)",
                "同じステップ数で訓練した LSTM は半分も思い出せない（< 0.5）",
            ),
            below(found["lstm"], 0.5),
            f"{found['lstm']}",
        ),
    ]


def cost_checks(numbers: Numbers) -> list[Check]:
    grown = {
        kernel: Interval.of([exponent(row) for row in rows_of(numbers, f"memory.{kernel}") if row])
        for kernel in KERNELS
    }
    slower = {
        kernel: Interval.of([exponent(row[kernel]) for row in rows_of(numbers, "kernel-time")])
        for kernel in KERNELS
    }
    return [
        Check(
            Words(
                "the equation's memory grows as N² (exponent 1.8 to 2.2)",
                "式どおりの計算のメモリは N² で増える（指数1.8〜2.2）",
            ),
            within(grown["equation"], 1.8, 2.2),
            f"exponent {grown['equation']}",
        ),
        Check(
            Words(
                "the fused kernel's grows as N (exponent 0.7 to 1.3)",
                "融合カーネルのメモリは N で増える（指数0.7〜1.3）",
            ),
            within(grown["fused"], 0.7, 1.3),
            f"exponent {grown['fused']}",
        ),
        Check(
            Words(
                "its time still grows faster than N^1.5, as the equation's does",
                "時間は式どおりの計算と同じく N^1.5 より速く増える",
            ),
            all_of([above(found, 1.5) for found in slower.values()]),
            f"exponents: fused {slower['fused']}, equation {slower['equation']}",
        ),
    ]


def all_of(sides: Sequence[bool | None]) -> bool | None:
    return False if False in sides else None if None in sides else True


def told(numbers: Numbers) -> Words:
    """How far each remembers, and whose training step is the quickest at the longest text."""
    distances = distances_in(numbers)
    timed = rows_of(numbers, "step-time")
    reached = {
        name: max([far for far in distances if recalled(numbers, name, far).mean > 0.9], default=0)
        for name in MODELS
    }
    length = max(int(n) for n in timed[0]["lstm"])
    taken = {
        name: Interval.of([1e3 * row[name][str(length)] for row in timed]).mean for name in MODELS
    }
    far_said = ", ".join(f"{MODELS[name]} {far or '—'}" for name, far in reached.items())
    time_said = ", ".join(
        f"{MODELS[name]} {milliseconds:.1f} ms"
        for name, milliseconds in sorted(taken.items(), key=lambda pair: pair[1])
    )
    slow = taken["attention"] > taken["lstm"]
    why_en = (
        f" Attention is not the quickest: {length} tokens are many more than its 32 numbers a"
        " token, and N² counts."
        if slow
        else ""
    )
    why_ja = (
        f"注意は最速ではない。{length} トークンは1トークン32個の数よりずっと多く、N² が効く。"
        if slow
        else ""
    )
    return Words(
        f"Farthest of the distances {distances} at which nine of ten symbols are recalled:"
        f" {far_said}. A training step on 4 × {length} tokens: {time_said}.{why_en} What limits the"
        " LSTM is training: its gradient fades along the steps, and longer training carries it"
        " farther. What limits the plain CNN is its reach, which no training extends.",
        f"距離 {distances} のうち、十中九まで思い出せた最長：{far_said}。4 × {length}"
        f" トークンの訓練1ステップ：{time_said}。"
        f"{why_ja}LSTM を制限するのは訓練である。勾配がステップに沿って薄れ、"
        "長く訓練すればより遠くまで届く。"
        "普通の CNN を制限するのは視野であり、訓練では延びない。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made_first, (recalls, layers, steps) = figure(3, width=4.0)
    distances = distances_in(numbers)
    path = rows_of(numbers, "path")[0]
    timed = rows_of(numbers, "step-time")
    for number, (name, label) in enumerate(MODELS.items()):
        line(
            recalls,
            list(map(float, distances)),
            [recalled(numbers, name, far) for far in distances],
            label=label,
            number=number,
        )
        counts = [path[name][str(far)] for far in PATHS]
        line(
            layers,
            list(map(float, PATHS)),
            [Interval.of([count]) for count in counts],
            label=label,
            number=number,
        )
        curve(steps, [row[name] for row in timed], label=label, number=number, scale=1e3)
    recalls.axhline(1 / VALUES, color="0.5", linestyle=":", linewidth=1)
    recalls.set(
        xlabel="distance, tokens",
        ylabel="recalled (dotted: chance)",
        title="Recall",
        ylim=(0, 1.05),
    )
    layers.set(
        xlabel="distance, tokens",
        ylabel="layers",
        yscale="log",
        title="Layers needed (LSTM: N steps in one)",
    )
    steps.set(
        xlabel="tokens in a row", ylabel="ms", yscale="log", title="A training step on 4 rows"
    )
    for axes in (recalls, layers, steps):
        axes.set_xscale("log", base=2)
    plain_numbers(layers.yaxis, steps.yaxis)
    recalls.legend(frameon=False, fontsize=8)
    return {"why-attention": made_first, "why-attention-cost": cost_figure(numbers)}


def cost_figure(numbers: Numbers) -> Figure:
    made_now, (bytes_of, seconds) = figure(2)
    for number, (kernel, label) in enumerate(KERNELS.items()):
        grown = [row for row in rows_of(numbers, f"memory.{kernel}") if row]
        if grown:
            curve(
                bytes_of,
                grown,
                label=f"{label}: N^{Interval.of([exponent(row) for row in grown]).mean:.2f}",
                number=number,
                scale=2**-20,
            )
        taken = [row[kernel] for row in rows_of(numbers, "kernel-time")]
        curve(
            seconds,
            taken,
            label=f"{label}: N^{Interval.of([exponent(row) for row in taken]).mean:.2f}",
            number=number,
            scale=1e3,
        )
    bytes_of.set(
        xlabel="tokens, N",
        ylabel="MiB at the peak",
        yscale="log",
        title="Memory of causal attention, 4 heads of 128",
    )
    seconds.set(
        xlabel="tokens, N", ylabel="ms of the processor", yscale="log", title="Time, 2 heads of 64"
    )
    for axes in (bytes_of, seconds):
        axes.set_xscale("log", base=2)
        plain_numbers(axes.yaxis)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8)
    return made_now


def curve(
    axes: Axes, rows: Sequence[Mapping[str, float]], *, label: str, number: int, scale: float
) -> None:
    """Rows of {N: value}, one a seed, as a line with its interval."""
    found = [Interval.of([scale * row[n] for row in rows]) for n in rows[0]]
    line(axes, [float(n) for n in rows[0]], found, label=label, number=number)


EXPERIMENT = Experiment(
    name="why-attention",
    title=Words("Why attention", "なぜ注意なのか"),
    claim=Words(
        "Attention reaches any distance in one layer, and learns to; a plain CNN needs N/(k−1)"
        " layers, an LSTM N steps in a row. It pays with N² work, and with N² memory unless the"
        " kernel is fused.",
        "注意はどんな距離にも1層で届き、それを学べる。普通の CNN は N/(k−1) 層、LSTM は N"
        " 回の逐次ステップを要する。"
        "代償は N² の計算と、融合カーネルでなければ N² のメモリである。",
    ),
    source="Vaswani et al. 2017, section 4 and table 1; Dao et al. 2022; Rabe and Staats 2021",
    equation=(
        "layers to reach N: 1 | ⌈N/(k−1)⌉ | ⌈log₂(N/(k−1) + 1)⌉;   work 4N²d;   memory N² or, tile"
        " by tile, N"
    ),
    look_for=Words(
        "two lines stay at the top of the recall; the plain CNN falls where its view ends, the LSTM"
        " where its gradient fades. Equation and fused kernel part in memory, not in how their time"
        " grows",
        "二本の線は思い出しの上端に留まる。普通の CNN は視野の終わりで、LSTM"
        " は勾配の薄れるところで落ちる。"
        "式と融合カーネルはメモリで分かれ、時間の増え方では分かれない",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "A plain CNN needs O(N/k) layers to connect tokens N apart; O(log N) holds only when it"
            " is dilated.",
            "普通の CNN が N 離れた語を結ぶには O(N/k) 層が要る。"
            "O(log N) は膨張畳み込みのときだけである。",
        ),
    ),
)
