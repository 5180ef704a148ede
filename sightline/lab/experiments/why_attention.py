"""Why attention: how far back recurrent networks, convolutions and attention can recall, the layers
needed per distance, and the cost of N tokens."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Tier, Words
from sightline.lab.measures.kernel_costs import (
    KERNELS,
    growth_exponent,
    kernel_memory,
    kernel_seconds,
    kernel_work,
)
from sightline.lab.measures.reach_pictures import (
    MODELS,
    PATHS,
    SOLVED,
    accuracies,
    draw_why_attention,
    exponents_of_kernels,
    measured_distances,
    rows_of_kind,
    summarize_why_attention,
)
from sightline.lab.statistics import (
    Decision,
    Interval,
    decide_above,
    decide_below,
    decide_count_above,
    paired_ratio,
)
from sightline.lab.tuning import Grid, pilot_parts

LAYERS = 7  # of both CNNs: with kernel size 3 they reach back 14 tokens plain, 254 dilated
REACH = {"plain": 2 * LAYERS, "dilated": 2 * (2**LAYERS - 1)}
ONE_BIT = 1 / 4  # the accuracy of knowing one of the three bits of a symbol
DISTANCES: dict[Tier, tuple[int, ...]] = {
    "quick": (8, 32),
    "default": (4, 8, 16, 32, 64, 128),
    "full": (4, 8, 16, 32, 64, 128, 250),
}
STEPS: dict[Tier, int] = {"quick": 100, "default": 400, "full": 1000}
SEEDS: dict[Tier, int] = {"quick": 6, "default": 12, "full": 12}  # 6 of 6 is above a half, 5 is not
SEEDS_NEARER: dict[Tier, int] = {"quick": 2, "default": 4, "full": 12}  # at the shorter distances
RATES = (4e-4, 1e-3, 2.5e-3, 6e-3, 1.5e-2, 4e-2, 1e-1, 2.5e-1)
FIRST_RATE = {"attention": 0, "plain": 0, "lstm": 1, "dilated": 1, "lstm-one": 2, "gru": 3}
FIRST_RATE_QUICK = FIRST_RATE | {"plain": 1}  # few steps want higher rates
RATES_TRIED = 5
PILOT_SEEDS: dict[Tier, int] = {"quick": 1, "default": 2, "full": 3}
NEAR = 8  # where the two that cannot learn the longest distance are tuned
TIMED: dict[Tier, tuple[int, ...]] = {
    "quick": (256, 1024),
    "default": (128, 256, 512, 1024),
    "full": (128, 256, 512, 1024, 2048),
}
SAVED = (128, 256, 512, 1024)
COUNTED = (64, 128, 256)
LENGTHS: dict[Tier, tuple[int, ...]] = {
    "quick": (512, 1024, 2048),
    "default": (512, 1024, 2048),
    "full": (512, 1024, 2048, 4096),
}
TIMES_MEASURED: dict[Tier, int] = {"quick": 3, "default": 6, "full": 12}
REPEATS: dict[Tier, int] = {"quick": 3, "default": 4, "full": 6}


def pilot_distance(name: str, tier: Tier) -> int:
    """The longest one; for models that cannot learn that one, a distance within their reach."""
    return NEAR if name in ("plain", "lstm-one") else DISTANCES[tier][-1]


def rates_of(name: str, tier: Tier) -> tuple[float, ...]:
    first = (FIRST_RATE_QUICK if tier == "quick" else FIRST_RATE)[name]
    return RATES[first : first + RATES_TRIED]


def why_attention_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    from sightline.lab.measures.reach import train_recall

    return [
        part
        for name in MODELS
        for far in [pilot_distance(name, tier)]
        for part in pilot_parts(
            Grid(
                (name,), rates_of(name, tier), PILOT_SEEDS[tier], f"far-{far}.steps-{STEPS[tier]}"
            ),
            lambda arm, rate, seed, far=far: train_recall(
                arm, far, seed, steps=STEPS[tier], rate=rate
            ),
        )
    ]


def why_attention_parts(plan: Plan) -> Sequence[ExperimentPart]:
    return [*exact_parts(plan.seed), *cost_parts(plan), *recall_parts(plan)]


def exact_parts(seed: int) -> list[ExperimentPart]:
    from sightline.lab.measures.reach import saved_bytes

    return [
        ExperimentPart(f"path.seed-{seed}", lambda: measure_path_lengths(seed)),
        ExperimentPart(f"position.seed-{seed}", lambda: measure_positions(seed)),
        ExperimentPart(
            f"saved.to-{SAVED[-1]}",
            lambda: {name: {str(n): saved_bytes(name, n) for n in SAVED} for name in MODELS},
        ),
        ExperimentPart(f"work.to-{COUNTED[-1]}", lambda: kernel_work(COUNTED)),
    ]


def cost_parts(plan: Plan) -> list[ExperimentPart]:
    from sightline.lab.measures.reach import time_training_steps

    lengths = LENGTHS[plan.tier]
    timed = TIMED[plan.tier]
    turns = range(plan.seed, plan.seed + TIMES_MEASURED[plan.tier])
    memories = [
        ExperimentPart(
            f"memory.{kernel}.to-{lengths[-1]}.again-{n}",
            lambda kernel=kernel: kernel_memory(kernel, lengths),
            alone=True,
        )
        for n in range(REPEATS[plan.tier])
        for kernel in KERNELS
    ]
    kernel_times = [
        ExperimentPart(
            f"kernel-time.to-{lengths[-1]}.seed-{n}",
            lambda n=n: kernel_seconds(lengths, n),
            alone=True,
        )
        for n in turns
    ]
    steps_timed = [
        ExperimentPart(
            f"step-time.from-{timed[0]}.to-{timed[-1]}.seed-{n}",
            lambda n=n: time_training_steps(list(MODELS), timed, n),
            alone=True,
        )
        for n in turns
    ]
    return [*memories, *kernel_times, *steps_timed]


def recall_parts(plan: Plan) -> list[ExperimentPart]:
    from sightline.lab.measures.reach import train_recall

    steps = STEPS[plan.tier]
    *nearer, longest = DISTANCES[plan.tier]
    runs = [(n, far) for n in plan.seeds(SEEDS_NEARER) for far in nearer]
    runs += [(n, longest) for n in plan.seeds(SEEDS)]
    return [
        ExperimentPart(
            f"recall.{name}.{far}.rate-{plan.rate(name):g}.steps-{steps}.seed-{n}",
            lambda name=name, far=far, n=n: train_recall(
                name, far, n, steps=steps, rate=plan.rate(name)
            ),
        )
        for n, far in runs
        for name in MODELS
    ]


def measure_path_lengths(seed: int) -> dict[str, dict[str, int]]:
    """The minimum number of layers for the last of N + 1 outputs to depend on the first input, by
    its gradient."""
    from sightline.lab.measures.reach import fewest_layers

    return {name: {str(far): fewest_layers(name, far, seed) for far in PATHS} for name in MODELS}


def measure_positions(seed: int) -> dict[str, int]:
    """How many positions of a repeated token the states tell apart, out of one more than a dilated
    CNN reaches, twice over."""
    from sightline.lab.measures.reach import positions_told_apart

    time = 2 * REACH["dilated"]
    return {"tokens": time} | {
        name: positions_told_apart(name, time, seed) for name in ("plain", "dilated", "attention")
    }


# ---------------------------------------------------------------------------------------- verdict


def judge_why_attention(numbers: Numbers) -> Sequence[Check]:
    return [
        *exact_checks(numbers),
        *recall_checks(numbers),
        *step_checks(numbers),
        *kernel_checks(numbers),
    ]


def exact_checks(numbers: Numbers) -> list[Check]:
    from sightline.lab.measures.reach import path_length_formula

    (layers,) = rows_of_kind(numbers, "path")
    (told,) = rows_of_kind(numbers, "position")
    far = PATHS[-1]
    follows_formula = all(
        layers[name][str(n)] == path_length_formula(name, n) for name in MODELS for n in PATHS
    )
    loses_position = all(told[name] == reach for name, reach in REACH.items())
    listed = ", ".join(f"{words.en} {layers[name][str(far)]}" for name, words in MODELS.items())
    return [
        Check(
            Words(
                "layers to reach distance N: 1 for attention, ⌈N/(k−1)⌉ for a plain CNN, about"
                " log₂ N for a dilated one; LSTM and GRU need N sequential steps",
                "距離 N に届く層数：注意機構は1、通常の CNN は ⌈N/(k−1)⌉、膨張 CNN は約 log₂ N。"
                "LSTM と GRU は1層で N 回の逐次ステップ",
            ),
            follows_formula,
            f"layers at distance {far}: {listed}",
        ),
        Check(
            Words(
                "a CNN, plain or dilated, loses the position: on a repeated token all its states"
                " from the end of its receptive field on are equal (to 1e-12); attention with"
                " positions tells all apart",
                "CNN は通常でも膨張でも位置を失う：同じトークンの繰り返しでは、受容野の終わり以降の"
                "状態はすべて等しい（誤差 1e-12 以内）。位置情報のある注意機構はすべてを区別する",
            ),
            loses_position and told["attention"] >= told["tokens"] - 1,
            f"of {told['tokens']} positions known: plain CNN {told['plain']}, dilated CNN"
            f" {told['dilated']}, attention {told['attention'] + 1}",
        ),
    ]


def recall_checks(numbers: Numbers) -> list[Check]:
    far = measured_distances(numbers)[-1]
    return [
        solved_check(
            numbers,
            far,
            ("attention", "dilated", "gru"),
            Words(
                f"attention, a dilated CNN of {LAYERS} layers and a GRU initialised to remember"
                f" learn a distance of {far}: in more than half of all runs, {SOLVED:.0%} of the"
                " held-out rows are right",
                f"注意機構、{LAYERS}層の膨張 CNN、記憶向けに初期化した GRU は距離{far}を学ぶ："
                f"半数を超える学習で検証データの{SOLVED:.0%}以上に正解する",
            ),
        ),
        initialisation_check(numbers, far),
        plain_check(numbers, far),
    ]


def solved_check(numbers: Numbers, far: int, names: Sequence[str], statement: Words) -> Check:
    """More than half: a training that is repeated is more likely to work than not."""
    counts = {
        name: [accuracy >= SOLVED for accuracy in accuracies(numbers, name, far)] for name in names
    }
    listed = ", ".join(
        f"{MODELS[name].en} {sum(row)} of {len(row)} runs" for name, row in counts.items()
    )
    decisions = [decide_count_above(sum(row), len(row), 0.5) for row in counts.values()]
    return Check.over_seeds(statement, listed, *decisions)


def initialisation_check(numbers: Numbers, far: int) -> Check:
    """A sign test: without a difference, each is ahead in half of all seeds."""
    chrono, usual = (accuracies(numbers, name, far) for name in ("lstm", "lstm-one"))
    ahead = sum(ours > theirs for ours, theirs in zip(chrono, usual, strict=True))
    return Check.over_seeds(
        Words(
            "how far an LSTM learns to recall depends on its initialisation: with forget biases for"
            " this distance (chrono) it is right more often than with 1, each at its best learning"
            " rate, in more than half of all seeds",
            "LSTM がどこまで遠くを想起できるかは初期化による：忘却バイアスをこの距離に合わせると"
            "（chrono）、半数を超えるシードで 1 のときより正解率が高い"
            "（学習率はそれぞれ最良のもの）",
        ),
        f"chrono {Interval.share(chrono)}, forget bias 1 {Interval.share(usual)}, ahead in {ahead}"
        f" of {len(chrono)} seeds",
        decide_count_above(ahead, len(chrono), 0.5),
    )


def plain_check(numbers: Numbers, far: int) -> Check:
    """A symbol is three bits: a guess with one of them known is right in a quarter of the rows."""
    change = max(row["change"] for row in rows_of_kind(numbers, f"recall.plain.{far}"))
    right = Interval.share(accuracies(numbers, "plain", far))
    decision = decide_below(right, ONE_BIT)
    statement = Words(
        f"a plain CNN, which reaches back {REACH['plain']} tokens, cannot: after training its"
        " answer does not depend on the symbol at all, and it is right less often than with one bit"
        f" of it ({ONE_BIT})",
        f"受容野が{REACH['plain']}トークンの通常の CNN にはできない："
        f"学習後の答えは記号に全く依存せず、正解率は記号の1ビットを知る場合（{ONE_BIT}）より低い",
    )
    if change > 0:
        return Check(statement, holds=False, measured=f"the logits change by {change:.2g}")
    return Check.over_seeds(
        statement, f"the logits change by {change:.0g}, accuracy {right}", decision
    )


def step_checks(numbers: Numbers) -> list[Check]:
    (saved,) = rows_of_kind(numbers, "saved")
    timed = rows_of_kind(numbers, "step-time")
    length = max(timed[0]["lstm"], key=int)
    growth = {name: growth_exponent(saved[name]) for name in MODELS}
    ratio = paired_ratio(
        [row["attention"][length] for row in timed], [row["lstm"][length] for row in timed]
    )
    listed = ", ".join(f"{words.en} N^{growth[name]:.2f}" for name, words in MODELS.items())
    return [
        Check(
            Words(
                "in training, recurrent networks and CNNs need memory in proportion to N, too: the"
                " activations kept for the backward pass grow with an exponent that rounds to 1",
                "学習時は再帰型も CNN もメモリが N に比例する：逆伝播のために保持する活性は、"
                "四捨五入して1の指数で増える",
            ),
            all(round(exponent) == 1 for exponent in growth.values()),
            listed,
        ),
        Check.over_seeds(
            Words(
                f"at 4 × {int(length):,} tokens an LSTM's training step is faster than attention's:"
                " being sequential is not slower on a CPU",
                f"4 × {int(length):,} トークンでは LSTM の学習1ステップは注意機構より速い："
                "CPU では逐次処理だから遅いとは言えない",
            ),
            f"attention / LSTM: {ratio} times",
            decide_above(ratio, 1.0),
        ),
    ]


def rounds_to(exponent: Interval, power: int) -> tuple[Decision, Decision]:
    return decide_above(exponent, power - 0.5), decide_below(exponent, power + 0.5)


def kernel_checks(numbers: Numbers) -> list[Check]:
    (work,) = rows_of_kind(numbers, "work")
    memory = exponents_of_kernels(numbers, "memory")
    seconds = exponents_of_kernels(numbers, "time")
    is_formula = all(row["counted"] == row["formula"] for row in work.values())
    longest = work[max(work, key=int)]
    return [
        Check(
            Words(
                "attention's work is 4N²d operations, counted product by product",
                "注意機構の計算量は 4N²d 回の演算である（行列積ごとに数えた値）",
            ),
            is_formula,
            f"{max(work, key=int)} tokens: {longest['counted']:,} of {longest['formula']:,}",
        ),
        Check.over_seeds(
            Words(
                "the equation's memory grows as N², the fused kernel's as N (exponents that round"
                " to 2 and 1)",
                "メモリは定義式どおりの計算では N²、融合カーネルでは N で増える"
                "（指数は四捨五入して2と1）",
            ),
            f"exponents: fused {memory['fused']}, equation {memory['equation']}",
            *rounds_to(memory["equation"], 2),
            *rounds_to(memory["fused"], 1),
        ),
        Check.over_seeds(
            Words(
                "the fused kernel saves memory, not growth in time: with both kernels time grows"
                " faster than N (exponents > 1)",
                "融合カーネルが節約するのはメモリで、時間の増え方ではない："
                "どちらも時間は N より速く増える（指数 > 1）",
            ),
            f"exponents: fused {seconds['fused']}, equation {seconds['equation']}",
            *(decide_above(exponent, 1.0) for exponent in seconds.values()),
        ),
    ]


EXPERIMENT = Experiment(
    name="why-attention",
    title=Words("Why attention", "なぜ注意機構なのか"),
    claim=Words(
        "Attention reaches any distance in one layer. A plain CNN needs N/(k−1) layers, an LSTM or"
        " GRU N sequential steps, and learns the distance if its gates are initialised for it."
        " Attention costs N² work, and N² memory unless the kernel is fused.",
        "注意機構はどんな距離にも1層で届く。通常の CNN は N/(k−1) 層、LSTM と GRU は N"
        " 回の逐次ステップを要し、ゲートをその距離に合わせて初期化すれば学べる。"
        "注意機構の代償は N² の計算と、融合カーネルでなければ N² のメモリである。",
    ),
    source=(
        "Vaswani et al. 2017, section 4 and table 1; Tallec and Ollivier 2018 (chrono"
        " initialisation); Islam et al. 2020 (positions in CNNs); Dao et al. 2022; Rabe and Staats"
        " 2021"
    ),
    equation=(
        "layers to reach N: 1 | ⌈N/(k−1)⌉ | ⌈log₂(N/(k−1) + 1)⌉;   work 4N²d;   memory N² or, tile"
        " by tile, N"
    ),
    look_for=Words(
        "attention, GRU and dilated CNN stay at the top of the recall; the plain CNN falls where"
        " its receptive field ends, the LSTM with forget bias 1 much earlier than the one"
        " initialised for the distance. Equation and fused kernel differ in how their memory grows",
        "注意機構・GRU・膨張 CNN は想起の正解率の上端に留まる。通常の CNN は受容野の終わりで落ち、"
        "忘却バイアス1の LSTM は距離に合わせて初期化したものよりずっと早く落ちる。"
        "定義式と融合カーネルではメモリの増え方が異なる",
    ),
    pilots=why_attention_pilots,
    parts=why_attention_parts,
    judge=judge_why_attention,
    draw=draw_why_attention,
    summarize=summarize_why_attention,
    arms=MODELS,
    settle=20,
    corrections=(
        Words(
            "A plain CNN needs O(N/k) layers to connect tokens N apart; O(log N) holds only when it"
            " is dilated.",
            "通常の CNN が N 離れたトークンを結ぶには O(N/k) 層が要る。"
            "O(log N) は膨張畳み込みのときだけである。",
        ),
        Words(
            "The memory of RNNs and CNNs is O(1) only when generating; in training they keep the"
            " activations of all N tokens, O(N).",
            "RNN と CNN のメモリが O(1) なのは生成時だけである。学習時は N"
            " トークンすべての活性を保持し、O(N) になる。",
        ),
        Words(
            "An LSTM has no fixed limit of 100 or 200 steps: how far it learns depends on how its"
            " forget gates are initialised, on the learning rate and on how much it has to keep.",
            "LSTM に100〜200ステップという決まった限界はない。どこまで学べるかは、"
            "忘却ゲートの初期化、学習率、覚える量によって決まる。",
        ),
        Words(
            "A CNN does not lose all positions: with zero padding it still knows those within its"
            " receptive field of the start.",
            "CNN は位置をすべて失うわけではない。ゼロパディングがあれば、"
            "先頭から受容野の範囲内の位置は分かる。",
        ),
    ),
)
