"""`sightline compare`: runs beside each other, as a table, and their losses over each other, as
curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from sightline.cli.ui.output import write, write_json
from sightline.cli.ui.runs import PastRun, Point, read_run
from sightline.errors import InputError
from sightline.escapes import escape_line
from sightline.terminal.console import Console
from sightline.terminal.curves import Curve, draw, save

HEADS = ("run", "recipe", "parameters", "steps", "time", "best validation")
MOST_POINTS = 500  # of a curve


def compare(
    *runs: Annotated[Path, Parameter(negative=())],
    of: Literal["validation", "training"] | None = None,
    by: Literal["step", "time"] = "step",
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Runs beside each other: recipe, size, steps, time, best validation loss; and their losses as
    curves.

    Parameters
    ----------
    runs
        Folders of `sightline train`.
    of
        The loss that is drawn: validation, or training (smoothed). By default validation, if every
        run has some.
    by
        Along the steps, or along the time that was spent training.
    out
        Draw the curves into a file: .svg, .png, .pdf.
    json
        Write JSON: the table, and every point of the curves.
    """
    if not runs:
        raise InputError(
            "no runs", expected="one or more folders", fix="sightline compare runs/a runs/b"
        )
    found = [read_run(folder) for folder in runs]
    kind = of or ("validation" if all(len(run.validation) > 1 for run in found) else "training")
    if json:
        write_json([{**row(run), **points(run)} for run in found])
    curves = [curve for run in found if (curve := curve_of(run, kind, by)).points]
    along = "minutes" if by == "time" else "steps"
    what = f"{kind} loss, nats"
    if out is not None:
        drawable(curves, kind)
        save(curves, out, along=along, what=what)
    if not json:
        show(found, curves, along=along, what=what)
        if out is not None:
            write("", f"drawn into {out}")


def show(found: Sequence[PastRun], curves: Sequence[Curve], *, along: str, what: str) -> None:
    """The table and the plot."""
    screen = Console()
    write(*table([row(run) for run in found]))
    if curves:
        write("", what)
        for line in draw(
            curves,
            width=screen.width if screen.is_terminal else 100,
            colours=screen.color_system is not None,
            along=along,
        ):
            screen.print(line, soft_wrap=True)


def drawable(curves: Sequence[Curve], kind: str) -> None:
    if not curves:
        other = "training" if kind == "validation" else "validation"
        raise InputError(
            f"no {kind} loss in these runs", expected="steps in metrics.jsonl", fix=f"--of {other}"
        )


def row(run: PastRun) -> dict[str, Any]:
    """A run in figures."""
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


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each run, the best validation marked."""
    from sightline.cli.ui.training_view import clock

    least = min((row["best"] for row in rows if row["best"] is not None), default=None)
    lines: list[tuple[str, ...]] = [HEADS]
    for one in rows:
        best = "–" if one["best"] is None else f"{one['best']:.4f} at {one['best_step']:,}"
        star = " *" if len(rows) > 1 and one["best"] is not None and one["best"] == least else ""
        size = "?" if one["parameters"] is None else f"{one['parameters']:,}"
        lines.append(
            (
                escape_line(one["run"]),
                escape_line(one["recipe"]),
                size,
                f"{one['steps']:,}",
                clock(one["seconds"]),
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


def curve_of(run: PastRun, kind: str, by: str) -> Curve:
    """At most some hundred points, the last one among them."""
    chosen = run.validation if kind == "validation" else run.smoothed
    every = max(1, len(chosen) // MOST_POINTS)
    thinned = [point for n, point in enumerate(chosen) if n % every == 0 or n == len(chosen) - 1]
    return Curve(
        str(run.folder),
        [(point.seconds / 60 if by == "time" else point.step, point.loss) for point in thinned],
    )


def points(run: PastRun) -> dict[str, Any]:
    return {"validation": plain(run.validation), "training": plain(run.training)}


def plain(found: Sequence[Point]) -> list[dict[str, float]]:
    return [{"step": point.step, "seconds": point.seconds, "loss": point.loss} for point in found]
