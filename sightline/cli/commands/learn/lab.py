"""`sightline lab`: claims of the theory as experiments with a verdict."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sightline.cli.ui.arguments import Count
from sightline.cli.ui.output import write, write_json
from sightline.errors import InputError, nearest
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.lab.experiment import Experiment, Finding, Tier

FOLDER = Path("lab")
STYLES = {"supported": "green", "not supported": "red", "inconclusive": "yellow"}
MARKS = {True: "✓", False: "✗", None: "?"}
ACTIONS = ("list", "run", "report")
lab = App(name="lab", help="Claims of the theory as experiments with a verdict.")


@lab.default
def other(*words: Annotated[str, Parameter(show=False)]) -> None:
    """Claims of the theory as experiments with a verdict."""
    if not words:
        raise InputError(
            "nothing to do", expected="list, run or report", fix="sightline lab --help"
        )
    raise InputError(
        f"sightline lab has no command {words[0][:100]!r}", fix=nearest(words[0][:100], ACTIONS)
    )


@lab.command(name="list")
def show_list(*, json: bool = False) -> None:
    """The experiments: name, claim, source.

    Parameters
    ----------
    json
        Write a list of objects.
    """
    from sightline.lab.catalogue import EXPERIMENTS

    if json:
        write_json([about(one) for one in EXPERIMENTS.values()])
        return
    table = Table("name", "claim", "source", box=None, padding=(0, 2, 0, 0))
    table.columns[0].min_width = max(map(len, EXPERIMENTS))
    for one in EXPERIMENTS.values():
        table.add_row(Text(one.name, "bold"), one.claim.en, Text(one.source, "dim"))
    Console().print(table)


def about(experiment: Experiment) -> dict[str, Any]:
    texts = {
        name: {"en": words.en, "ja": words.ja}
        for name, words in (("title", experiment.title), ("claim", experiment.claim))
    }
    return {
        "name": experiment.name,
        **texts,
        "source": experiment.source,
        "equation": experiment.equation,
    }


@lab.command
def run(
    name: str,
    /,
    *,
    seed: Count = 0,
    quick: bool = False,
    full: bool = False,
    out: Path = FOLDER,
    json: bool = False,
) -> None:
    """Run an experiment, or all of them. What was measured before is not measured again; Ctrl-C
    loses nothing that was.

    Parameters
    ----------
    name
        One of `sightline lab list`, or all.
    seed
        The first of the seeds.
    quick
        At most a minute for each: fewer seeds, smaller sizes.
    full
        As long as it takes.
    out
        The folder of the results and figures.
    json
        Write the findings as JSON.
    """
    from sightline.lab.catalogue import EXPERIMENTS
    from sightline.lab.executor import find_experiment

    if quick and full:
        raise InputError("--quick and --full", expected="one of them", fix="--quick")
    tier: Tier = "quick" if quick else "full" if full else "default"
    chosen = list(EXPERIMENTS.values()) if name == "all" else [find_experiment(name)]
    found = [measured(one, out, tier, seed or 0, silent=json) for one in chosen]
    if json:
        write_json([plain(one) for one in found])
    elif len(found) > 1:
        show_all(found, out, Console())


def measured(experiment: Experiment, out: Path, tier: Tier, seed: int, *, silent: bool) -> Finding:
    """One experiment with its progress on stderr, and then what was found."""
    from sightline.lab.executor import finding, steps
    from sightline.lab.style import save_figure

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(experiment.name, total=None)
        for step in steps(experiment, out, tier=tier, seed=seed):
            bar.update(
                task,
                total=step.of,
                completed=step.number,
                description=f"{experiment.name} {step.part}",
            )
    found = finding(experiment, out, tier=tier, seed=seed)
    assert found is not None
    with found.using_numbers():
        pictures = [
            path for name, made in found.figures().items() for path in save_figure(made, out / name)
        ]
    if not silent:
        show(found, pictures, Console())
    return found


def show(found: Finding, pictures: list[Path], screen: Console) -> None:
    """The claim, what was measured of it, and the verdict."""
    experiment = found.experiment
    screen.rule(Text(experiment.title.en, "bold"), align="left")
    screen.print(
        Text.assemble(
            experiment.claim.en, (f" ({experiment.source})", "dim"), f"\n{experiment.equation}\n"
        )
    )
    for check in found.checks:
        screen.print(f"  {MARKS[check.holds]} {check.statement.en}: {check.measured}")
    time = f"  {found.tier}, {found.seconds:.1f} core-seconds"
    screen.print(
        Text.assemble("\n", (found.verdict, f"bold {STYLES[found.verdict]}"), (time, "dim"))
    )
    for path in pictures:
        screen.print(str(path), style="dim", soft_wrap=True)


def show_all(found: list[Finding], out: Path, screen: Console) -> None:
    """The verdicts once more, and where to read on."""
    table = Table("experiment", "verdict", "core-seconds", box=None, padding=(0, 2, 0, 0))
    table.columns[-1].justify = "right"
    for one in found:
        table.add_row(
            one.experiment.name, Text(one.verdict, STYLES[one.verdict]), f"{one.seconds:,.0f}"
        )
    screen.rule(Text("All of them", "bold"), align="left")
    screen.print(table)
    where = "" if out == FOLDER else f" {shlex.quote(str(out))}"
    screen.print(f"\nread on: sightline lab report{where} --seed {found[0].seed}", soft_wrap=True)


def plain(found: Finding) -> dict[str, Any]:
    """A finding as JSON has it."""
    checks = [
        {"says": check.statement.en, "holds": check.holds, "found": check.measured}
        for check in found.checks
    ]
    said = {
        "experiment": found.experiment.name,
        "tier": found.tier,
        "seed": found.seed,
        "verdict": found.verdict,
        "checks": checks,
    }
    return said | {
        "core_seconds": found.seconds,
        "complete": found.complete,
        "versions": dict(found.versions),
        "numbers": dict(found.numbers),
    }


@lab.command
def report(
    results: Path = FOLDER,
    /,
    *,
    out: Path | None = None,
    language: Literal["en", "ja"] = "en",
    seed: Count = None,
) -> None:
    """All findings of a folder as one offline page (.html), or as Markdown (.md) with its figures
    beside it.

    Parameters
    ----------
    results
        The folder that `sightline lab run` wrote; by default lab.
    out
        The page to write; by default report.html in that folder.
    language
        English or Japanese.
    seed
        The first of the seeds; by default the one with the most findings.
    """
    from sightline.lab.report import write_html, write_markdown

    page = results / "report.html" if out is None else out
    if page.suffix.lower() not in (".html", ".md"):
        fix = (
            f"sightline lab report {shlex.quote(str(page))}"
            if page.is_dir()
            else f"--out {page.stem}.html"
        )
        raise InputError(
            f"a report as {page.suffix or page.name!r}", expected=".html or .md", fix=fix
        )
    write_page = write_html if page.suffix.lower() == ".html" else write_markdown
    write(write_page(finished(results, seed), page, language=language))


def finished(results: Path, seed: int | None) -> list[Finding]:
    """The findings of a seed, or of the one that has most of them."""
    from sightline.lab.results import seeds_in

    found = max(
        (findings_of(results, one) for one in (seeds_in(results) if seed is None else [seed])),
        key=len,
        default=[],
    )
    if not found:
        others = [] if seed is None else seeds_in(results)
        seen = f"no finished experiment in {results}"
        fix = f"--seed {others[0]}" if others else "sightline lab run all --quick"
        raise InputError(
            seen if seed is None else f"{seen} with seed {seed}",
            expected="results of `sightline lab run`",
            fix=fix,
        )
    return found


def findings_of(out: Path, seed: int) -> list[Finding]:
    """What is finished, of each experiment in its longest tier."""
    from sightline.lab.catalogue import EXPERIMENTS
    from sightline.lab.executor import finding
    from sightline.lab.experiment import TIERS

    found: list[Finding] = []
    for experiment in EXPERIMENTS.values():
        at_hand = [finding(experiment, out, tier=tier, seed=seed) for tier in reversed(TIERS)]
        found += [one for one in at_hand if one is not None and one.complete][:1]
    return found
