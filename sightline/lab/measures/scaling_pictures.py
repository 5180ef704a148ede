"""The figures of scaling laws: loss against data and against size at equal compute, prediction
against measurement, tokens for a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.lab.measures.fitting import Chinchilla, Kaplan, interval
from sightline.lab.statistics import Interval
from sightline.lab.style import COLOURS, MARKS, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
Of = Callable[[float], float]


def laws_picture(
    rows: Rows, held: Rows, law: Chinchilla, other: Kaplan, *, cost_of: Of, parameters_of: Of
) -> Figure:
    made, (data, compute, both) = figure(3, width=5.0, height=4.2)
    by_data(data, rows, law)
    by_size(compute, rows, held, law, cost_of, parameters_of)
    predicted(both, rows, held, law, other)
    return made


def by_data(axes: Axes, rows: Rows, law: Chinchilla) -> None:
    """Loss against tokens, a line for each size."""
    from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

    sizes = sorted({row["parameters"] for row in rows})
    for number, size in enumerate(sizes):
        own = sorted((row["tokens"], row["loss"]) for row in rows if row["parameters"] == size)
        tokens = np.geomspace(own[0][0] / 1.15, own[-1][0] * 1.15, 50)
        colour = shade(number, len(sizes))
        mark = MARKS[number % len(MARKS)]
        axes.plot(tokens, [law(size, one) for one in tokens], color=colour, linewidth=1.1)
        axes.plot(*zip(*own, strict=True), mark, color=colour, markersize=5, label=short(size))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="characters read, D",
        ylabel="held-out loss, nats",
        title="Loss against data",
    )
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    thousands(axes)
    axes.set_ylim(top=axes.get_ylim()[1] ** 1.2)
    axes.legend(
        frameon=False,
        fontsize=8,
        title="N",
        title_fontsize=8,
        ncols=4,
        loc="upper center",
        columnspacing=1.0,
    )


def by_size(
    axes: Axes, rows: Rows, held: Rows, law: Chinchilla, cost_of: Of, parameters_of: Of
) -> None:
    """IsoFLOP curves: loss against size, a curve for each budget; the held-out budget's curve is a
    prediction."""
    budgets = sorted({row["budget"] for row in rows})
    for number, flops in enumerate([*budgets, held[0]["budget"]]):
        unseen = flops not in budgets
        own = [row for row in (held if unseen else rows) if row["budget"] == flops]
        widths = np.geomspace(
            min(row["width"] for row in own) / 1.15, max(row["width"] for row in own) * 1.15, 200
        )
        sizes, losses = zip(
            *(
                (parameters_of(width), law(parameters_of(width), flops / cost_of(width)))
                for width in widths
            ),
            strict=True,
        )
        colour = COLOURS[1] if unseen else shade(number, len(budgets))
        axes.plot(sizes, losses, color=colour, linewidth=1.1, linestyle="--" if unseen else "-")
        lowest = int(np.argmin(losses))
        if 0 < lowest < len(losses) - 1:
            axes.plot(
                sizes[lowest],
                losses[lowest],
                "*",
                color=colour,
                markersize=11,
                markeredgecolor="black",
                markeredgewidth=0.5,
                zorder=4,
            )
        points(axes, own, colour, label=f"{flops:.3g}" + (", held out" if unseen else ""))
    axes.set(
        xscale="log",
        xlabel="parameters without embeddings, N",
        ylabel="held-out loss, nats",
        title="Loss at equal compute",
    )
    thousands(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.3 * (high - low))
    axes.legend(
        frameon=False,
        fontsize=8,
        title="FLOP",
        title_fontsize=8,
        ncols=3,
        loc="upper center",
        columnspacing=1.0,
    )


def points(axes: Axes, rows: Rows, colour: Any, *, label: str) -> None:
    """Means over seeds, with their intervals where there are several."""
    sizes = sorted({row["parameters"] for row in rows})
    found = [
        Interval.of([row["loss"] for row in rows if row["parameters"] == size]) for size in sizes
    ]
    reach = [[one.mean - one.low for one in found], [one.high - one.mean for one in found]]
    several = max(one.count for one in found) > 1
    means = [one.mean for one in found]
    axes.errorbar(
        sizes,
        means,
        yerr=reach if several else None,
        fmt="s" if several else "o",
        color=colour,
        markersize=5,
        capsize=3,
        label=label,
    )


def predicted(axes: Axes, rows: Rows, held: Rows, law: Chinchilla, other: Kaplan) -> None:
    """How far each law is from what was measured, in percent."""
    for number, (name, one) in enumerate((("E + A/N^α + B/D^β", law), ("Kaplan's form", other))):
        for runs, filled in ((rows, False), (held, True)):
            losses = [row["loss"] for row in runs]
            off = [100 * (one(row["parameters"], row["tokens"]) / row["loss"] - 1) for row in runs]
            label = f"{name}, held out" if filled else name
            face = COLOURS[number] if filled else "none"
            axes.plot(
                losses,
                off,
                MARKS[number],
                color=COLOURS[number],
                markerfacecolor=face,
                markersize=5,
                label=label,
            )
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set(
        xlabel="measured loss, nats",
        ylabel="predicted above measured, %",
        title="How far the laws are off",
    )
    axes.legend(frameon=False, fontsize=8)


def budgets_picture(
    laws: Mapping[str, Chinchilla], best: Chinchilla, others: Sequence[Chinchilla], *, budget: float
) -> Figure:
    """Tokens for each parameter at the best size, C = 6 N D, as the published numbers and our fit
    to the same points have it."""
    made, (axes,) = figure(1, width=6.4, height=4.0)
    flops = np.geomspace(1e18, 1e26, 60)
    for number, (name, law) in enumerate(laws.items()):
        axes.plot(
            flops,
            [ratio(law, one) for one in flops],
            color=COLOURS[number],
            linestyle=("-", "--")[number % 2],
            label=name,
        )
    found = [interval(ratio(best, one), [ratio(other, one) for other in others]) for one in flops]
    colour = COLOURS[len(laws)]
    axes.plot(
        flops,
        [one.mean for one in found],
        color=colour,
        linestyle=":",
        label="our fit to the published points, 95%",
    )
    axes.fill_between(
        flops,
        [one.low for one in found],
        [one.high for one in found],
        color=colour,
        alpha=0.18,
        linewidth=0,
    )
    axes.plot(
        [budget],
        [20],
        "*",
        color="black",
        markersize=11,
        label="Chinchilla: 70 billion, 1.4 trillion tokens",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="training compute, FLOP",
        ylabel="tokens for each parameter, D/N",
    )
    axes.set_title("What the published laws ask for")
    axes.legend(frameon=False, fontsize=8)
    return made


def ratio(law: Chinchilla, flops: float) -> float:
    parameters, tokens = law.best(flops)
    return tokens / parameters


def shade(number: int, of: int) -> Any:
    """From light to dark; the lightness alone tells them apart."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.12 + 0.85 * number / max(1, of - 1))


def short(size: float) -> str:
    return f"{size / 1000:.3g}k" if size < 1e6 else f"{size / 1e6:.3g}M"


def thousands(axes: Axes) -> None:
    """5k, 10k, 20k … along a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
