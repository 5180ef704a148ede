"""`sightline compare`: runs side by side: a table, and their loss curves in one plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from sightline.cli.ui.completion import run_folders
from sightline.cli.ui.options.groups import OUTPUT
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.output import write, write_json
from sightline.cli.ui.runs import PastRun, Point, read_run
from sightline.errors import InputError
from sightline.escapes import escape_line
from sightline.terminal.console import Console
from sightline.terminal.curves import Curve, draw_curves, save_curves

HEADS = ("run", "recipe", "parameters", "steps", "time", "best validation")
MOST_POINTS = 500  # of a curve
PIPE_WIDTH = 100  # columns of the plot in a pipe
Loss = Literal["validation", "training"]


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class CurveOutputOptions(OutputOptions):
    """The table and plot in the terminal, a figure, or JSON."""

    out: Path | None = None
    """Draw the curves into a file: .svg, .png or .pdf."""


def compare(
    *runs: Annotated[Path, Parameter(negative=(), completer=run_folders)],
    of: Annotated[Loss | None, Parameter(show_default="validation, if every run has some")] = None,
    by: Literal["step", "time"] = "step",
    output: CurveOutputOptions = CurveOutputOptions(),
) -> None:
    """Compare runs: recipe, size, steps, time and best validation loss, and their loss curves.

    Parameters
    ----------
    runs
        Folders of `sightline train`.
    of
        The loss to plot: validation, or training (smoothed).
    by
        The x axis: steps, or training time.
    output.json
        Write JSON: the table, and every point of the curves.
    """
    if not runs:
        raise InputError(
            "no runs", expected="one or more folders", fix="sightline compare runs/a runs/b"
        )
    past_runs = [read_run(folder) for folder in runs]
    has_validation = all(len(run.validation) > 1 for run in past_runs)
    kind = of or ("validation" if has_validation else "training")
    curves = [curve for run in past_runs if (curve := loss_curve(run, kind, by)).points]
    x_label = "minutes" if by == "time" else "steps"
    y_label = f"{kind} loss, nats"
    if output.json:
        write_json([{**run_row(run), **run_points(run)} for run in past_runs])
    if output.out is not None:
        require_curves(curves, kind)
        save_curves(curves, output.out, x_label=x_label, y_label=y_label)
    if not output.json:
        show_runs(past_runs, curves, x_label=x_label, y_label=y_label)
        if output.out is not None:
            write("", f"drawn into {output.out}")


def show_runs(
    runs: Sequence[PastRun], curves: Sequence[Curve], *, x_label: str, y_label: str
) -> None:
    """The table and the plot."""
    screen = Console()
    write(*run_table([run_row(run) for run in runs]))
    if curves:
        write("", y_label)
        width = screen.width if screen.is_terminal else PIPE_WIDTH
        has_colours = screen.color_system is not None
        for line in draw_curves(curves, width=width, colours=has_colours, x_label=x_label):
            screen.print(line, soft_wrap=True)


def require_curves(curves: Sequence[Curve], kind: Loss) -> None:
    if not curves:
        other = "training" if kind == "validation" else "validation"
        raise InputError(
            f"no {kind} loss in these runs", expected="steps in metrics.jsonl", fix=f"--of {other}"
        )


def run_row(run: PastRun) -> dict[str, Any]:
    """The figures of a run."""
    from sightline.explain.counts import total_parameters

    config = run.config
    best = run.best
    return {
        "run": str(run.folder),
        "recipe": run.recipe,
        "parameters": None if config is None else total_parameters(config),
        "steps": run.steps,
        "seconds": run.seconds,
        "best": None if best is None else best.loss,
        "best_step": None if best is None else best.step,
    }


def run_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line per run, the best validation loss marked."""
    from sightline.cli.ui.training_view import clock

    least = min((row["best"] for row in rows if row["best"] is not None), default=None)
    lines: list[tuple[str, ...]] = [HEADS]
    for row in rows:
        best = "–" if row["best"] is None else f"{row['best']:.4f} at {row['best_step']:,}"
        star = " *" if len(rows) > 1 and row["best"] is not None and row["best"] == least else ""
        size = "?" if row["parameters"] is None else f"{row['parameters']:,}"
        lines.append(
            (
                escape_line(row["run"]),
                escape_line(row["recipe"]),
                size,
                f"{row['steps']:,}",
                clock(row["seconds"]),
                best + star,
            )
        )
    wide = [max(len(line[n]) for line in lines) for n in range(len(HEADS))]
    sides = "<<>>><"
    return [
        "   ".join(
            f"{cell:{side}{size}}" for cell, side, size in zip(line, sides, wide, strict=True)
        ).rstrip()
        for line in lines
    ]


def loss_curve(run: PastRun, kind: Loss, by: str) -> Curve:
    """The losses of a run, thinned to about MOST_POINTS points, the last included."""
    losses = run.validation if kind == "validation" else run.smoothed
    every = max(1, len(losses) // MOST_POINTS)
    last = len(losses) - 1
    thinned = [point for n, point in enumerate(losses) if n % every == 0 or n == last]
    if by == "time":
        points = [(point.seconds / 60, point.loss) for point in thinned]
    else:
        points = [(float(point.step), point.loss) for point in thinned]
    return Curve(str(run.folder), points)


def run_points(run: PastRun) -> dict[str, Any]:
    return {"validation": points_json(run.validation), "training": points_json(run.training)}


def points_json(points: Sequence[Point]) -> list[dict[str, float]]:
    return [{"step": point.step, "seconds": point.seconds, "loss": point.loss} for point in points]
