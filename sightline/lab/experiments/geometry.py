"""Direction and length: what of a score is cos θ and what is |q| and |k|, on real models, and in
models made of direction alone.

    score = |q| |k| cos θ / √d_k                  dot
    score = s cos θ                               cosine: |k| = 1
    score = √d_k Σ s_i² q̂_i k̂_i                   nGPT: every vector on the unit sphere, s learned

Attention with a kernel that is not learned is a kernel smoother, and the noisy loss of each
training run is smoothed by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.measures.kernel_smoother import smoothed, smoother
from sightline.lab.statistics import Interval, below, differences
from sightline.lab.style import COLOURS, figure, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer

TEXT = (
    "The animal didn't cross the street because it was too tired. Every summer the children of the"
    " village walked along the river to the old mill, where the miller, who had known their fathers"
    " as boys, gave them bread and told them stories about the war. Nobody knew how many of them"
    " were true."
)
MODELS = ("minilm", "smollm2-135m-instruct")
KINDS = ("dot", "cosine", "ngpt")
NAMES = {"dot": "dot product", "cosine": "cosine", "ngpt": "nGPT"}
JAPANESE = {"dot": "内積", "cosine": "コサイン", "ngpt": "nGPT"}
RATES = {
    "quick": (3e-3, 1e-2, 3e-2),
    "default": (1e-3, 3e-3, 1e-2, 3e-2),
    "full": (1e-3, 3e-3, 1e-2, 3e-2),
}
STEPS = {"quick": 60, "default": 400, "full": 3000}
SEEDS = {"quick": 3, "default": 3, "full": 6}
WIDTH = 64
LAYERS = 2
HEADS = 2
CONTEXT = 64
ROWS = 8


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    steps = STEPS[tier]
    seeds = range(seed, seed + SEEDS[tier])
    real = [Part(f"real.{model}", lambda model=model: layers_of(model)) for model in MODELS]
    exact = [Part(f"smoother.seed-{n}", lambda n=n: smoother(n)) for n in seeds]
    return [*real, *exact] + [
        Part(
            f"trained.{kind}.rate-{rate:g}.steps-{steps}.seed-{n}",
            lambda kind=kind, rate=rate, n=n: trained(kind, rate, steps, n),
        )
        for kind in KINDS
        for rate in RATES[tier]
        for n in seeds
    ]


# ------------------------------------------------------------------------------------ real models


def layers_of(name: str) -> list[dict[str, float]]:
    """Each layer of a real model on one text: lengths, angles, shares; and how far |q| |k| cos θ is
    from the score itself."""
    from sightline.lens.geometry.decompose import geometry_of, summary
    from sightline.model import load

    trace = load(name, engine="torch").trace(TEXT)
    found: list[dict[str, float]] = []
    for layer in summary(trace):
        head = geometry_of(trace, layer.site[1], 0)
        look = trace.look(layer.site[1])
        seen = head.allowed
        scores = look.scores(0)[seen]
        apart = float((head.scores()[seen] - scores).abs().max() / scores.abs().max())
        found.append(
            {
                "query": layer.query_length,
                "key": layer.key_length,
                "cosine": layer.cosine,
                "direction": layer.shares.direction,
                "length": layer.shares.length,
                "attention length": layer.shares.attention_length,
                "apart": apart,
            }
        )
    return found


# ---------------------------------------------------------------------------------- trained alike


def model(kind: str, vocabulary: int) -> ModelConfig:
    """The same size and positions; only the vectors differ."""
    from sightline.architectures import llama, ngpt

    if kind == "ngpt":
        return ngpt(
            width=WIDTH, layers=LAYERS, heads=HEADS, vocab_size=vocabulary, max_positions=CONTEXT
        )
    return llama(
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        vocab_size=vocabulary,
        max_positions=CONTEXT,
        attention=kind,
        tied=False,
    )


def trained(kind: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """The same batches, no weight decay; nGPT without warm-up, as its paper says. Held-out loss,
    the smoothed course, length's share."""
    from sightline.lab.learning import learn, loss_of, plays
    from sightline.training.config import AdamW

    text, vocabulary = plays(CONTEXT, ROWS, seed)
    warmup = 0 if kind == "ngpt" else steps // 20
    optimizer = AdamW(lr=rate, weight_decay=0.0)
    run = list(
        learn(
            model(kind, vocabulary),
            text,
            steps=steps,
            warmup=warmup,
            optimizer=optimizer,
            seed=seed,
        )
    )
    learner = run[-1][0]
    losses = [event.loss for _, event in run]
    parameters = sum(p.numel() for p in learner.transformer.parameters())
    shares = length_shares(learner.transformer, next(iter(text.validation())).tokens[0])
    return {
        "loss": loss_of(learner, text),
        "parameters": parameters,
        "losses": losses,
        **smoothed(losses),
        **shares,
    }


def length_shares(transformer: Transformer, tokens: Tensor) -> dict[str, float]:
    """Length's share of what tells keys apart, the mean over layers, with keys as they are and
    centred."""
    import torch

    from sightline.lens.geometry.decompose import layer_geometry
    from sightline.lens.geometry.shares import mean
    from sightline.lens.trace.layer import look_at, sites_of
    from sightline.record import Recorder

    record = Recorder({"query", "key", "mask", "bias"})
    with torch.no_grad():
        transformer.eval().hidden(tokens[None], record=record)
    layers = [layer_geometry(look_at(record, transformer, site)) for site in sites_of(transformer)]
    return {
        "length": mean(layer.raw.length for layer in layers),
        "centred length": mean(layer.centred.length for layer in layers),
    }


# ------------------------------------------------------------------------------------ the verdict


def of(numbers: Numbers, kind: str, rate: float) -> list[Mapping[str, Any]]:
    """All seeds of one kind and learning rate."""
    return [
        row for name, row in numbers.items() if name.startswith(f"trained.{kind}.rate-{rate:g}.")
    ]


def rates_in(numbers: Numbers) -> list[float]:
    return sorted(
        {
            float(name.split(".rate-")[1].split(".steps-")[0])
            for name in numbers
            if name.startswith("trained.")
        }
    )


def best(numbers: Numbers, kind: str) -> list[Mapping[str, Any]]:
    """The runs at the rate that is best for this kind, by the mean held-out loss."""
    return min(
        (of(numbers, kind, rate) for rate in rates_in(numbers)),
        key=lambda rows: Interval.of([row["loss"] for row in rows]).mean,
    )


def at_edge(numbers: Numbers, kind: str) -> bool:
    """Whether the best rate is the lowest or the highest that was tried, so that a better one may
    lie beyond."""
    rates = rates_in(numbers)
    return best(numbers, kind) in (of(numbers, kind, rates[0]), of(numbers, kind, rates[-1]))


def steps_to(row: Mapping[str, Any], target: float) -> float:
    """The first step whose smoothed loss is no higher; the number of all steps where none is."""
    return float(
        next(
            (step for step, loss in enumerate(row["course"], start=1) if loss <= target),
            len(row["course"]),
        )
    )


def race(numbers: Numbers) -> tuple[float, dict[str, list[float]]]:
    """The loss that the slowest kind ends with, and how many steps each takes to it."""
    runs = {kind: best(numbers, kind) for kind in KINDS}
    target = max(Interval.of([row["course"][-1] for row in rows]).mean for rows in runs.values())
    return target, {kind: [steps_to(row, target) for row in rows] for kind, rows in runs.items()}


def judge(numbers: Numbers) -> Sequence[Check]:
    real = {
        name.removeprefix("real."): rows
        for name, rows in numbers.items()
        if name.startswith("real.")
    }
    least = {name: min(row["direction"] for row in rows) for name, rows in real.items()}
    apart = max(row["apart"] for rows in real.values() for row in rows)
    kernel = max(
        row["apart"] for name, row in numbers.items() if name.startswith(("smoother.", "trained."))
    )
    fits = Interval.of(
        [
            row["error"] / row["flat"]
            for name, row in numbers.items()
            if name.startswith("smoother.")
        ]
    )
    length = {kind: [row["length"] for row in best(numbers, kind)] for kind in KINDS}
    target, steps = race(numbers)
    fewer = differences(steps["ngpt"], steps["dot"])
    worse = differences(
        *([row["loss"] for row in best(numbers, kind)] for kind in ("cosine", "dot"))
    )
    return [
        Check(
            Words(
                "|q| |k| cos θ · scale is the score, to a part in 10⁴",
                "|q| |k| cos θ · scale はスコアに等しい（1万分の1まで）",
            ),
            apart < 1e-4,
            f"apart by {apart:.1e}",
        ),
        Check(
            Words(
                "in every layer of the real models, most of what tells keys apart is direction (>"
                " 0.5)",
                "実モデルのどの層でも、鍵を区別するのは主に方向（> 0.5）",
            ),
            min(least.values()) > 0.5,
            ", ".join(f"{name}: least {value:.2f}" for name, value in least.items()),
        ),
        Check(
            Words(
                "cosine attention leaves nothing to length (< 10⁻⁶), nGPT little (< 0.1)",
                "コサイン注意では長さの寄与は0（< 10⁻⁶）、nGPT でもわずか（< 0.1）",
            ),
            both(
                max(abs(value) for value in length["cosine"]) < 1e-6,
                below(Interval.of([abs(value) for value in length["ngpt"]]), 0.1),
            ),
            ", ".join(f"{NAMES[kind]} {Interval.of(length[kind])}" for kind in KINDS),
        ),
        Check(
            Words(
                "cosine attention's loss is not higher than the dot product's by 0.05 nats (open if"
                " the dot's best rate ends the range)",
                "コサイン注意の学習は内積に劣らない：損失が0.05 nats"
                " 以上高くならない（内積の最良の学習率が範囲の端なら未決）",
            ),
            None if at_edge(numbers, "dot") else below(worse, 0.05),
            f"cosine − dot {worse} nats",
        ),
        Check(
            Words(
                "nGPT needs fewer steps than the dot product to the same loss (open likewise)",
                "nGPT は同じ損失に内積より少ないステップで届く（同様の場合は未決）",
            ),
            None if at_edge(numbers, "dot") else below(fewer, 0),
            f"nGPT − dot {fewer} steps to {target:.3f} nats",
        ),
        Check(
            Words(
                "a kernel smoother is attention with a fixed kernel, to 10⁻⁶",
                "カーネル平滑化は核を固定した注意に等しい（10⁻⁶）",
            ),
            kernel < 1e-6,
            f"apart by {kernel:.1e}",
        ),
        Check(
            Words(
                "and it finds a curve under noise: less than half of the error of a flat mean",
                "雑音の下の曲線を見つける：誤差は単純平均の半分未満",
            ),
            below(fits, 0.5),
            f"error / flat {fits}",
        ),
    ]


def both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def told(numbers: Numbers) -> Words:
    loss = {kind: Interval.of([row["loss"] for row in best(numbers, kind)]) for kind in KINDS}
    target, steps = race(numbers)
    mean = {kind: Interval.of(steps[kind]).mean for kind in KINDS}
    said = "; ".join(
        f"{NAMES[kind]} {loss[kind]} nats, {mean[kind]:.0f} steps to {target:.2f}" for kind in KINDS
    )
    in_japanese = "、".join(
        f"{JAPANESE[kind]} {loss[kind]} nats（{target:.2f} まで {mean[kind]:.0f} ステップ）"
        for kind in KINDS
    )
    gain = mean["dot"] / mean["ngpt"]
    length = Interval.of([row["length"] for row in best(numbers, "ngpt")]).mean
    edge = Words("", "")
    names = [(NAMES[kind], JAPANESE[kind]) for kind in KINDS if at_edge(numbers, kind)]
    if names:
        english, japanese = (
            mark.join(pair[n] for pair in names) for n, mark in enumerate((", ", "・"))
        )
        edge = Words(f" (for {english} at the end of the range)", f"（{japanese}は範囲の端）")
    return Words(
        f"Each at the best of the learning rates tried{edge.en}: {said}. Counted in steps, nGPT is"
        f" {gain:.1f} times as fast as the dot product here; its paper reports 4 to 20 times, with"
        " 0.5 to 1 billion parameters and until the end of long training. nGPT's learned s_qk has"
        f" unequal entries and gives length {length:.1%} of the variance of its scores back.",
        f"試した中で各々最良の学習率で{edge.ja}：{in_japanese}。ステップ数で数えると nGPT は内積の"
        f" {gain:.1f} 倍速い。"
        "論文は5〜10億パラメータの長い学習で4〜20倍と報告している。nGPT の学習された s_qk"
        " は成分が等しくないので、"
        f"スコアの分散の {length:.1%} が長さに戻る。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    return {
        "geometry-real": draw_real(numbers),
        "geometry-trained": draw_trained(numbers),
        "geometry-smoother": draw_smoother(numbers),
    }


def draw_real(numbers: Numbers) -> Figure:
    """By layer: what is direction, and how long q and k are."""
    real = {
        name.removeprefix("real."): rows
        for name, rows in numbers.items()
        if name.startswith("real.")
    }
    made, panels = figure(3, width=3.8)
    for number, (name, rows) in enumerate(real.items()):
        depth = [n / max(1, len(rows) - 1) for n in range(len(rows))]
        for axes, pick in zip(panels, ("direction", "key", "cosine"), strict=True):
            axes.plot(
                depth,
                [row[pick] for row in rows],
                color=COLOURS[number],
                marker="o",
                markersize=3,
                linewidth=1.4,
                label=name,
            )
    panels[0].axhline(0.5, color="0.5", linestyle=":")
    panels[0].set(
        title="Direction's share of the scores", ylabel="share (keys centred)", ylim=(0, 1.1)
    )
    panels[1].set(title="Length of the keys", ylabel="mean |k|", ylim=(0, None))
    panels[2].set(title="Angle between queries and keys", ylabel="mean cos θ", ylim=(-1, 1))
    for axes in panels:
        axes.set_xlabel("depth (first layer 0, last 1)")
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    return made


def draw_trained(numbers: Numbers) -> Figure:
    """The course of the loss, the loss against the learning rate, and length's share."""
    made, (course, rates, shares) = figure(3, width=3.8)
    for number, kind in enumerate(KINDS):
        rows = best(numbers, kind)
        steps = [float(n) for n in range(1, len(rows[0]["course"]) + 1)]
        course.plot(
            steps,
            [Interval.of([row["course"][n] for row in rows]).mean for n in range(len(steps))],
            color=COLOURS[number],
            label=NAMES[kind],
        )
        found = [
            Interval.of([row["loss"] for row in of(numbers, kind, rate)])
            for rate in rates_in(numbers)
        ]
        line(rates, rates_in(numbers), found, label=NAMES[kind], number=number)
        for place, pick in enumerate(("length", "centred length")):
            shares.scatter(
                [place + 0.2 * (number - 1)] * len(rows),
                [row[pick] for row in rows],
                color=COLOURS[number],
                s=24,
            )
    course.axhline(race(numbers)[0], color="0.5", linestyle=":", linewidth=1)
    course.set(
        xlabel="step",
        ylabel="loss, nats (smoothed)",
        title="Each at the best rate tried",
        xscale="log",
    )
    rates.set(
        xscale="log", xlabel="learning rate", ylabel="held-out loss, nats", title="By learning rate"
    )
    shares.set(
        title="Length's share of the scores", ylabel="share", xticks=[0, 1], xlim=(-0.5, 1.5)
    )
    shares.set_xticklabels(["keys as they are", "keys centred"])
    shares.axhline(0, color="0.5", linewidth=0.8)
    course.legend(frameon=False)
    return made


def draw_smoother(numbers: Numbers) -> Figure:
    """Attention with a fixed kernel on noisy points, and on a training run's losses."""
    made, (curve, losses) = figure(2, width=4.8)
    row = next(row for name, row in numbers.items() if name.startswith("smoother."))
    curve.scatter(row["places"], row["values"], s=12, color="0.6", label="data")
    curve.plot(row["x"], row["truth"], color="0", linestyle=":", label="without noise")
    curve.plot(row["x"], row["found"], color=COLOURS[0], label=f"attention, h = {row['width']:g}")
    curve.set(xlabel="x", ylabel="y", title="A kernel smoother is attention")
    run = best(numbers, "dot")[0]
    losses.plot(
        range(1, len(run["losses"]) + 1),
        run["losses"],
        color="0.75",
        linewidth=1,
        label="each batch",
    )
    losses.plot(
        range(1, len(run["course"]) + 1),
        run["course"],
        color=COLOURS[0],
        label="attention over the steps",
    )
    losses.set(xlabel="step", ylabel="loss, nats", title="The same on a training run")
    for axes in (curve, losses):
        axes.legend(frameon=False, fontsize=8)
    return made


EXPERIMENT = Experiment(
    name="geometry",
    title=Words("Direction and length", "方向と長さ"),
    claim=Words(
        "A score is |q| |k| cos θ, and it is mostly the angle that chooses; attention by angle"
        " alone learns as well, nGPT faster.",
        "スコアは |q| |k| cos θ であり、選ぶのは主に角度である。角度だけの注意でも同じように学べ、"
        "nGPT はより速く学ぶ。",
    ),
    source="Loshchilov et al. 2024 (nGPT); Nadaraya 1964; Watson 1964; Tsai et al. 2019",
    equation=(
        "q·k = |q| |k| cos θ;   softmax(x x_i / h² − x_i² / 2h²) = K_h(x − x_i) / Σ_j K_h(x − x_j)"
    ),
    look_for=Words(
        "direction's share near 1 in every layer; the cosine's points on the zero line; which curve"
        " falls first",
        "どの層でも1に近い方向の寄与。ゼロの線上にあるコサインの点。最初に下がる曲線",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "q·k is not a cosine: it becomes one only when q and k are both divided by their"
            " lengths.",
            "q·k はコサインではない。q と k をともに長さで割ったときだけコサインになる。",
        ),
    ),
)
