"""Positions: what attention can do without them, what each scheme adds, and what remains beyond the
training length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.japanese import to_japanese
from sightline.lab.measures.longer_texts import (
    BINS,
    TIMES,
    pilot_score,
    size_text,
    train_and_test_longer,
)
from sightline.lab.measures.position_laws import (
    RELATIVE,
    SCHEMES,
    measure_distance,
    measure_order,
    measure_sinusoids,
)
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    lies_below,
    paired_difference,
)
from sightline.lab.style import COLOURS, MARKS, new_figure, plot_mean
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned, untrained rows beyond",
    "rope": "RoPE",
    "yarn": "RoPE + YaRN at test",
    "alibi": "ALiBi",
    "t5": "T5 bias",
    "rope-window": "RoPE, windowed",
    "alibi-window": "ALiBi, windowed",
}
ARMS = {
    "none": Words("none", "なし"),
    "sinusoidal": Words("sinusoidal", "正弦波"),
    "learned": Words("learned", "学習した位置"),
    "rope": Words("RoPE", "RoPE"),
    "alibi": Words("ALiBi", "ALiBi"),
    "t5": Words("T5 bias", "T5 バイアス"),
}
SEEDS: dict[Tier, int] = {"quick": 2, "default": 6, "full": 8}
PILOTS = {"quick": 1, "default": 2, "full": 2}
RATES = {
    "quick": (5e-3, 1.5e-2, 4.5e-2),
    "default": (3e-4, 1e-3, 3e-3, 9e-3, 2.7e-2),
    "full": (3e-4, 1e-3, 3e-3, 9e-3),
}
WIDTH_8_AT_1 = (0.841, 0.540, 0.100, 0.995, 0.010, 1.000, 0.001, 1.000)
ROUNDING = 1e-12  # float64
EXACT = 1e-5  # of the largest number compared; angles are float32
VISIBLE = 0.01  # far above rounding, and what a plot would show
ONE_PERCENT = 0.01  # nats: 1% of perplexity, for which no one would pay an 8 times longer context


def positions_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Rates are chosen by the held-out loss at the trained length, not beyond it."""
    grid = Grid(tuple(ARMS), RATES[tier], PILOTS[tier], detail=size_text(tier))
    return pilot_parts(grid, lambda scheme, rate, n: pilot_score(scheme, rate, n, tier=tier))


def positions_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier: Tier = plan.tier
    seed = plan.seed
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
            f"length.{scheme}.rate-{plan.rate(scheme):g}.{size_text(tier)}.seed-{n}",
            lambda scheme=scheme, n=n: train_and_test_longer(
                scheme, n, tier=tier, rate=plan.rate(scheme)
            ),
        )
        for n in plan.seeds(SEEDS)
        for scheme in SCHEMES
    ]
    return [*exact, *trained]


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
            none["encoder"] < ROUNDING,
            f"difference {none['encoder']:.1e}",
        ),
        Check(
            Words(
                "they are equivariant, not invariant: the outputs do change places",
                "同変であって不変ではない。出力は入れ替わる",
            ),
            none["encoder unmoved"] > VISIBLE,
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
            sines["off"] < 1e-6 and sines["bent"] < ROUNDING,
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
            absolute > VISIBLE,
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


def increase(numbers: Numbers, scheme: str, times: int) -> list[float]:
    """The change of each seed's loss from the trained length to a multiple of it."""
    longer, trained = losses_at(numbers, scheme, times), losses_at(numbers, scheme, 1)
    return [a - b for a, b in zip(longer, trained, strict=True)]


def length_checks(numbers: Numbers) -> list[Check]:
    alibi = losses_at(numbers, "alibi", 8)
    kept = Interval.of(increase(numbers, "alibi", 8))
    unused = paired_difference(alibi, losses_at(numbers, "alibi-window", 8))
    window = paired_difference(losses_at(numbers, "rope-window", 8), alibi)
    return [
        *(steeper_check(numbers, scheme) for scheme in ("learned", "sinusoidal", "rope")),
        Check.over_seeds(
            Words(
                "at 8 times the length ALiBi's loss is less than 0.01 nats (1% of perplexity)"
                " higher",
                "8倍の長さでも ALiBi の損失増は0.01ナット（パープレキシティの1%）未満",
            ),
            f"8 × − 1 ×: {kept} nats",
            decide_below(kept, ONE_PERCENT),
        ),
        Check.over_seeds(
            Words(
                "it does not use the longer text: at 8 times the length ALiBi equals ALiBi with a"
                " sliding window of the trained length (to 0.01 nats)",
                "長い文脈は使っていない：8倍の長さでの ALiBi は、学習時の長さのスライディング"
                "ウィンドウを付けた ALiBi に等しい（0.01ナット以内）",
            ),
            f"ALiBi − windowed: {unused} nats",
            decide_above(unused, -ONE_PERCENT),
            decide_below(unused, ONE_PERCENT),
        ),
        Check.over_seeds(
            Words(
                "at 8 times the length RoPE with such a window has a lower loss than ALiBi",
                "8倍の長さでは、同じウィンドウを付けた RoPE の損失は ALiBi より低い",
            ),
            f"RoPE, windowed − ALiBi: {window} nats",
            decide_below(window, 0),
        ),
    ]


def steeper_check(numbers: Numbers, scheme: str) -> Check:
    """The difference in differences: the scheme's increase against ALiBi's. 0 is what two schemes
    that suffer equally have, whatever their losses at the trained length."""
    steeper = paired_difference(increase(numbers, scheme, 4), increase(numbers, "alibi", 4))
    name = ARMS[scheme]
    return Check.over_seeds(
        Words(
            f"from the trained length to 4 times that, the loss with {name.en} positions rises"
            " more than ALiBi's",
            f"学習時の長さから4倍までの損失の増加は{name.ja}の方が ALiBi より大きい",
        ),
        f"increase − ALiBi's: {steeper} nats",
        decide_above(steeper, 0),
    )


def short_label(scheme: str) -> str:
    return "learned" if scheme == "learned" else LABELS[scheme]


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
        f"{short_label(scheme)} {means[scheme][1]:.3f} ({means[scheme][1] - means[scheme][0]:+.3f})"
        for scheme in ranked
    )
    gap = paired_difference(losses_at(numbers, "yarn", 8), losses_at(numbers, "rope", 8))
    nope = paired_difference(increase(numbers, "none", 8), increase(numbers, "rope", 8))
    causal = exact_rows(numbers, "order")["none"]["causal"]
    helps = lies_below(gap, 0)
    yarn_en = {True: "lowers", False: "does not lower", None: "does not clearly change"}[helps]
    yarn_ja = {True: "下げる", False: "下げない", None: "はっきりとは変えない"}[helps]
    return Words(
        "Nats per character at 8 times the training length, and the change from the training"
        f" length: {list_en}. Longer windows have fewer tokens with little text before them; Press"
        " et al. 2022 explain ALiBi's gains there by this early-token effect, and a sliding window"
        f" has it too. The increase without positions minus RoPE's is {nope} nats;"
        " Kazemnejad et al. 2023 find that decoders without positions (NoPE) generalise to longer"
        " inputs better than ALiBi, RoPE and absolute positions, on reasoning tasks. YaRN, used at"
        f" test without the fine-tuning that its authors use, {yarn_en} RoPE's loss ({gap})."
        " Learned positions are undefined beyond their table; it was made 8 times as long, and the"
        " rows beyond the training length kept their initial values. Without any positions a causal"
        f" mask still breaks the symmetry (by {causal:.2g}): a token can count the tokens it"
        " attends to.",
        "学習時の8倍の長さでの1文字あたりのナットと、学習時の長さからの変化："
        f"{to_japanese(list_en)}。"
        "窓が長いほど、前の文脈が短いトークンの割合は減る。Press et al. 2022 は ALiBi の利得を"
        "主にこの効果（early token curse）で説明しており、"
        "スライディングウィンドウにも同じ効果がある。"
        f"位置情報なしでの損失の増加から RoPE での増加を引くと {nope} ナット。"
        "Kazemnejad et al. 2023 によれば、推論課題では"
        "位置情報のないデコーダ（NoPE）が ALiBi・RoPE・絶対位置よりも長い入力に汎化する。"
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
    for scheme, label in LABELS.items():
        number = list(LABELS).index(scheme.removesuffix("-window"))
        line = "--" if scheme.endswith("-window") else "-"
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": line, "linewidth": 1.4}
        losses = [losses_at(numbers, scheme, times) for times in TIMES]
        means = [Interval.of(values).mean for values in losses]
        by_length.plot(lengths, means, marker=MARKS[number], markersize=4, label=label, **look)
        changes = [paired_difference(values, losses[0]) for values in losses]
        if line == "-":
            plot_mean(change, lengths, changes, label=label, number=number)
        else:
            change.plot(lengths, [one.mean for one in changes], **look)
        gaps = [ours - theirs for ours, theirs in zip(mean_along(rows, scheme), best, strict=True)]
        along.plot(middles, gaps, label=label, **look)
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
        *along.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=7
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
        " depend on the distance alone. Beyond the training length the loss rises with learned,"
        " sinusoidal and rotary positions and not with ALiBi; but ALiBi does not use the longer"
        " text, and RoPE with a sliding window of the trained length is better.",
        "位置情報のない注意機構は置換同変である。RoPE・ALiBi・T5 ではスコアが距離だけで決まる。"
        "学習した長さを超えると、学習した位置・正弦波・RoPE では損失が増え、ALiBi では増えない。"
        "ただし ALiBi は長い文脈を使っておらず、学習時の長さのスライディングウィンドウを付けた RoPE"
        " の方が良い。",
    ),
    source=(
        "Vaswani et al. 2017, section 3.5; Su et al. 2021; Press et al. 2022; Raffel et al. 2020;"
        " Peng et al. 2023; Kazemnejad et al. 2023"
    ),
    equation=(
        "f(xP) = f(x)P;   PE(p + k) = M(k) PE(p);   ⟨R_m q, R_n k⟩ = ⟨q, R_(n−m) k⟩;   s_ij ="
        " q_i·k_j/√d − slope_h |i − j|"
    ),
    look_for=Words(
        "beyond the training length the solid lines of learned, sinusoidal and rotary positions"
        " climb; ALiBi's stays flat on its own dashed line, that of ALiBi with a window, and the"
        " dashed line of RoPE with a window is below both",
        "学習時の長さを超えると、学習した位置・正弦波・RoPE の実線は上がる。ALiBi の実線は"
        "ウィンドウ付き ALiBi の破線に重なって平らなまま。ウィンドウ付き RoPE の破線はその下にある",
    ),
    pilots=positions_pilots,
    arms=ARMS,
    settle=12,
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
        Words(
            "RoPE does not extrapolate by itself: beyond the training length its loss rises. With a"
            " sliding window of the trained length it is better than ALiBi.",
            "RoPE だけでは外挿できず、学習した長さを超えると損失が増える。"
            "学習時の長さのスライディングウィンドウを付ければ ALiBi より良い。",
        ),
    ),
)
