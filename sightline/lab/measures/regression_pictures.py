"""The summary and the figure of the experiment `icl-gradient-descent`, and how they read its
numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Numbers, Words
from sightline.lab.measures.regression import DESCENTS, NEWTON, PLUS
from sightline.lab.statistics import Interval, lies_below, paired_ratio
from sightline.lab.style import COLOURS, MARKS, new_figure, plain_log_ticks, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEPTH = 10  # layers of linear attention in the exact comparison
EQUAL = 1e-6


def several(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


METHODS = (
    {
        "ridge": Words("ridge, best λ", "リッジ回帰、最良の λ"),
        "least squares": Words("least squares", "最小二乗法"),
    }
    | {
        f"descent-{n}": Words(several(n, "gradient step", "gradient steps"), f"勾配降下{n}ステップ")
        for n in DESCENTS
    }
    | {f"plus-{n}": Words(several(n, "GD++ step", "GD++ steps"), f"GD++ {n}ステップ") for n in PLUS}
    | {
        f"newton-{n}": Words(several(n, "Newton step", "Newton steps"), f"ニュートン法{n}ステップ")
        for n in NEWTON
    }
)
DRAWN = ("ridge", "least squares", "descent-1", "descent-10", "plus-3", "newton-3")


def rows_of_part(numbers: Numbers, kind: str) -> list[Mapping[str, Any]]:
    return [row for name, row in numbers.items() if name.startswith(kind + ".")]


def at_twice_dimension(row: Mapping[str, Any], name: str) -> float:
    """An error, or a distance "from …", with 2 d examples."""
    return float(row[name][row["examples"].index(2 * row["dimension"])])


def errors_of(numbers: Numbers, name: str) -> list[float]:
    """By seed, with 2 d examples."""
    return [at_twice_dimension(row, name) for row in rows_of_part(numbers, "trained")]


def mean_error(numbers: Numbers, name: str) -> float:
    return Interval.of(errors_of(numbers, name)).mean


def by_distance(numbers: Numbers) -> list[str]:
    """The methods, those whose predictions are closest to the Transformer's first."""
    return sorted(METHODS, key=lambda name: mean_error(numbers, f"from {name}"))


# ---------------------------------------------------------------------------------------- summary


def summarize_icl(numbers: Numbers) -> Words:
    ridge, ours = (mean_error(numbers, name) for name in ("ridge", "trained"))
    noise = rows_of_part(numbers, "trained")[0]["noise"] ** 2
    with_noise = (ours + noise) / (ridge + noise)
    ten = ten_steps_sentence(numbers)

    def listed(language: str) -> str:
        return ", ".join(
            f"{METHODS[name][language]} {mean_error(numbers, f'from {name}'):.3f}"
            f" ({mean_error(numbers, name):.3f})"
            for name in by_distance(numbers)
        )

    return Words(
        f"With 2 d examples the Transformer's error beyond the noise is {ours:.3f}, ridge's"
        f" {ridge:.3f} (with the noise counted, {with_noise:.2f} times ridge's). Mean squared"
        " distance from its predictions, closest first, each method at its best setting (and the"
        f" method's own error): {listed('en')}. {ten.en} One layer can be one step; which algorithm"
        " several layers with softmax learn, closeness of predictions does not tell.",
        f"例が 2d 個のとき、ノイズを除いた誤差は Transformer {ours:.3f}、リッジ"
        f" {ridge:.3f}（ノイズを含めると {with_noise:.2f} 倍）。予測の平均二乗差、近い順"
        f"（それぞれ最良の設定、かっこ内はその手法の誤差）：{listed('ja')}。{ten.ja}"
        "1層は1ステップになりうるが、softmax をもつ数層がどのアルゴリズムを学んだかは、"
        "予測の近さからは分からない。",
    )


def ten_steps_sentence(numbers: Numbers) -> Words:
    """Ten gradient steps against ridge, and against the Transformer."""
    far = paired_ratio(errors_of(numbers, "from descent-10"), errors_of(numbers, "from ridge"))
    error = paired_ratio(errors_of(numbers, "descent-10"), errors_of(numbers, "trained"))
    order = {
        True: Words("err less than the Transformer", "Transformer より誤差が小さい"),
        False: Words("err more than the Transformer", "Transformer より誤差が大きい"),
        None: Words("err as much as the Transformer", "Transformer と誤差に差がない"),
    }[lies_below(error, 1.0)]
    return Words(
        f"Ten gradient steps are {far} times as far from it as ridge and {order.en} (ratio"
        f" {error}).",
        f"勾配降下10ステップとの差はリッジとの差の {far} 倍で、{order.ja}（比 {error}）。",
    )


# ----------------------------------------------------------------------------------------- figure


def draw_icl(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (errors, distances, exact) = new_figure(3, width=4.6, height=3.8)
    draw_errors(errors, numbers)
    draw_distances(distances, numbers)
    draw_exact(exact, rows_of_part(numbers, "exact"))
    return {"icl-gradient-descent": figure}


def draw_errors(axes: Axes, numbers: Numbers) -> None:
    rows = rows_of_part(numbers, "trained")
    examples = rows[0]["examples"]
    trained = [
        Interval.of(list(errors)) for errors in zip(*(r["trained"] for r in rows), strict=True)
    ]
    plot_mean(axes, examples, trained, label="trained Transformer", number=0)
    axes.lines[0].set(zorder=3, linewidth=2.2)
    for number, name in enumerate(DRAWN, start=1):
        means = [
            Interval.of(list(errors)).mean for errors in zip(*(r[name] for r in rows), strict=True)
        ]
        axes.plot(
            examples, means, label=METHODS[name].en, linewidth=1.2, markersize=3,
            color=COLOURS[number % len(COLOURS)], marker=MARKS[number % len(MARKS)],
        )  # fmt: skip
    double = 2 * rows[0]["dimension"]
    axes.axvline(double, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="examples in the context",
        ylabel="mean (ŷ − w·x)²",
        title=f"In-context regression, d = {double // 2}",
        yscale="log",
    )
    axes.set_ylim(
        0.3 * min(min(row["ridge"]) for row in rows), 2 * max(max(row["trained"]) for row in rows)
    )
    plain_log_ticks(axes.yaxis)
    axes.legend(frameon=False, fontsize=7, ncols=2, loc="lower left")


def draw_distances(axes: Axes, numbers: Numbers) -> None:
    """The distance of each method's predictions from the Transformer's, with 2 d examples."""
    names = by_distance(numbers)
    for place, name in enumerate(names):
        interval = Interval.ratio(errors_of(numbers, f"from {name}"))
        colour = COLOURS[(DRAWN.index(name) + 1) % len(COLOURS)] if name in DRAWN else "0.5"
        axes.plot([interval.low, interval.high], [place, place], color=colour, linewidth=2)
        axes.plot([interval.mean], [place], marker="o", markersize=4, color=colour)
    axes.set_yticks(range(len(names)), labels=[METHODS[name].en for name in names], fontsize=7)
    axes.set(
        xlabel="mean squared difference",
        title="Distance from the Transformer, 2d examples",
        xscale="log",
        ylim=(len(names) - 0.5, -0.5),
    )
    plain_log_ticks(axes.xaxis)


def draw_exact(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, of in enumerate(("float32", "float64")):
        worst = [
            max(max(row[of][f"layers-{n}"] for row in rows), 1e-17) for n in range(1, DEPTH + 1)
        ]
        axes.plot(
            range(1, DEPTH + 1), worst, marker="os"[number], markersize=4,
            color=COLOURS[number], label=of,
        )  # fmt: skip
    axes.axhline(EQUAL, color="0.5", linewidth=0.8, linestyle=":", label="1e-6")
    axes.set(
        xlabel="layers = steps",
        ylabel="largest difference / largest prediction",
        yscale="log",
        ylim=(1e-17, 1e-4),
    )
    axes.set_title("Linear attention against gradient descent", fontsize=10)
    axes.legend(frameon=False, loc="center right")
