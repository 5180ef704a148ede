"""The numbers of the experiment `geometry` by model, kind and change, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Numbers
from sightline.lab.statistics import Interval, paired_difference
from sightline.lab.style import COLOURS, MARKS, new_figure, plot_mean
from sightline.lab.tuning import tuned_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL_NAMES = {"smollm2-135m-instruct": "SmolLM2", "stories15m": "stories15m"}
WHERE = {
    "zero equal all": "from zero",
    "zero equal others": "from zero, first key kept",
    "mean equal all": "from the mean",
    "mean equal others": "from the mean, first key kept",
    "zero shuffled all": "from zero, shuffled",
    "zero shuffled others": "from zero, shuffled, first key kept",
}
KINDS = ("dot", "cosine", "ngpt")
NAMES = {"dot": "dot product", "cosine": "cosine", "ngpt": "nGPT"}


def texts_of(numbers: Numbers, model: str) -> list[Mapping[str, Any]]:
    """All texts of one real model."""
    return [row for name, row in numbers.items() if name.startswith(f"real.{model}.")]


def models_in(numbers: Numbers) -> list[str]:
    return [model for model in MODEL_NAMES if texts_of(numbers, model)]


def costs_of(numbers: Numbers, model: str, where: str, part: str) -> list[float]:
    """Nats per token that a change costs in each text: `zero equal others`, `length`."""
    origin, how, which = where.split()
    return [
        row["losses"][f"{origin} {how} {part} {which}"] - row["losses"]["as is"]
        for row in texts_of(numbers, model)
    ]


def extra_cost_of_direction(numbers: Numbers, model: str, where: str) -> Interval:
    """The cost of the change in direction − that in length, text by text."""
    return paired_difference(
        *(costs_of(numbers, model, where, part) for part in ("direction", "length"))
    )


def runs_of_kind(numbers: Numbers, kind: str) -> list[Mapping[str, Any]]:
    """All seeds of one kind at its tuned rate."""
    return [row for name, row in numbers.items() if name.startswith(f"trained.{kind}.")]


def column(numbers: Numbers, kind: str, name: str) -> list[float]:
    return [row[name] for row in runs_of_kind(numbers, kind)]


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
    runs = {kind: runs_of_kind(numbers, kind) for kind in KINDS}
    target = max(Interval.of([row["course"][-1] for row in rows]).mean for rows in runs.values())
    return target, {
        kind: [steps_to_loss(row, target) for row in rows] for kind, rows in runs.items()
    }


# ---------------------------------------------------------------------------------------- figures


def draw_geometry_figures(numbers: Numbers) -> Mapping[str, Figure]:
    return {
        "geometry-real": draw_costs(numbers),
        "geometry-shares": draw_shares(numbers),
        "geometry-trained": draw_trained_kinds(numbers),
    }


def draw_costs(numbers: Numbers) -> Figure:
    """What each change of the keys costs each real model."""
    models = models_in(numbers)
    figure, panels = new_figure(len(models), width=5.4)
    for axes, model in zip(panels, models, strict=True):
        for number, part in enumerate(("length", "direction")):
            costs = [Interval.of(costs_of(numbers, model, where, part)) for where in WHERE]
            places = [place + 0.12 * (2 * number - 1) for place in range(len(WHERE))]
            axes.hlines(places, [c.low for c in costs], [c.high for c in costs], COLOURS[number])
            axes.plot(
                [cost.mean for cost in costs],
                places,
                linestyle="",
                marker=MARKS[number],
                color=COLOURS[number],
                label=f"without differences in {part}",
            )
        axes.set_yticks(range(len(WHERE)), labels=list(WHERE.values()))
        axes.set(
            ylim=(len(WHERE) - 0.5, -0.5),
            xlim=(min(0.0, axes.get_xlim()[0]), None),
            xlabel="additional loss, nats per token",
            title=MODEL_NAMES[model],
        )
        axes.axvline(0, color="0", linewidth=0.8)
    panels[0].set_ylabel("origin of the lengths")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def draw_shares(numbers: Numbers) -> Figure:
    """Per layer: the share of direction from both origins, and the length of the first key."""
    models = models_in(numbers)
    figure, panels = new_figure(2 * len(models), width=3.6)
    for model, shares, lengths in zip(models, panels[::2], panels[1::2], strict=True):
        rows = texts_of(numbers, model)
        for number, name in enumerate(("zero all", "mean all", "zero others", "mean others")):
            plot_by_layer(shares, [row["shares"][name] for row in rows], SHARE_NAMES[name], number)
        for number, name in enumerate(("first length", "other length")):
            plot_by_layer(lengths, [row[name] for row in rows], LENGTH_NAMES[name], number)
        shares.axhline(1.0, color="0.5", linestyle=":", linewidth=1)
        shares.set(
            ylim=(0, None),
            ylabel="share of direction",
            title=f"{MODEL_NAMES[model]}: share in the scores",
        )
        lengths.set(
            ylabel="mean |k|", ylim=(0, None), title=f"{MODEL_NAMES[model]}: length of the keys"
        )
        for axes in (shares, lengths):
            axes.set_xlabel("layer")
            axes.legend(frameon=False, fontsize=7)
    return figure


SHARE_NAMES = {
    "zero all": "from zero",
    "mean all": "from the mean",
    "zero others": "from zero, without the first",
    "mean others": "from the mean, without the first",
}
LENGTH_NAMES = {"first length": "first key", "other length": "other keys"}


def plot_by_layer(axes: Axes, rows: Sequence[Sequence[float]], label: str, number: int) -> None:
    intervals = [Interval.of(list(column)) for column in zip(*rows, strict=True)]
    plot_mean(
        axes, [float(n) for n in range(len(intervals))], intervals, label=label, number=number
    )


def draw_trained_kinds(numbers: Numbers) -> Figure:
    """The learning curve, the pilots' loss against the learning rate, and the cost of equal
    lengths."""
    figure, (course, rates, costs) = new_figure(3, width=3.8)
    tuned = tuned_rates(numbers)
    for number, kind in enumerate(KINDS):
        rows = runs_of_kind(numbers, kind)
        steps = [float(n) for n in range(1, len(rows[0]["course"]) + 1)]
        course.plot(
            steps,
            [Interval.of([row["course"][n] for row in rows]).mean for n in range(len(steps))],
            color=COLOURS[number],
            label=NAMES[kind],
        )
        rates.plot(
            [rate for rate, _ in tuned[kind].scores],
            [score for _, score in tuned[kind].scores],
            marker=MARKS[number],
            color=COLOURS[number],
            label=NAMES[kind],
        )
        values = column(numbers, kind, "equal lengths")
        costs.scatter([number] * len(values), values, color=COLOURS[number], s=24)
    course.axhline(steps_to_common_loss(numbers)[0], color="0.5", linestyle=":", linewidth=1)
    course.set(
        xlabel="step",
        ylabel="loss, nats (smoothed)",
        title="Each at its tuned rate",
        xscale="log",
    )
    rates.set(xscale="log", xlabel="learning rate", ylabel="held-out loss, nats", title="Pilots")
    costs.set(title="Cost of equal key lengths", ylabel="nats per character", xlim=(-0.5, 2.5))
    costs.set_xticks(range(len(KINDS)), labels=[NAMES[kind] for kind in KINDS])
    costs.axhline(0, color="0.5", linewidth=0.8)
    course.legend(frameon=False)
    return figure
