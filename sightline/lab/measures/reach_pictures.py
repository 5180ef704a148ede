"""The summary and the figures of the experiment `why-attention`, and how they read its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Numbers, Words
from sightline.lab.measures.kernel_costs import KERNELS, growth_exponent
from sightline.lab.statistics import Interval
from sightline.lab.style import new_figure, plain_log_ticks, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = {
    "attention": Words("attention", "注意機構"),
    "gru": Words("GRU", "GRU"),
    "lstm": Words("LSTM", "LSTM"),
    "lstm-one": Words("LSTM, forget bias 1", "LSTM（忘却バイアス1）"),
    "plain": Words("plain CNN", "通常の CNN"),
    "dilated": Words("dilated CNN", "膨張 CNN"),
}
CHANCE = 1 / 8  # eight symbols
SOLVED = 0.9  # of the held-out rows right
PATHS = (2, 4, 8, 16, 32, 64)


def rows_of_kind(numbers: Numbers, kind: str) -> list[Any]:
    return [row for name, row in numbers.items() if name.startswith(f"{kind}.")]


def measured_distances(numbers: Numbers) -> list[int]:
    return sorted({int(name.split(".")[2]) for name in numbers if name.startswith("recall.")})


def accuracies(numbers: Numbers, name: str, far: int) -> list[float]:
    return [row["right"] for row in rows_of_kind(numbers, f"recall.{name}.{far}")]


def exponents_of_kernels(numbers: Numbers, kind: str) -> dict[str, Interval]:
    """By kernel, the exponent of its memory or time over the measurements."""
    if kind == "memory":
        rows = {name: rows_of_kind(numbers, f"memory.{name}") for name in KERNELS}
    else:
        rows = {
            name: [row[name] for row in rows_of_kind(numbers, "kernel-time")] for name in KERNELS
        }
    return {name: Interval.of([growth_exponent(row) for row in rows[name] if row]) for name in rows}


# ---------------------------------------------------------------------------------------- summary


def furthest_solved(numbers: Numbers, name: str) -> int:
    """The longest distance at which the runs are right on average in at least 90% of the rows."""
    return max(
        (
            far
            for far in measured_distances(numbers)
            if Interval.share(accuracies(numbers, name, far)).mean >= SOLVED
        ),
        default=0,
    )


def steps_used(numbers: Numbers, name: str, far: int) -> float:
    return Interval.ratio(
        [row["steps"] for row in rows_of_kind(numbers, f"recall.{name}.{far}")]
    ).mean


def step_milliseconds(numbers: Numbers) -> dict[str, Interval]:
    """Of a training step at the longest length, fastest first."""
    timed = rows_of_kind(numbers, "step-time")
    length = max(timed[0]["lstm"], key=int)
    found = {name: Interval.ratio([1e3 * row[name][length] for row in timed]) for name in MODELS}
    return dict(sorted(found.items(), key=lambda pair: pair[1].mean))


def time_conclusion(numbers: Numbers) -> Words:
    """What the exponents of time say about N², from their intervals."""
    exponents = exponents_of_kernels(numbers, "time")
    is_square = all(interval.low <= 2 <= interval.high for interval in exponents.values())
    listed = f"{exponents['fused']}, {exponents['equation']}"
    if is_square:
        return Words(
            f"The times (exponents {listed}) are compatible with N².",
            f"時間（指数 {listed}）は N² と矛盾しない。",
        )
    return Words(
        f"The times (exponents {listed}) are not evidence of N²: caches and fixed costs matter at"
        " these lengths; the work, which is counted, is N².",
        f"時間（指数 {listed}）は N² の証拠にはならない。この長さではキャッシュと固定費が効く。"
        "N² なのは数えた計算量である。",
    )


def summarize_why_attention(numbers: Numbers) -> Words:
    distances = measured_distances(numbers)
    far = distances[-1]
    timed = rows_of_kind(numbers, "step-time")
    length = max(timed[0]["lstm"], key=int)
    seconds = step_milliseconds(numbers)
    conclusion = time_conclusion(numbers)

    def listed(language: str) -> tuple[str, str, str]:
        reach = ", ".join(
            f"{words[language]} {furthest_solved(numbers, name) or '—'}"
            for name, words in MODELS.items()
        )
        steps = ", ".join(
            f"{words[language]} {steps_used(numbers, name, far):.0f}"
            for name, words in MODELS.items()
            if furthest_solved(numbers, name) == far
        )
        times = ", ".join(
            f"{MODELS[name][language]} {interval.mean:.1f} ms" for name, interval in seconds.items()
        )
        return reach, steps, times

    reach, steps, times = listed("en")
    reach_ja, steps_ja, times_ja = listed("ja")
    return Words(
        f"Largest of the distances {distances} with at least 90% right: {reach}. Training steps"
        f" until all is right at {far}: {steps}. So distance alone does not separate attention from"
        " a well-initialised recurrent network; many things to remember do (`recall`). A training"
        f" step on 4 × {int(length):,} tokens: {times}. {conclusion.en}",
        f"距離 {distances} のうち、正解率90%以上の最長：{reach_ja}。距離{far}で全問正解までの"
        f"学習ステップ数：{steps_ja}。つまり距離だけでは、適切に初期化した再帰型と注意機構に差はつかない。"
        f"差がつくのは覚えるものが多いときである（`recall`）。4 × {int(length):,}"
        f" トークンの学習1ステップ：{times_ja}。{conclusion.ja}",
    )


# ---------------------------------------------------------------------------------------- figures


def draw_why_attention(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (recalls, layers, steps) = new_figure(3, width=4.2, height=3.6)
    distances = measured_distances(numbers)
    (path,) = rows_of_kind(numbers, "path")
    timed = rows_of_kind(numbers, "step-time")
    for number, (name, words) in enumerate(MODELS.items()):
        shares = [Interval.share(accuracies(numbers, name, far)) for far in distances]
        plot_mean(recalls, list(map(float, distances)), shares, label=words.en, number=number)
        counts = [Interval.of([path[name][str(far)]]) for far in PATHS]
        plot_mean(layers, list(map(float, PATHS)), counts, label=words.en, number=number)
        plot_seeds(steps, [row[name] for row in timed], label=words.en, number=number, scale=1e3)
    recalls.axhline(CHANCE, color="0.5", linestyle=":", linewidth=1)
    recalls.set(
        xlabel="distance, tokens",
        ylabel="accuracy (dotted: chance)",
        title="Recall",
        ylim=(0, 1.05),
    )
    layers.set(
        xlabel="distance, tokens",
        ylabel="layers",
        yscale="log",
        title="Layers needed (LSTM, GRU: N steps in one)",
    )
    steps.set(xlabel="tokens per row", ylabel="ms", yscale="log", title="Training step on 4 rows")
    for axes in (recalls, layers, steps):
        axes.set_xscale("log", base=2)
    plain_log_ticks(layers.yaxis, steps.yaxis)
    figure.legend(
        *recalls.get_legend_handles_labels(),
        frameon=False,
        fontsize=8,
        ncols=6,
        loc="outside lower center",
    )
    return {"why-attention": figure, "why-attention-cost": draw_costs(numbers)}


def draw_costs(numbers: Numbers) -> Figure:
    figure, (bytes_of, seconds) = new_figure(2)
    exponents = {kind: exponents_of_kernels(numbers, kind) for kind in ("memory", "time")}
    for number, (kernel, label) in enumerate(KERNELS.items()):
        memory_rows = [row for row in rows_of_kind(numbers, f"memory.{kernel}") if row]
        if memory_rows:
            text = f"{label}: N^{exponents['memory'][kernel].mean:.2f}"
            plot_seeds(bytes_of, memory_rows, label=text, number=number, scale=2**-20)
        time_rows = [row[kernel] for row in rows_of_kind(numbers, "kernel-time")]
        text = f"{label}: N^{exponents['time'][kernel].mean:.2f}"
        plot_seeds(seconds, time_rows, label=text, number=number, scale=1e3)
    bytes_of.set(
        xlabel="tokens, N",
        ylabel="peak MiB",
        yscale="log",
        title="Memory of causal attention, 4 heads of 128",
    )
    seconds.set(
        xlabel="tokens, N", ylabel="ms of CPU time", yscale="log", title="Time, 2 heads of 64"
    )
    for axes in (bytes_of, seconds):
        axes.set_xscale("log", base=2)
        plain_log_ticks(axes.yaxis)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8)
    return figure


def plot_seeds(
    axes: Axes, rows: Sequence[Mapping[str, float]], *, label: str, number: int, scale: float
) -> None:
    """Plot rows of {N: value}, one per seed, as a mean with its interval."""
    intervals = [Interval.ratio([scale * row[n] for row in rows]) for n in rows[0]]
    plot_mean(axes, [float(n) for n in rows[0]], intervals, label=label, number=number)
