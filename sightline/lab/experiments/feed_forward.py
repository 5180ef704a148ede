"""ReLU, GELU and SwiGLU at exactly equal parameters: the loss of small models on characters that
they have not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.statistics import Interval, below, differences
from sightline.lab.style import COLOURS, MARKS, figure, line, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.config import ModelConfig
    from sightline.lab.learning import Drill
    from sightline.training.data.packed import PackedText

Form = Literal["relu", "gelu", "swiglu"]
FORMS: dict[Form, str] = {"relu": "ReLU", "gelu": "GELU", "swiglu": "SwiGLU"}
PAIRS: tuple[tuple[Form, Form], ...] = (("swiglu", "relu"), ("swiglu", "gelu"), ("gelu", "relu"))
SEEDS = {"quick": 3, "default": 5, "full": 10}
STEPS = {"quick": 120, "default": 400, "full": 2000}
WIDTH = {
    "quick": 48,
    "default": 48,
    "full": 96,
}  # multiples of 3: two thirds of 4·width is a whole number
RATES = {"quick": (4, 8), "default": (4, 8), "full": (2, 4, 8, 16)}  # thousandths
LAYERS = 2
HEADS = 2
CONTEXT = 64
ROWS = 8
WINDOWS = 256  # of the held-out plays
POINTS = 20  # of a learning curve


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    runs = [
        Part(
            f"run.{form}.width-{WIDTH[tier]}.steps-{STEPS[tier]}.rate-{rate}e-3.seed-{n}",
            lambda form=form, rate=rate, n=n: training(
                form, WIDTH[tier], STEPS[tier], rate / 1000, n
            ),
        )
        for n, rate, form in product(range(seed, seed + SEEDS[tier]), RATES[tier], FORMS)
    ]
    return [
        Part(f"layers.width-{WIDTH[tier]}.seed-{seed}", lambda: layers(WIDTH[tier], seed)),
        *runs,
    ]


# ------------------------------------------------------------------------------------ equal sizes


def hidden_of(form: Form, width: int) -> int:
    """2 · width · 4 width = 3 · width · (8/3) width."""
    return 8 * width // 3 if form == "swiglu" else 4 * width


def config_of(form: Form, width: int, vocabulary: int) -> ModelConfig:
    """Everything else as in Llama."""
    from sightline.architectures import llama

    return llama(
        width=width, layers=LAYERS, heads=HEADS, vocab_size=vocabulary, max_positions=CONTEXT,
        feed_forward=form, hidden=hidden_of(form, width), tied=False,
    )  # fmt: skip


def layers(width: int, seed: int) -> dict[str, Any]:
    """Parameters and matrices of each layer, its output against the equation, how wide it is before
    the last matrix, how large after."""
    import torch
    import torch.nn.functional as F

    from sightline.lab.learning import made

    found: dict[str, Any] = {}
    for form in FORMS:
        layer = made(config_of(form, width, 8), seed).last_stack[0].feed_forward.double()
        x = torch.randn(
            1, 64, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        inner = F.linear(x, layer.up.weight)
        inner = (
            inner * F.silu(F.linear(x, layer.gate.weight))
            if layer.gate is not None
            else {"relu": F.relu, "gelu": F.gelu}[form](inner)
        )
        apart = (layer(x) - F.linear(inner, layer.down.weight)).abs().max()
        found[form] = {
            "parameters": sum(weight.numel() for weight in layer.parameters()),
            "matrices": len(list(layer.parameters())),
            "inner": inner.shape[-1],
            "outer": layer(x).shape[-1],
            "apart": float(apart.detach()),
            "size": float(layer(x).square().mean().sqrt().detach()),
        }
    return found


# -------------------------------------------------------------------------------------- trainings


def training(form: Form, width: int, steps: int, rate: float, seed: int) -> dict[str, Any]:
    from sightline.lab.learning import plays

    task, vocabulary = plays(CONTEXT, ROWS, seed)
    task.evaluated = WINDOWS
    return trained(config_of(form, width, vocabulary), task, steps=steps, rate=rate, seed=seed)


def trained(
    config: ModelConfig, task: Drill | PackedText, *, steps: int, rate: float, seed: int
) -> dict[str, Any]:
    """AdamW, a short warm-up, a cosine: the learning curve in pieces, and the loss on what was held
    out; a run that breaks counts as a blind guess."""
    from sightline.lab.learning import learn, loss_of
    from sightline.training.loop import NotFiniteError

    try:
        events = list(learn(config, task, steps=steps, lr=rate, seed=seed))
    except NotFiniteError:
        return {"curve": [], "held_out": math.log(config.last.embedding.vocab_size)}
    learner = events[-1][0]
    losses = [event.loss for _, event in events]
    size = max(1, steps // POINTS)
    curve = [
        sum(losses[at : at + size]) / len(losses[at : at + size]) for at in range(0, steps, size)
    ]
    return {"curve": curve, "every": size, "held_out": loss_of(learner, task)}


# ------------------------------------------------------------------------------------ the verdict


def named(name: str) -> dict[str, str]:
    """`run.relu.rate-4e-3.seed-1` → form relu, rate 4e-3, seed 1."""
    kind, form, *rest = name.split(".")
    return {"kind": kind, "form": form, **dict(one.split("-", 1) for one in rest)}


def runs_of(numbers: Numbers, form: Form, rate: str) -> list[Mapping[str, Any]]:
    """All seeds."""
    return [
        row
        for name, row in numbers.items()
        if name.startswith(f"run.{form}.") and named(name)["rate"] == rate
    ]


def best(numbers: Numbers, form: Form) -> tuple[str, list[Mapping[str, Any]]]:
    """The rate at which the mean loss on what was held out is lowest, and its runs."""
    rates = sorted({named(name)["rate"] for name in numbers if name.startswith("run.")}, key=float)
    rate = min(rates, key=lambda rate: Interval.of(losses_of(runs_of(numbers, form, rate))).mean)
    return rate, runs_of(numbers, form, rate)


def losses_of(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(row["held_out"]) for row in rows]


def gap(numbers: Numbers, ours: Form, theirs: Form) -> Interval:
    """Nats for each character, ours − theirs, on the same batches and the same held-out text, each
    at its better rate."""
    return differences(losses_of(best(numbers, ours)[1]), losses_of(best(numbers, theirs)[1]))


def judge(numbers: Numbers) -> Sequence[Check]:
    sizes = next(row for name, row in numbers.items() if name.startswith("layers."))
    counts = {form: sizes[form]["parameters"] for form in FORMS}
    gated = sizes["swiglu"]
    comparisons = [
        Check(
            Words(
                f"SwiGLU's loss on unseen text is lower than {FORMS[other]}'s, each at its better"
                " learning rate",
                f"未見の文での損失は SwiGLU の方が {FORMS[other]} より低い"
                "（学習率はそれぞれ良い方）",
            ),
            below(gap(numbers, "swiglu", other), 0),
            f"SwiGLU − {FORMS[other]}: {gap(numbers, 'swiglu', other)} nats a character,"
            f" {len(best(numbers, other)[1])} seeds",
        )
        for other in ("relu", "gelu")
    ]
    return [
        Check(
            Words("all three have exactly as many parameters", "三つのパラメータ数は完全に等しい"),
            len(set(counts.values())) == 1,
            ", ".join(f"{FORMS[form]} {counts[form]:,}" for form in FORMS),
        ),
        Check(
            Words(
                "SwiGLU has three matrices, W₂ (silu(W_g x) ⊙ W₁ x), and only the third brings it"
                " back to the width (to 1e-12)",
                "SwiGLU は W₂ (silu(W_g x) ⊙ W₁ x) の三つの行列を持ち、"
                "三つ目で初めて元の幅に戻る（誤差 1e-12 以内）",
            ),
            gated["matrices"] == 3 and gated["apart"] < 1e-12 and gated["outer"] != gated["inner"],
            f"{gated['inner']} wide before the third, {gated['outer']} after; apart by"
            f" {gated['apart']:.0e}",
        ),
        *comparisons,
    ]


# ---------------------------------------------------------------------------------- seen and told


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, (curves, gaps) = figure(2, width=5.0)
    for number, form in enumerate(FORMS):
        rate, rows = best(numbers, form)
        rows = [row for row in rows if row["curve"]]
        points = [
            Interval.of(list(point)) for point in zip(*(row["curve"] for row in rows), strict=True)
        ][1:]
        places = [rows[0]["every"] * (n + 1.5) for n in range(len(points))]
        line(curves, places, points, label=f"{FORMS[form]} at {float(rate):g}", number=number)
    curves.set(
        xscale="log",
        xlabel="step",
        ylabel="training loss, nats a character",
        title="Learning, each at its better rate",
    )
    plain_numbers(curves.xaxis)
    curves.legend(frameon=False)
    draw_gaps(gaps, numbers)
    return {"feed-forward": made}


def draw_gaps(axes: Axes, numbers: Numbers) -> None:
    """Seed by seed, and the mean with its interval."""
    for place, (ours, theirs) in enumerate(PAIRS):
        pairs = zip(
            losses_of(best(numbers, ours)[1]), losses_of(best(numbers, theirs)[1]), strict=True
        )
        found = gap(numbers, ours, theirs)
        every = [a - b for a, b in pairs]
        axes.scatter(every, [place + 0.15] * len(every), s=14, color="0.5", alpha=0.7, linewidth=0)
        axes.plot([found.low, found.high], [place, place], color=COLOURS[place], linewidth=2)
        axes.plot([found.mean], [place], marker=MARKS[place], color=COLOURS[place])
    axes.axvline(0, color="0", linewidth=0.8)
    axes.set_yticks(
        range(len(PAIRS)), labels=[f"{FORMS[ours]} − {FORMS[theirs]}" for ours, theirs in PAIRS]
    )
    axes.set(
        ylim=(len(PAIRS) - 0.5, -0.5),
        xlabel="held-out loss, nats a character (left: the first is better)",
    )
    axes.set_title("Differences: seeds in grey, mean, 95% interval", fontsize=10)


def told(numbers: Numbers) -> Words:
    means = {form: Interval.of(losses_of(best(numbers, form)[1])) for form in FORMS}
    order = sorted(FORMS, key=lambda form: means[form].mean)
    said = ", ".join(
        f"{FORMS[form]} {means[form].mean:.3f} ({float(best(numbers, form)[0]):g})"
        for form in order
    )
    steps = named(next(name for name in numbers if name.startswith("run.")))["steps"]
    sizes = next(row for name, row in numbers.items() if name.startswith("layers."))
    slow = sizes["relu"]["size"] / sizes["swiglu"]["size"]
    seen = all(below(gap(numbers, "swiglu", other), 0) for other in ("relu", "gelu"))
    why = Words("", "") if seen else SMALL
    return Words(
        f"Loss on plays that were held out, best first (learning rate): {said}. GELU − ReLU:"
        f" {gap(numbers, 'gelu', 'relu')}. These are small models after {steps} steps. Untrained,"
        f" SwiGLU's output is {slow:.1f} times smaller than ReLU's.{why.en}",
        f"取り置いた戯曲での損失、良い順（かっこ内は学習率）：{said}。GELU −"
        f" ReLU：{gap(numbers, 'gelu', 'relu')}。"
        f"小さなモデルを{steps}ステップ学習した値である。学習前の SwiGLU の出力は ReLU の"
        f" {slow:.1f} 分の1の大きさしかない。{why.ja}",
    )


SMALL = Words(
    " The published advantage, about 0.04 nats a token in T5, is that of large models after long"
    " training; in a short run a slow start weighs more.",
    "公表された利得（T5 で1トークンあたり約 0.04 ナット）は大きなモデルの長い学習でのもので、"
    "短い学習では出だしの遅さの方が効く。",
)

EXPERIMENT = Experiment(
    name="feed-forward",
    title=Words("ReLU, GELU, SwiGLU", "ReLU・GELU・SwiGLU"),
    claim=Words(
        "With as many parameters, a gated feed-forward layer (SwiGLU) predicts better than one with"
        " ReLU or GELU.",
        "同じパラメータ数なら、ゲート付きの順伝播層（SwiGLU）は ReLU や GELU の層より予測が良い。",
    ),
    source="Shazeer 2020, table 1; Hendrycks & Gimpel 2016",
    equation=(
        "W₂ act(W₁ x), hidden 4d: 8d² weights;   SwiGLU: W₂ (silu(W_g x) ⊙ W₁ x), hidden 8d/3: 8d²"
        " weights"
    ),
    look_for=Words(
        "intervals that lie wholly to the left of zero: the first of the pair is better",
        "区間全体がゼロの左にあれば、組の前者の方が良い",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "SwiGLU is more than the product (W₁ x) ⊗ swish(W₂ x), which is as wide as the hidden"
            " layer: a third matrix brings it back to the width. With three matrices, the hidden"
            " layer must be a third narrower for a fair comparison.",
            "SwiGLU は積 (W₁ x) ⊗ swish(W₂ x) で終わりではない。積は隠れ層の幅のままで、"
            "三つ目の行列が元の幅に戻す。"
            "行列が三つになるので、公平に比べるには隠れ層を3分の2の幅にする。",
        ),
    ),
)
