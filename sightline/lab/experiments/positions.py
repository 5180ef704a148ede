"""Where a word stands: what attention knows without positions, what each scheme tells it, and what
is left beyond the trained length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.measures.position_laws import (
    HEADS,
    RELATIVE,
    SCHEMES,
    distance,
    form,
    order,
    sinusoids,
)
from sightline.lab.statistics import Interval, above, below, differences
from sightline.lab.style import COLOURS, MARKS, figure, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer

LABELS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned, rows beyond untrained",
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


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    seeds = range(seed, seed + SEEDS[tier])
    size = f"context-{CONTEXT[tier]}.layers-{LAYERS[tier]}.width-{WIDTH[tier]}.steps-{STEPS[tier]}"
    exact = [
        Part("sinusoids", sinusoids),
        *(
            Part(f"order.{scheme}.seed-{seed}", lambda scheme=scheme: order(scheme, seed))
            for scheme in SCHEMES
        ),
        *(
            Part(f"distance.{scheme}.seed-{seed}", lambda scheme=scheme: distance(scheme, seed))
            for scheme in SCHEMES[1:]
        ),
    ]
    trained = [
        Part(f"length.{scheme}.{size}.seed-{n}", lambda scheme=scheme, n=n: longer(scheme, n, tier))
        for n in seeds
        for scheme in SCHEMES
    ]
    return [*exact, *trained]


# ----------------------------------------------------------------------------------- longer texts


def config_of(scheme: str, tier: Tier, vocab_size: int, *, factor: int = 1) -> ModelConfig:
    """A small GPT. Sines have size 1, so their embeddings are multiplied by √width, as in 2017."""
    from sightline.architectures import gpt

    context = CONTEXT[tier]
    width = WIDTH[tier]
    positions = form(scheme, context, factor=factor)
    longest = TIMES[-1] * context
    found = gpt(
        width=width,
        layers=LAYERS[tier],
        heads=HEADS,
        vocab_size=vocab_size,
        max_positions=longest,
        positions=positions,
    )
    if scheme != "sinusoidal":
        return found
    assert found.decoder is not None
    embedding = replace(found.decoder.embedding, scale=math.sqrt(width))
    return replace(found, decoder=replace(found.decoder, embedding=embedding))


def longer(scheme: str, seed: int, tier: Tier) -> dict[str, Any]:
    """Trained at one length; the loss on the same held-out characters in windows of 1, 2, 4 and 8
    times that length."""
    from sightline.core.model import build
    from sightline.lab.learning import learned, plays

    context = CONTEXT[tier]
    text, vocab_size = plays(context, BATCH, seed)
    model = learned(
        config_of(scheme, tier, vocab_size), text, steps=STEPS[tier], lr=RATE[tier], seed=seed
    ).transformer.eval()
    assert text.held_out is not None
    rows = spread(text.held_out.ids, TIMES[-1] * context)
    found = {"context": context, scheme: losses(dict.fromkeys(TIMES, model), rows, context)}
    if scheme == "rope":
        stretched = {
            times: build(config_of(scheme, tier, vocab_size, factor=times)).eval()
            for times in TIMES
        }
        for one in stretched.values():
            one.load_state_dict(model.state_dict())
        found["yarn"] = losses(stretched, rows, context)
    return found


def spread(ids: Any, long: int) -> Tensor:
    """Windows of so many characters and one more, evenly spread over the held-out plays."""
    import numpy as np
    import torch

    starts = [(len(ids) - long - 1) * n // WINDOWS for n in range(WINDOWS)]
    return torch.from_numpy(
        np.stack([np.asarray(ids[at : at + long + 1], dtype=np.int64) for at in starts])
    )


def losses(models: Mapping[int, Transformer], rows: Tensor, context: int) -> dict[str, list[float]]:
    """Nats a character at each length, and along the longest windows, in bins."""
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


def exact_of(numbers: Numbers, kind: str) -> dict[str, Mapping[str, Any]]:
    """Scheme → what an exact part of this kind measured."""
    return {name.split(".")[1]: row for name, row in numbers.items() if name.startswith(f"{kind}.")}


def at(numbers: Numbers, scheme: str, times: int) -> list[float]:
    """Losses of all seeds at so many times the trained length."""
    rows = [
        row[scheme] for name, row in numbers.items() if name.startswith("length.") and scheme in row
    ]
    return [row["by_length"][TIMES.index(times)] for row in rows]


def judge(numbers: Numbers) -> Sequence[Check]:
    return [*exact_checks(numbers), *length_checks(numbers)]


def exact_checks(numbers: Numbers) -> list[Check]:
    moved = exact_of(numbers, "order")
    apart = exact_of(numbers, "distance")
    sines = numbers["sinusoids"]
    none = moved["none"]
    least = min(row["encoder"] for scheme, row in moved.items() if scheme != "none")
    relative = max(apart[scheme]["within"] for scheme in RELATIVE)
    absolute = min(apart[scheme]["within"] for scheme in ("sinusoidal", "learned"))
    return [
        Check(
            Words(
                "without positions, shuffled inputs give equally shuffled outputs (to 1e-12)",
                "位置がなければ、入力を並べ替えると出力も同じく並ぶ（1e-12まで）",
            ),
            none["encoder"] < 1e-12,
            f"off by {none['encoder']:.1e}",
        ),
        Check(
            Words(
                "they are equivariant and not invariant: the outputs do move",
                "同変であって不変ではない。出力は動く",
            ),
            none["encoder unmoved"] > 0.01,
            f"f(xP) and f(x) differ by {none['encoder unmoved']:.2g} of the largest output",
        ),
        Check(
            Words("every scheme breaks that (by > 1e-6)", "どの方式もこの対称性を破る（> 1e-6）"),
            least > 1e-6,
            f"the least by {least:.2g}",
        ),
        Check(
            Words(
                "PE(p + k) = M(k) PE(p) with one rotation M(k) for all positions (to 1e-6)",
                "PE(p + k) = M(k) PE(p)。回転 M(k) は位置に依らない（1e-6まで）",
            ),
            sines["off"] < 1e-6 and sines["bent"] < 1e-12,
            f"off by {sines['off']:.1e}, MᵀM by {sines['bent']:.1e}",
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
                "under added positions they do not (> 1%)",
                "足し込む位置では距離だけでは決まらない（> 1%）",
            ),
            absolute > 0.01,
            f"by {absolute:.0%} of their range",
        ),
        Check(
            Words(
                "sinusoids of width 8 at position 1 are 0.841 0.540 0.100 0.995 0.010 1.000 0.001"
                " 1.000",
                "幅8・位置1の正弦波は 0.841 0.540 0.100 0.995 0.010 1.000 0.001 1.000",
            ),
            all(
                abs(ours - known) <= 5e-4
                for ours, known in zip(sines["first"], WIDTH_8_AT_1, strict=True)
            ),
            " ".join(f"{value:.3f}" for value in sines["first"]),
        ),
    ]


def length_checks(numbers: Numbers) -> list[Check]:
    alibi = at(numbers, "alibi", 4)
    checks: list[Check] = []
    for scheme, name in (("learned", "学習した位置"), ("sinusoidal", "正弦波")):
        gap = differences(alibi, at(numbers, scheme, 4))
        says = Words(
            f"at 4 times the trained length ALiBi's loss is lower than with {scheme} positions",
            f"学習時の4倍の長さで ALiBi の損失は{name}より低い",
        )
        checks.append(Check(says, below(gap, 0), f"ALiBi − {scheme}: {gap} nats"))
    kept = differences(at(numbers, "alibi", 8), at(numbers, "alibi", 1))
    lost = differences(at(numbers, "learned", 8), at(numbers, "learned", 1))
    return [
        *checks,
        Check(
            Words(
                "at 8 times the length ALiBi has lost less than 0.02 nats",
                "8倍の長さでも ALiBi の損失増は0.02ナット未満",
            ),
            below(kept, 0.02),
            f"8 × − 1 ×: {kept} nats",
        ),
        Check(
            Words(
                "learned positions have lost: rows that were never trained",
                "学習した位置は損失が増える（訓練されていない行）",
            ),
            above(lost, 0),
            f"8 × − 1 ×: {lost} nats",
        ),
    ]


def told(numbers: Numbers) -> Words:
    """The schemes in the order of their loss at 8 times the trained length, and what it grew by."""
    means = {
        scheme: (Interval.of(at(numbers, scheme, 1)).mean, Interval.of(at(numbers, scheme, 8)).mean)
        for scheme in LABELS
    }
    ranked = sorted(means, key=lambda scheme: means[scheme][1])
    list_en = ", ".join(
        f"{LABELS[scheme].split(',')[0]} {means[scheme][1]:.3f}"
        f" ({means[scheme][1] - means[scheme][0]:+.3f})"
        for scheme in ranked
    )
    gap = differences(at(numbers, "yarn", 8), at(numbers, "rope", 8))
    causal = exact_of(numbers, "order")["none"]["causal"]
    helps = below(gap, 0)
    yarn_en = {True: "lowers", False: "does not lower", None: "does not clearly change"}[helps]
    yarn_ja = {True: "下げる", False: "下げない", None: "はっきりとは変えない"}[helps]
    return Words(
        "Nats a character at 8 times the trained length, and the change from the trained one:"
        f" {list_en}. YaRN, used at test without the fine-tuning that its authors use, {yarn_en}"
        f" RoPE's loss there ({gap}). Learned positions cannot be asked beyond their table; it was"
        " made 8 times as long, and the rows beyond the trained length stayed as they were drawn."
        f" Without any positions a causal mask still breaks the symmetry (by {causal:.2g}): a word"
        " can count what it sees.",
        f"学習時の8倍の長さでの1文字あたりのナットと、学習時の長さからの変化：{list_en}。"
        "著者らの行う追加学習なしに試験時だけ YaRN を使うと、"
        f"そこでの RoPE の損失を{yarn_ja}（{gap}）。"
        "学習した位置は表の先を尋ねられないので、表を8倍にし、学習時の長さより先の行は初期値のまま残した。"
        "位置がまったくなくても因果マスクが対称性を破る"
        f"（{causal:.2g}）。語は自分に見える数を数えられるからである。",
    )


# ---------------------------------------------------------------------------------------- figures


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    return {"positions": length_figure(numbers), "positions-scores": score_figure(numbers)}


def length_figure(numbers: Numbers) -> Figure:
    made, (by_length, change, along) = figure(3, width=4.2)
    rows = [row for name, row in numbers.items() if name.startswith("length.")]
    context = rows[0]["context"]
    lengths = [float(times * context) for times in TIMES]
    middles = [(n + 0.5) * TIMES[-1] * context / BINS for n in range(BINS)]
    best = mean_along(rows, "alibi")
    for number, (scheme, label) in enumerate(LABELS.items()):
        found = [at(numbers, scheme, times) for times in TIMES]
        means = [Interval.of(values).mean for values in found]
        by_length.plot(
            lengths,
            means,
            color=COLOURS[number],
            marker=MARKS[number],
            markersize=4,
            linewidth=1.4,
            label=label,
        )
        line(
            change,
            lengths,
            [differences(values, found[0]) for values in found],
            label=label,
            number=number,
        )
        apart = [ours - theirs for ours, theirs in zip(mean_along(rows, scheme), best, strict=True)]
        along.plot(middles, apart, color=COLOURS[number], linewidth=1.4, label=label)
    for axes in (by_length, change):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
        axes.set(xlabel="window, characters", ylabel="nats a character")
    along.axvline(context, color="0.6", linestyle=":", linewidth=1)
    along.set(
        xlabel="place in the longest window",
        ylabel="nats above ALiBi",
        title="Where it arises (dotted: trained length)",
    )
    by_length.set_title(f"Trained at {context}, tested to {TIMES[-1] * context}")
    change.set_title("Change from the trained length")
    made.legend(
        *along.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8
    )
    return made


def mean_along(rows: Sequence[Mapping[str, Any]], scheme: str) -> list[float]:
    """The loss along the longest windows, over all seeds."""
    curves = [row[scheme]["along"] for row in rows if scheme in row]
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


def score_figure(numbers: Numbers) -> Figure:
    apart = exact_of(numbers, "distance")
    made, panels = figure(len(apart), width=2.5, height=3.1)
    for axes, (scheme, row) in zip(panels, apart.items(), strict=True):
        axes.grid(visible=False)
        axes.imshow(row["scores"], cmap="cividis")
        axes.set(xlabel="key", title=LABELS[scheme].split(",")[0], xticks=(0, 31), yticks=(0, 31))
    panels[0].set_ylabel("query")
    made.suptitle(
        "Scores of one word repeated: stripes where only the distance counts", fontsize=10
    )
    return made


EXPERIMENT = Experiment(
    name="positions",
    title=Words("Where a word stands", "語の位置"),
    claim=Words(
        "Attention without positions is permutation-equivariant. RoPE, ALiBi and T5 make scores"
        " depend on the distance alone, and beyond the length that was trained, ALiBi keeps its"
        " loss where learned and sinusoidal positions lose theirs.",
        "位置のない注意は置換同変である。RoPE・ALiBi・T5 ではスコアが距離だけで決まり、"
        "学習した長さを超えると、"
        "学習した位置や正弦波が崩れるところで ALiBi は損失を保つ。",
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
        "ALiBi's line stays flat to 8 times the trained length; the added positions climb as soon"
        " as it is passed",
        "ALiBi の線は学習時の8倍まで平らなまま。足し込む位置はその長さを超えるとすぐに上がる",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "Attention without positions is equivariant, not invariant: outputs permute with the"
            " inputs.",
            "位置のない注意は不変ではなく同変である。出力は入力とともに並べ替わる。",
        ),
        Words(
            "GPT-3 and BERT use learned absolute positions; sinusoids are those of the 2017"
            " Transformer.",
            "GPT-3 と BERT が使うのは学習した絶対位置である。正弦波は2017年の Transformer のもの。",
        ),
        Words(
            "Sinusoids of width 8 at position 1 are 0.841 0.540 0.100 0.995 0.010 1.000 0.001"
            " 1.000: each pair ten times slower.",
            "幅8・位置1の正弦波は 0.841 0.540 0.100 0.995 0.010 1.000 0.001 1.000。"
            "対ごとに10倍ずつ遅くなる。",
        ),
    ),
)
