"""Direction and length: how much of a score is cos θ and how much |q| and |k|, in real models and
in models that use direction only.

    score = |q| |k| cos θ / √d_k                  dot
    score = s cos θ                               cosine: |k| = 1
    score = √d_k Σ s_i² q̂_i k̂_i                   nGPT: every vector on the unit sphere, s learned

Attention with a fixed kernel is a kernel smoother; it smooths the noisy loss of each training run
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.measures.kernel_smoother import measure_smoother, smooth_losses
from sightline.lab.statistics import Interval, all_hold, lies_below, paired_difference
from sightline.lab.style import COLOURS, new_figure, plot_mean

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


def geometry_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    steps = STEPS[tier]
    seeds = range(seed, seed + SEEDS[tier])
    real = [
        ExperimentPart(f"real.{model}", lambda model=model: measure_real_layers(model))
        for model in MODELS
    ]
    exact = [ExperimentPart(f"smoother.seed-{n}", lambda n=n: measure_smoother(n)) for n in seeds]
    return [*real, *exact] + [
        ExperimentPart(
            f"trained.{kind}.rate-{rate:g}.steps-{steps}.seed-{n}",
            lambda kind=kind, rate=rate, n=n: train_kind(kind, rate, steps, n),
        )
        for kind in KINDS
        for rate in RATES[tier]
        for n in seeds
    ]


# ------------------------------------------------------------------------------------ real models


def measure_real_layers(name: str) -> list[dict[str, float]]:
    """Lengths, angles and shares of each layer of a real model on one text, and the difference
    between |q| |k| cos θ and the score."""
    from sightline.lens.geometry.decompose import geometry_by_layer, geometry_of
    from sightline.loading import load

    trace = load(name, engine="torch").trace(TEXT)
    rows: list[dict[str, float]] = []
    for layer in geometry_by_layer(trace):
        head = geometry_of(trace, layer.site[1], 0)
        look = trace.look(layer.site[1])
        allowed = head.allowed
        scores = look.scores(0)[allowed]
        difference = float((head.scores()[allowed] - scores).abs().max() / scores.abs().max())
        rows.append(
            {
                "query": layer.query_length,
                "key": layer.key_length,
                "cosine": layer.cosine,
                "direction": layer.shares.direction,
                "length": layer.shares.length,
                "attention length": layer.shares.attention_length,
                "apart": difference,
            }
        )
    return rows


# -------------------------------------------------------------------------------- trained models


def model_of_kind(kind: str, vocabulary: int) -> ModelConfig:
    """The same size and positions; only the attention scores differ."""
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


def train_kind(kind: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """Train on the same batches without weight decay (nGPT without warm-up, as in its paper):
    held-out loss, smoothed learning curve, share of length."""
    from sightline.lab.learning import held_out_loss, shakespeare, training_steps
    from sightline.training.config import AdamW

    text, vocabulary = shakespeare(CONTEXT, ROWS, seed)
    warmup = 0 if kind == "ngpt" else steps // 20
    optimizer = AdamW(lr=rate, weight_decay=0.0)
    run = list(
        training_steps(
            model_of_kind(kind, vocabulary),
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
        "loss": held_out_loss(learner, text),
        "parameters": parameters,
        "losses": losses,
        **smooth_losses(losses),
        **shares,
    }


def length_shares(transformer: Transformer, tokens: Tensor) -> dict[str, float]:
    """The share of the score variance over keys that is due to length, averaged over layers, with
    raw and with centred keys."""
    import torch

    from sightline.lens.geometry.decompose import layer_geometry
    from sightline.lens.geometry.shares import nan_mean
    from sightline.lens.trace.layer import look_at, sites_of
    from sightline.record import Recorder

    record = Recorder({"query", "key", "mask", "bias"})
    with torch.no_grad():
        transformer.eval().hidden(tokens[None], record=record)
    layers = [layer_geometry(look_at(record, transformer, site)) for site in sites_of(transformer)]
    return {
        "length": nan_mean(layer.raw.length for layer in layers),
        "centred length": nan_mean(layer.centred.length for layer in layers),
    }


# ---------------------------------------------------------------------------------------- verdict


def runs_of_kind(numbers: Numbers, kind: str, rate: float) -> list[Mapping[str, Any]]:
    """All seeds of one kind and learning rate."""
    return [
        row for name, row in numbers.items() if name.startswith(f"trained.{kind}.rate-{rate:g}.")
    ]


def tried_rates(numbers: Numbers) -> list[float]:
    return sorted(
        {
            float(name.split(".rate-")[1].split(".steps-")[0])
            for name in numbers
            if name.startswith("trained.")
        }
    )


def best_runs_of_kind(numbers: Numbers, kind: str) -> list[Mapping[str, Any]]:
    """The runs at the learning rate with the lowest mean held-out loss for this kind."""
    return min(
        (runs_of_kind(numbers, kind, rate) for rate in tried_rates(numbers)),
        key=lambda rows: Interval.of([row["loss"] for row in rows]).mean,
    )


def best_rate_is_at_edge(numbers: Numbers, kind: str) -> bool:
    """Whether the best learning rate is the lowest or highest that was tried."""
    rates = tried_rates(numbers)
    return best_runs_of_kind(numbers, kind) in (
        runs_of_kind(numbers, kind, rates[0]),
        runs_of_kind(numbers, kind, rates[-1]),
    )


def steps_to_loss(row: Mapping[str, Any], target: float) -> float:
    """The first step whose smoothed loss is at most `target`; the number of steps if there is
    none."""
    return float(
        next(
            (step for step, loss in enumerate(row["course"], start=1) if loss <= target),
            len(row["course"]),
        )
    )


def steps_to_common_loss(numbers: Numbers) -> tuple[float, dict[str, list[float]]]:
    """The final loss of the slowest kind, and the steps that each kind needs to reach it."""
    runs = {kind: best_runs_of_kind(numbers, kind) for kind in KINDS}
    target = max(Interval.of([row["course"][-1] for row in rows]).mean for rows in runs.values())
    return target, {
        kind: [steps_to_loss(row, target) for row in rows] for kind, rows in runs.items()
    }


def judge_geometry(numbers: Numbers) -> Sequence[Check]:
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
    length = {kind: [row["length"] for row in best_runs_of_kind(numbers, kind)] for kind in KINDS}
    target, steps = steps_to_common_loss(numbers)
    fewer = paired_difference(steps["ngpt"], steps["dot"])
    worse = paired_difference(
        *([row["loss"] for row in best_runs_of_kind(numbers, kind)] for kind in ("cosine", "dot"))
    )
    return [
        Check(
            Words(
                "|q| |k| cos θ · scale equals the score, to 1 part in 10⁴",
                "|q| |k| cos θ · scale はスコアに等しい（1万分の1まで）",
            ),
            apart < 1e-4,
            f"difference {apart:.1e}",
        ),
        Check(
            Words(
                "in every layer of the real models, direction explains most of the score variance"
                " over keys (> 0.5)",
                "実モデルのどの層でも、キー間のスコアの分散は主に方向による（> 0.5）",
            ),
            min(least.values()) > 0.5,
            ", ".join(f"{name}: minimum {value:.2f}" for name, value in least.items()),
        ),
        Check(
            Words(
                "length explains nothing in cosine attention (< 10⁻⁶) and little in nGPT (< 0.1)",
                "コサイン注意では長さの寄与は0（< 10⁻⁶）、nGPT でもわずか（< 0.1）",
            ),
            all_hold(
                [
                    max(abs(value) for value in length["cosine"]) < 1e-6,
                    lies_below(Interval.of([abs(value) for value in length["ngpt"]]), 0.1),
                ]
            ),
            ", ".join(f"{NAMES[kind]} {Interval.of(length[kind])}" for kind in KINDS),
        ),
        Check(
            Words(
                "the loss of cosine attention is less than 0.05 nats above the dot product's"
                " (undecided if the dot product's best learning rate is at the end of the range)",
                "コサイン注意の学習は内積に劣らない：損失が0.05 nats"
                " 以上高くならない（内積の最良の学習率が範囲の端なら判定保留）",
            ),
            None if best_rate_is_at_edge(numbers, "dot") else lies_below(worse, 0.05),
            f"cosine − dot {worse} nats",
        ),
        Check(
            Words(
                "nGPT reaches the same loss in fewer steps than the dot product (undecided"
                " likewise)",
                "nGPT は同じ損失に内積より少ないステップで届く（同様の場合は判定保留）",
            ),
            None if best_rate_is_at_edge(numbers, "dot") else lies_below(fewer, 0),
            f"nGPT − dot {fewer} steps to {target:.3f} nats",
        ),
        Check(
            Words(
                "a kernel smoother equals attention with a fixed kernel, to 10⁻⁶",
                "カーネル平滑化はカーネルを固定した注意機構に等しい（10⁻⁶）",
            ),
            kernel < 1e-6,
            f"difference {kernel:.1e}",
        ),
        Check(
            Words(
                "and it recovers a curve from noise: less than half of the error of a constant"
                " mean",
                "ノイズから曲線を復元する：誤差は単純平均の半分未満",
            ),
            lies_below(fits, 0.5),
            f"error / error of the mean {fits}",
        ),
    ]


def summarize_geometry(numbers: Numbers) -> Words:
    loss = {
        kind: Interval.of([row["loss"] for row in best_runs_of_kind(numbers, kind)])
        for kind in KINDS
    }
    target, steps = steps_to_common_loss(numbers)
    mean = {kind: Interval.of(steps[kind]).mean for kind in KINDS}
    in_english = "; ".join(
        f"{NAMES[kind]} {loss[kind]} nats, {mean[kind]:.0f} steps to reach {target:.2f}"
        for kind in KINDS
    )
    in_japanese = "、".join(
        f"{JAPANESE[kind]} {loss[kind]} nats（{target:.2f} まで {mean[kind]:.0f} ステップ）"
        for kind in KINDS
    )
    gain = mean["dot"] / mean["ngpt"]
    length = Interval.of([row["length"] for row in best_runs_of_kind(numbers, "ngpt")]).mean
    edge = Words("", "")
    names = [(NAMES[kind], JAPANESE[kind]) for kind in KINDS if best_rate_is_at_edge(numbers, kind)]
    if names:
        english, japanese = (
            mark.join(pair[n] for pair in names) for n, mark in enumerate((", ", "・"))
        )
        edge = Words(f" (for {english} at the end of the range)", f"（{japanese}は範囲の端）")
    return Words(
        f"Each at the best of the learning rates tried{edge.en}: {in_english}. Counted in steps,"
        f" nGPT is {gain:.1f} times as fast as the dot product here; its paper reports 4 to 20"
        " times, with"
        " 0.5 to 1 billion parameters and until the end of long training. nGPT's learned s_qk has"
        f" unequal entries and attributes {length:.1%} of the variance of its scores to length.",
        f"試した中で各々最良の学習率で{edge.ja}：{in_japanese}。ステップ数で数えると nGPT は内積の"
        f" {gain:.1f} 倍速い。"
        "論文は5〜10億パラメータの長い学習で4〜20倍と報告している。nGPT の学習された s_qk"
        " は成分が等しくないので、"
        f"スコアの分散の {length:.1%} が長さに戻る。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_geometry_figures(numbers: Numbers) -> Mapping[str, Figure]:
    return {
        "geometry-real": draw_real_models(numbers),
        "geometry-trained": draw_trained_kinds(numbers),
        "geometry-smoother": draw_smoother(numbers),
    }


def draw_real_models(numbers: Numbers) -> Figure:
    """Per layer: the share of direction, the key length and the angle."""
    real = {
        name.removeprefix("real."): rows
        for name, rows in numbers.items()
        if name.startswith("real.")
    }
    figure, panels = new_figure(3, width=3.8)
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
        title="Share of direction in the scores", ylabel="share (keys centred)", ylim=(0, 1.1)
    )
    panels[1].set(title="Length of the keys", ylabel="mean |k|", ylim=(0, None))
    panels[2].set(title="Angle between queries and keys", ylabel="mean cos θ", ylim=(-1, 1))
    for axes in panels:
        axes.set_xlabel("depth (first layer 0, last 1)")
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def draw_trained_kinds(numbers: Numbers) -> Figure:
    """The learning curve, the loss against the learning rate, and the share of length."""
    figure, (course, rates, shares) = new_figure(3, width=3.8)
    for number, kind in enumerate(KINDS):
        rows = best_runs_of_kind(numbers, kind)
        steps = [float(n) for n in range(1, len(rows[0]["course"]) + 1)]
        course.plot(
            steps,
            [Interval.of([row["course"][n] for row in rows]).mean for n in range(len(steps))],
            color=COLOURS[number],
            label=NAMES[kind],
        )
        losses = [
            Interval.of([row["loss"] for row in runs_of_kind(numbers, kind, rate)])
            for rate in tried_rates(numbers)
        ]
        plot_mean(rates, tried_rates(numbers), losses, label=NAMES[kind], number=number)
        for place, pick in enumerate(("length", "centred length")):
            shares.scatter(
                [place + 0.2 * (number - 1)] * len(rows),
                [row[pick] for row in rows],
                color=COLOURS[number],
                s=24,
            )
    course.axhline(steps_to_common_loss(numbers)[0], color="0.5", linestyle=":", linewidth=1)
    course.set(
        xlabel="step",
        ylabel="loss, nats (smoothed)",
        title="Each at its best learning rate",
        xscale="log",
    )
    rates.set(
        xscale="log", xlabel="learning rate", ylabel="held-out loss, nats", title="By learning rate"
    )
    shares.set(
        title="Share of length in the scores", ylabel="share", xticks=[0, 1], xlim=(-0.5, 1.5)
    )
    shares.set_xticklabels(["raw keys", "centred keys"])
    shares.axhline(0, color="0.5", linewidth=0.8)
    course.legend(frameon=False)
    return figure


def draw_smoother(numbers: Numbers) -> Figure:
    """Attention with a fixed kernel on noisy points and on the losses of a training run."""
    figure, (curve, losses) = new_figure(2, width=4.8)
    row = next(row for name, row in numbers.items() if name.startswith("smoother."))
    curve.scatter(row["places"], row["values"], s=12, color="0.6", label="data")
    curve.plot(row["x"], row["truth"], color="0", linestyle=":", label="without noise")
    curve.plot(row["x"], row["found"], color=COLOURS[0], label=f"attention, h = {row['width']:g}")
    curve.set(xlabel="x", ylabel="y", title="A kernel smoother is attention")
    run = best_runs_of_kind(numbers, "dot")[0]
    losses.plot(
        range(1, len(run["losses"]) + 1),
        run["losses"],
        color="0.75",
        linewidth=1,
        label="per batch",
    )
    losses.plot(
        range(1, len(run["course"]) + 1),
        run["course"],
        color=COLOURS[0],
        label="attention over the steps",
    )
    losses.set(xlabel="step", ylabel="loss, nats", title="The same on training losses")
    for axes in (curve, losses):
        axes.legend(frameon=False, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="geometry",
    title=Words("Direction and length", "方向と長さ"),
    claim=Words(
        "A score is |q| |k| cos θ, and mostly the angle decides which keys get the weight;"
        " attention by"
        " angle alone learns as well, nGPT faster.",
        "スコアは |q| |k| cos θ であり、どのキーに重みが行くかは主に角度で決まる。"
        "角度だけの注意機構でも同じように学べ、"
        "nGPT はより速く学ぶ。",
    ),
    source="Loshchilov et al. 2024 (nGPT); Nadaraya 1964; Watson 1964; Tsai et al. 2019",
    equation=(
        "q·k = |q| |k| cos θ;   softmax(x x_i / h² − x_i² / 2h²) = K_h(x − x_i) / Σ_j K_h(x − x_j)"
    ),
    look_for=Words(
        "the share of direction near 1 in every layer; cosine's points on the zero line; which"
        " curve"
        " falls first",
        "どの層でも1に近い方向の寄与。ゼロの線上にあるコサインの点。どの曲線が最初に下がるか",
    ),
    parts=geometry_parts,
    judge=judge_geometry,
    draw=draw_geometry_figures,
    summarize=summarize_geometry,
    corrections=(
        Words(
            "q·k is not a cosine: it becomes one only when q and k are both divided by their"
            " lengths.",
            "q·k はコサインではない。q と k をともに長さで割ったときだけコサインになる。",
        ),
    ),
)
