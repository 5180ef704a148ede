"""Figures of scaling laws: loss against data, against size at equal compute, prediction errors, and
tokens per parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.lab.measures.fitting import Chinchilla, Kaplan, bootstrap_interval
from sightline.lab.statistics import Interval
from sightline.lab.style import COLOURS, MARKS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
Of = Callable[[float], float]


def draw_laws(
    rows: Rows, held_rows: Rows, law: Chinchilla, other: Kaplan, *, cost_of: Of, parameters_of: Of
) -> Figure:
    figure, (data, compute, both) = new_figure(3, width=5.0, height=4.2)
    draw_by_data(data, rows, law)
    draw_by_size(compute, rows, held_rows, law, cost_of, parameters_of)
    draw_prediction_errors(both, rows, held_rows, law, other)
    return figure


def draw_by_data(axes: Axes, rows: Rows, law: Chinchilla) -> None:
    """Loss against tokens, one line per size."""
    from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

    sizes = sorted({row["parameters"] for row in rows})
    for number, size in enumerate(sizes):
        points = sorted((row["tokens"], row["loss"]) for row in rows if row["parameters"] == size)
        tokens = np.geomspace(points[0][0] / 1.15, points[-1][0] * 1.15, 50)
        colour = viridis_shade(number, len(sizes))
        mark = MARKS[number % len(MARKS)]
        axes.plot(tokens, [law(size, count) for count in tokens], color=colour, linewidth=1.1)
        axes.plot(
            *zip(*points, strict=True), mark, color=colour, markersize=5, label=short_count(size)
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="training characters, D",
        ylabel="held-out loss, nats",
        title="Loss against data",
    )
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    thousands_ticks(axes)
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


def draw_by_size(
    axes: Axes, rows: Rows, held_rows: Rows, law: Chinchilla, cost_of: Of, parameters_of: Of
) -> None:
    """IsoFLOP curves: loss against size, one curve per budget; that of the held-out budget is a
    prediction."""
    budgets = sorted({row["budget"] for row in rows})
    for number, flops in enumerate([*budgets, held_rows[0]["budget"]]):
        is_held_out = flops not in budgets
        budget_rows = [
            row for row in (held_rows if is_held_out else rows) if row["budget"] == flops
        ]
        widths = np.geomspace(
            min(row["width"] for row in budget_rows) / 1.15,
            max(row["width"] for row in budget_rows) * 1.15,
            200,
        )
        sizes, losses = zip(
            *(
                (parameters_of(width), law(parameters_of(width), flops / cost_of(width)))
                for width in widths
            ),
            strict=True,
        )
        colour = COLOURS[1] if is_held_out else viridis_shade(number, len(budgets))
        axes.plot(
            sizes, losses, color=colour, linewidth=1.1, linestyle="--" if is_held_out else "-"
        )
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
        draw_loss_points(
            axes, budget_rows, colour, label=f"{flops:.3g}" + (", held out" if is_held_out else "")
        )
    axes.set(
        xscale="log",
        xlabel="parameters without embeddings, N",
        ylabel="held-out loss, nats",
        title="Loss at equal compute",
    )
    thousands_ticks(axes)
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


def draw_loss_points(axes: Axes, rows: Rows, colour: Any, *, label: str) -> None:
    """Means over seeds, with intervals where there are several."""
    sizes = sorted({row["parameters"] for row in rows})
    intervals = [
        Interval.of([row["loss"] for row in rows if row["parameters"] == size]) for size in sizes
    ]
    reach = [
        [interval.mean - interval.low for interval in intervals],
        [interval.high - interval.mean for interval in intervals],
    ]
    has_seeds = max(interval.count for interval in intervals) > 1
    means = [interval.mean for interval in intervals]
    axes.errorbar(
        sizes,
        means,
        yerr=reach if has_seeds else None,
        fmt="s" if has_seeds else "o",
        color=colour,
        markersize=5,
        capsize=3,
        label=label,
    )


def draw_prediction_errors(
    axes: Axes, rows: Rows, held_rows: Rows, law: Chinchilla, other: Kaplan
) -> None:
    """Relative error of each law, in percent."""
    for number, (name, one) in enumerate((("E + A/N^α + B/D^β", law), ("Kaplan's form", other))):
        for runs, filled in ((rows, False), (held_rows, True)):
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
        title="Prediction errors",
    )
    axes.legend(frameon=False, fontsize=8)


def draw_budgets(
    laws: Mapping[str, Chinchilla], best: Chinchilla, others: Sequence[Chinchilla], *, budget: float
) -> Figure:
    """Tokens per parameter at the best size, C = 6 N D, for the published laws and our fit to the
    same points."""
    figure, (axes,) = new_figure(1, width=6.4, height=4.0)
    flops = np.geomspace(1e18, 1e26, 60)
    for number, (name, law) in enumerate(laws.items()):
        axes.plot(
            flops,
            [tokens_per_parameter(law, budget) for budget in flops],
            color=COLOURS[number],
            linestyle=("-", "--")[number % 2],
            label=name,
        )
    intervals = [
        bootstrap_interval(
            tokens_per_parameter(best, budget),
            [tokens_per_parameter(other, budget) for other in others],
        )
        for budget in flops
    ]
    colour = COLOURS[len(laws)]
    axes.plot(
        flops,
        [interval.mean for interval in intervals],
        color=colour,
        linestyle=":",
        label="our fit to the published points, 95%",
    )
    axes.fill_between(
        flops,
        [interval.low for interval in intervals],
        [interval.high for interval in intervals],
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
        ylabel="tokens per parameter, D/N",
    )
    axes.set_title("Tokens per parameter by the published laws")
    axes.legend(frameon=False, fontsize=8)
    return figure


def tokens_per_parameter(law: Chinchilla, flops: float) -> float:
    parameters, tokens = law.best(flops)
    return tokens / parameters


def viridis_shade(number: int, of: int) -> Any:
    """Light to dark, distinguishable by lightness alone."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.12 + 0.85 * number / max(1, of - 1))


def short_count(size: float) -> str:
    return f"{size / 1000:.3g}k" if size < 1e6 else f"{size / 1e6:.3g}M"


def thousands_ticks(axes: Axes) -> None:
    """5k, 10k, 20k … along a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
