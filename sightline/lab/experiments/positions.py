"""Positions: what attention can do without them, what each scheme adds, and what remains beyond the
training length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.position_laws import (
    HEADS,
    RELATIVE,
    SCHEMES,
    measure_distance,
    measure_order,
    measure_sinusoids,
    position_form,
)
from sightline.lab.statistics import Interval, lies_above, lies_below, paired_difference
from sightline.lab.style import COLOURS, MARKS, new_figure, plot_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer

LABELS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned, untrained rows beyond",
    "rope": "RoPE",
    "yarn": "RoPE + YaRN at test",
    "alibi": "ALiBi",
    "t5": "T5 bias",
}
TIMES = (1, 2, 4, 8)  # the trained length
CONTEXT = {"quick": 32, "default": 64, "full": 128}
LAYERS = {"quick": 1, "default": 2, "full": 4}
WIDTH = {"quick": 64, "default": 64, "full": 128}
STEPS = {"quick": 200, "default": 500, "full": 3000}
SEEDS = {"quick": 3, "default": 4, "full": 8}
RATE = {"quick": 4e-3, "default": 3e-3, "full": 1e-3}
BATCH = 16
WINDOWS = 32
BINS = 16
WIDTH_8_AT_1 = (0.841, 0.540, 0.100, 0.995, 0.010, 1.000, 0.001, 1.000)
EXACT = 1e-5  # of the largest number compared; angles are float32


def positions_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier: Tier = plan.tier
    seed = plan.seed
    seeds = range(seed, seed + SEEDS[tier])
    size = f"context-{CONTEXT[tier]}.layers-{LAYERS[tier]}.width-{WIDTH[tier]}.steps-{STEPS[tier]}"
    exact = [
        ExperimentPart("sinusoids", measure_sinusoids),
        *(
            ExperimentPart(
                f"order.{scheme}.seed-{seed}", lambda scheme=scheme: measure_order(scheme, seed)
            )
            for scheme in SCHEMES
        ),
        *(
            ExperimentPart(
                f"distance.{scheme}.seed-{seed}",
                lambda scheme=scheme: measure_distance(scheme, seed),
            )
            for scheme in SCHEMES[1:]
        ),
    ]
    trained = [
        ExperimentPart(
            f"length.{scheme}.{size}.seed-{n}",
            lambda scheme=scheme, n=n: train_and_test_longer(scheme, n, tier),
        )
        for n in seeds
        for scheme in SCHEMES
    ]
    return [*exact, *trained]


# ------------------------------------------------------------------------------------ longer texts


def position_scheme_config(
    scheme: str, tier: Tier, vocab_size: int, *, factor: int = 1
) -> ModelConfig:
    """A small GPT. With sinusoids, which have unit amplitude, embeddings are scaled by √width as in
    2017."""
    from sightline.architectures import gpt

    context = CONTEXT[tier]
    width = WIDTH[tier]
    positions = position_form(scheme, context, factor=factor)
    longest = TIMES[-1] * context
    config = gpt(
        width=width,
        layers=LAYERS[tier],
        heads=HEADS,
        vocab_size=vocab_size,
        max_positions=longest,
        positions=positions,
    )
    if scheme != "sinusoidal":
        return config
    assert config.decoder is not None
    embedding = replace(config.decoder.embedding, scale=math.sqrt(width))
    return replace(config, decoder=replace(config.decoder, embedding=embedding))


def train_and_test_longer(scheme: str, seed: int, tier: Tier) -> dict[str, Any]:
    """Train at one length; measure the loss on the same held-out characters in windows of 1, 2, 4
    and 8 times that length."""
    from sightline.core.model import build
    from sightline.lab.learning import shakespeare, train_model

    context = CONTEXT[tier]
    text, vocab_size = shakespeare(context, BATCH, seed)
    model = train_model(
        position_scheme_config(scheme, tier, vocab_size),
        text,
        steps=STEPS[tier],
        lr=RATE[tier],
        seed=seed,
    ).transformer.eval()
    assert text.held_out is not None
    rows = evenly_spread_windows(text.held_out.ids, TIMES[-1] * context)
    losses = {
        "context": context,
        scheme: losses_by_length(dict.fromkeys(TIMES, model), rows, context),
    }
    if scheme == "rope":
        stretched = {
            times: build(position_scheme_config(scheme, tier, vocab_size, factor=times)).eval()
            for times in TIMES
        }
        for longer in stretched.values():
            longer.load_state_dict(model.state_dict())
        losses["yarn"] = losses_by_length(stretched, rows, context)
    return losses


def evenly_spread_windows(ids: Any, long: int) -> Tensor:
    """Windows of `long` + 1 characters, evenly spread over the held-out plays."""
    import numpy as np
    import torch

    starts = [(len(ids) - long - 1) * n // WINDOWS for n in range(WINDOWS)]
    return torch.from_numpy(
        np.stack([np.asarray(ids[at : at + long + 1], dtype=np.int64) for at in starts])
    )


def losses_by_length(
    models: Mapping[int, Transformer], rows: Tensor, context: int
) -> dict[str, list[float]]:
    """Nats per character at each length, and binned by position in the longest windows."""
    import torch
    from torch.nn.functional import cross_entropy

    by_length: list[float] = []
    along = torch.zeros(0)
    for times, model in models.items():
        tokens, targets = (x.reshape(-1, times * context) for x in (rows[:, :-1], rows[:, 1:]))
        with torch.inference_mode():
            along = (
                cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")
                .double()
                .mean(0)
            )
        by_length.append(float(along.mean()))
    return {"by_length": by_length, "along": along.reshape(BINS, -1).mean(1).tolist()}


# ---------------------------------------------------------------------------------------- verdict


def exact_rows(numbers: Numbers, kind: str) -> dict[str, Mapping[str, Any]]:
    """Scheme → the numbers of the exact part of this kind."""
    return {name.split(".")[1]: row for name, row in numbers.items() if name.startswith(f"{kind}.")}


def losses_at(numbers: Numbers, scheme: str, times: int) -> list[float]:
    """Losses of all seeds at a multiple of the training length."""
    rows = [
        row[scheme] for name, row in numbers.items() if name.startswith("length.") and scheme in row
    ]
    return [row["by_length"][TIMES.index(times)] for row in rows]


def judge_positions(numbers: Numbers) -> Sequence[Check]:
    return [*exact_position_checks(numbers), *length_checks(numbers)]


def exact_position_checks(numbers: Numbers) -> list[Check]:
    moved = exact_rows(numbers, "order")
    distances = exact_rows(numbers, "distance")
    sines = numbers["sinusoids"]
    none = moved["none"]
    least = min(row["encoder"] for scheme, row in moved.items() if scheme != "none")
    relative = max(distances[scheme]["within"] for scheme in RELATIVE)
    absolute = min(distances[scheme]["within"] for scheme in ("sinusoidal", "learned"))
    return [
        Check(
            Words(
                "without positions, permuting the inputs permutes the outputs (to 1e-12)",
                "位置情報がなければ、入力を並べ替えると出力も同じように並べ替わる（1e-12まで）",
            ),
            none["encoder"] < 1e-12,
            f"difference {none['encoder']:.1e}",
        ),
        Check(
            Words(
                "they are equivariant, not invariant: the outputs do change places",
                "同変であって不変ではない。出力は入れ替わる",
            ),
            none["encoder unmoved"] > 0.01,
            f"f(xP) and f(x) differ by {none['encoder unmoved']:.2g} of the largest output",
        ),
        Check(
            Words(
                "every scheme breaks this symmetry (> 1e-6)", "どの方式もこの対称性を破る（> 1e-6）"
            ),
            least > 1e-6,
            f"smallest difference {least:.2g}",
        ),
        Check(
            Words(
                "PE(p + k) = M(k) PE(p) with one rotation M(k) for all positions (to 1e-6)",
                "PE(p + k) = M(k) PE(p)。回転 M(k) は位置に依らない（1e-6まで）",
            ),
            sines["off"] < 1e-6 and sines["bent"] < 1e-12,
            f"difference {sines['off']:.1e}; MᵀM − I {sines['bent']:.1e}",
        ),
        Check(
            Words(
                "scores under RoPE, ALiBi and T5 depend on the distance alone (to 1e-5)",
                "RoPE・ALiBi・T5 のスコアは距離だけで決まる（1e-5まで）",
            ),
            relative < EXACT,
            f"within one distance they differ by {relative:.1e} of their range",
        ),
        Check(
            Words(
                "with added positions they do not (> 1%)",
                "埋め込みに加算する位置では距離だけでは決まらない（> 1%）",
            ),
            absolute > 0.01,
            f"within one distance they differ by {absolute:.0%} of their range",
        ),
        Check(
            Words(
                "sinusoids of width 8 at position 1 are 0.841 0.540 0.100 0.995 0.010 1.000 0.001"
                " 1.000",
                "幅8・位置1の正弦波は 0.841 0.540 0.100 0.995 0.010 1.000 0.001 1.000",
            ),
            all(
                abs(ours - expected) <= 5e-4
                for ours, expected in zip(sines["first"], WIDTH_8_AT_1, strict=True)
            ),
            " ".join(f"{value:.3f}" for value in sines["first"]),
        ),
    ]


def length_checks(numbers: Numbers) -> list[Check]:
    alibi = losses_at(numbers, "alibi", 4)
    checks: list[Check] = []
    for scheme, name in (("learned", "学習した位置"), ("sinusoidal", "正弦波")):
        gap = paired_difference(alibi, losses_at(numbers, scheme, 4))
        statement = Words(
            f"at 4 times the trained length ALiBi's loss is lower than with {scheme} positions",
            f"学習時の4倍の長さで ALiBi の損失は{name}より低い",
        )
        checks.append(Check(statement, lies_below(gap, 0), f"ALiBi − {scheme}: {gap} nats"))
    alibi_increase = paired_difference(
        losses_at(numbers, "alibi", 8), losses_at(numbers, "alibi", 1)
    )
    learned_increase = paired_difference(
        losses_at(numbers, "learned", 8), losses_at(numbers, "learned", 1)
    )
    return [
        *checks,
        Check(
            Words(
                "at 8 times the length ALiBi's loss is less than 0.02 nats higher",
                "8倍の長さでも ALiBi の損失増は0.02ナット未満",
            ),
            lies_below(alibi_increase, 0.02),
            f"8 × − 1 ×: {alibi_increase} nats",
        ),
        Check(
            Words(
                "the loss of learned positions is higher: their rows beyond the length were"
                " never trained",
                "学習した位置は損失が増える（訓練されていない行）",
            ),
            lies_above(learned_increase, 0),
            f"8 × − 1 ×: {learned_increase} nats",
        ),
    ]


def summarize_positions(numbers: Numbers) -> Words:
    """The schemes ordered by their loss at 8 times the training length, with the increase."""
    means = {
        scheme: (
            Interval.of(losses_at(numbers, scheme, 1)).mean,
            Interval.of(losses_at(numbers, scheme, 8)).mean,
        )
        for scheme in LABELS
    }
    ranked = sorted(means, key=lambda scheme: means[scheme][1])
    list_en = ", ".join(
        f"{LABELS[scheme].split(',')[0]} {means[scheme][1]:.3f}"
        f" ({means[scheme][1] - means[scheme][0]:+.3f})"
        for scheme in ranked
    )
    gap = paired_difference(losses_at(numbers, "yarn", 8), losses_at(numbers, "rope", 8))
    causal = exact_rows(numbers, "order")["none"]["causal"]
    helps = lies_below(gap, 0)
    yarn_en = {True: "lowers", False: "does not lower", None: "does not clearly change"}[helps]
    yarn_ja = {True: "下げる", False: "下げない", None: "はっきりとは変えない"}[helps]
    return Words(
        "Nats per character at 8 times the training length, and the change from the training"
        " length:"
        f" {list_en}. YaRN, used at test without the fine-tuning that its authors use, {yarn_en}"
        f" RoPE's loss there ({gap}). Learned positions are undefined beyond their table; it was"
        " made 8 times as long, and the rows beyond the training length kept their initial values."
        f" Without any positions a causal mask still breaks the symmetry (by {causal:.2g}): a token"
        " can count the tokens it attends to.",
        f"学習時の8倍の長さでの1文字あたりのナットと、学習時の長さからの変化：{list_en}。"
        "著者らの行う追加学習なしに試験時だけ YaRN を使うと、"
        f"そこでの RoPE の損失を{yarn_ja}（{gap}）。"
        "学習した位置は表の範囲外では定義されないので、表を8倍にし、学習時の長さより先の行は初期値のまま残した。"
        "位置がまったくなくても因果マスクが対称性を破る"
        f"（{causal:.2g}）。トークンは自分から見えるトークンの数を数えられるからである。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_positions(numbers: Numbers) -> Mapping[str, Figure]:
    return {"positions": draw_lengths(numbers), "positions-scores": draw_scores(numbers)}


def draw_lengths(numbers: Numbers) -> Figure:
    figure, (by_length, change, along) = new_figure(3, width=4.2)
    rows = [row for name, row in numbers.items() if name.startswith("length.")]
    context = rows[0]["context"]
    lengths = [float(times * context) for times in TIMES]
    middles = [(n + 0.5) * TIMES[-1] * context / BINS for n in range(BINS)]
    best = mean_along(rows, "alibi")
    for number, (scheme, label) in enumerate(LABELS.items()):
        losses = [losses_at(numbers, scheme, times) for times in TIMES]
        means = [Interval.of(values).mean for values in losses]
        by_length.plot(
            lengths,
            means,
            color=COLOURS[number],
            marker=MARKS[number],
            markersize=4,
            linewidth=1.4,
            label=label,
        )
        plot_mean(
            change,
            lengths,
            [paired_difference(values, losses[0]) for values in losses],
            label=label,
            number=number,
        )
        gaps = [ours - theirs for ours, theirs in zip(mean_along(rows, scheme), best, strict=True)]
        along.plot(middles, gaps, color=COLOURS[number], linewidth=1.4, label=label)
    for axes in (by_length, change):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
        axes.set(xlabel="window, characters", ylabel="nats per character")
    along.axvline(context, color="0.6", linestyle=":", linewidth=1)
    along.set(
        xlabel="position in the longest window",
        ylabel="nats above ALiBi",
        title="By position (dotted: training length)",
    )
    by_length.set_title(f"Trained at {context}, tested to {TIMES[-1] * context}")
    change.set_title("Change from the training length")
    figure.legend(
        *along.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8
    )
    return figure


def mean_along(rows: Sequence[Mapping[str, Any]], scheme: str) -> list[float]:
    """The loss by position in the longest windows, averaged over seeds."""
    curves = [row[scheme]["along"] for row in rows if scheme in row]
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


def draw_scores(numbers: Numbers) -> Figure:
    rows = exact_rows(numbers, "distance")
    figure, panels = new_figure(len(rows), width=2.5, height=3.1)
    for axes, (scheme, row) in zip(panels, rows.items(), strict=True):
        axes.grid(visible=False)
        axes.imshow(row["scores"], cmap="cividis")
        axes.set(xlabel="key", title=LABELS[scheme].split(",")[0], xticks=(0, 31), yticks=(0, 31))
    panels[0].set_ylabel("query")
    figure.suptitle(
        "Scores of one repeated token: diagonal stripes where only the distance matters",
        fontsize=10,
    )
    return figure


EXPERIMENT = Experiment(
    name="positions",
    title=Words("Position encodings", "位置エンコーディング"),
    claim=Words(
        "Attention without positions is permutation-equivariant. RoPE, ALiBi and T5 make scores"
        " depend on the distance alone, and beyond the training length ALiBi keeps its loss while"
        " learned and sinusoidal positions degrade.",
        "位置情報のない注意機構は置換同変である。RoPE・ALiBi・T5 ではスコアが距離だけで決まり、"
        "学習した長さを超えると、"
        "学習した位置や正弦波の性能が落ちるところでも ALiBi は損失を保つ。",
    ),
    source=(
        "Vaswani et al. 2017, section 3.5; Su et al. 2021; Press et al. 2022; Raffel et al. 2020;"
        " Peng et al. 2023"
    ),
    equation=(
        "f(xP) = f(x)P;   PE(p + k) = M(k) PE(p);   ⟨R_m q, R_n k⟩ = ⟨q, R_(n−m) k⟩;   s_ij ="
        " q_i·k_j/√d − slope_h |i − j|"
    ),
    look_for=Words(
        "ALiBi's line stays flat up to 8 times the training length; added positions climb beyond"
        " it",
        "ALiBi の線は学習時の8倍まで平らなまま。加算する位置は学習時の長さを超えるとすぐに上がる",
    ),
    parts=positions_parts,
    judge=judge_positions,
    draw=draw_positions,
    summarize=summarize_positions,
    corrections=(
        Words(
            "Attention without positions is equivariant, not invariant: outputs permute with the"
            " inputs.",
            "位置情報のない注意機構は不変ではなく同変である。出力は入力とともに並べ替わる。",
        ),
        Words(
            "GPT-3 and BERT use learned absolute positions; sinusoids are those of the 2017"
            " Transformer.",
            "GPT-3 と BERT が使うのは学習した絶対位置である。正弦波は2017年の Transformer のもの。",
        ),
        Words(
            "Sinusoids of width 8 at position 1 are 0.841 0.540 0.100 0.995 0.010 1.000 0.001"
            " 1.000: each pair has a tenth of the frequency.",
            "幅8・位置1の正弦波は 0.841 0.540 0.100 0.995 0.010 1.000 0.001 1.000。"
            "対ごとに周波数は10分の1になる。",
        ),
    ),
)
