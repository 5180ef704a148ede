"""`sightline lab`: claims about Transformers as experiments with a verdict."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sightline.cli.ui.completion import experiment_names
from sightline.cli.ui.options.groups import OPTIONS, command_with_actions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count
from sightline.cli.ui.output import note, write, write_json
from sightline.errors import InputError, nearest
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.lab.experiment import Experiment, Finding, Tier

FOLDER = Path("lab")
STYLES = {"supported": "green", "not supported": "red", "inconclusive": "yellow"}
MARKS = {True: "✓", False: "✗", None: "?"}
ACTIONS = ("list", "run", "report")
lab = command_with_actions("lab")


@lab.default
def refuse_lab_action(*words: Annotated[str, Parameter(show=False)]) -> None:
    """Claims about Transformers as experiments with a verdict."""
    if not words:
        raise InputError(
            "nothing to do", expected="list, run or report", fix="sightline lab --help"
        )
    raise InputError(
        f"sightline lab has no command {words[0][:100]!r}", fix=nearest(words[0][:100], ACTIONS)
    )


@lab.command(name="list")
def list_experiments(*, output: OutputOptions = OutputOptions()) -> None:
    """List the experiments: name, claim, source.

    Parameters
    ----------
    output.json
        Write JSON: one object per experiment.
    """
    from sightline.lab.catalogue import EXPERIMENTS

    if output.json:
        write_json([experiment_dict(experiment) for experiment in EXPERIMENTS.values()])
        return
    table = Table("name", "claim", "source", box=None, padding=(0, 2, 0, 0))
    table.columns[0].min_width = max(map(len, EXPERIMENTS))
    for experiment in EXPERIMENTS.values():
        table.add_row(
            Text(experiment.name, "bold"), experiment.claim.en, Text(experiment.source, "dim")
        )
    Console().print(table)


def experiment_dict(experiment: Experiment) -> dict[str, Any]:
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


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """How long an experiment takes, and its seed."""

    seed: Count = 100
    """The first of the seeds, at least 100; learning rates are chosen with those below."""

    quick: bool = False
    """At most a minute per experiment: fewer seeds, smaller sizes."""

    full: bool = False
    """All seeds and sizes, however long it takes."""

    settle: bool = False
    """Measure more seeds, as many as the experiment declares, for checks that are undecided."""

    minutes: Annotated[float | None, Parameter(show_default="no limit")] = None
    """Stop after this time; run again to continue."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(
                f"--minutes {self.minutes:g}", expected="more than 0", fix="--minutes 30"
            )

    def tier(self) -> Tier:
        if self.quick and self.full:
            raise InputError("--quick and --full", expected="one of them", fix="--quick")
        if self.quick:
            return "quick"
        return "full" if self.full else "default"


@lab.command
def run(
    name: Annotated[str, Parameter(completer=experiment_names)],
    /,
    *,
    options: LabOptions = LabOptions(),
    out: Path = FOLDER,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Run an experiment, or all of them.

    Measurements are saved one by one: after Ctrl-C, or in a later run, none is repeated.

    Parameters
    ----------
    name
        An experiment of `sightline lab list`, or all.
    out
        Folder of the results and figures.
    output.json
        Write JSON: the findings with all numbers.
    """
    from sightline.lab.catalogue import EXPERIMENTS
    from sightline.lab.executor import find_experiment

    tier = options.tier()
    experiments = list(EXPERIMENTS.values()) if name == "all" else [find_experiment(name)]
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    findings = [
        run_experiment(experiment, out, tier, options, silent=output.json, until=until)
        for experiment in experiments
    ]
    if output.json:
        write_json([finding_dict(finding) for finding in findings])
    elif len(findings) > 1:
        show_verdicts(findings, out, Console())


def run_experiment(
    experiment: Experiment,
    out: Path,
    tier: Tier,
    options: LabOptions,
    *,
    silent: bool,
    until: float | None = None,
) -> Finding:
    """Run one experiment with its progress on stderr, and show its finding."""
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
        seed = options.seed
        assert seed is not None
        for step in steps(experiment, out, tier=tier, seed=seed, settle=options.settle):
            bar.update(
                task,
                total=step.of,
                completed=step.number,
                description=f"{experiment.name} {step.part}",
            )
            if until is not None and time.monotonic() > until:
                note(f"{experiment.name}: the time is over; run it again to continue")
                break
    result = finding(experiment, out, tier=tier, seed=seed)
    assert result is not None
    with result.using_numbers():
        figures = result.figures().items()
        paths = [path for name, figure in figures for path in save_figure(figure, out / name)]
    if not silent:
        show_finding(result, paths, Console())
    return result


def show_finding(finding: Finding, paths: list[Path], screen: Console) -> None:
    """The claim, the checks and the verdict."""
    from sightline.lab.report import design_lines

    experiment = finding.experiment
    screen.rule(Text(experiment.title.en, "bold"), align="left")
    screen.print(
        Text.assemble(
            experiment.claim.en, (f" ({experiment.source})", "dim"), f"\n{experiment.equation}\n"
        )
    )
    for check in finding.checks:
        screen.print(
            f"  {MARKS[check.holds]} {check.statement.en}: {finding.measured(check)}", markup=False
        )
    duration = f"  {finding.tier}, {finding.seconds:.1f} core-seconds"
    for line in design_lines(finding):
        screen.print(f"  {line['en']}", style="dim", markup=False)
    screen.print(
        Text.assemble("\n", (finding.verdict, f"bold {STYLES[finding.verdict]}"), (duration, "dim"))
    )
    for path in paths:
        screen.print(str(path), style="dim", soft_wrap=True)


def show_verdicts(findings: list[Finding], out: Path, screen: Console) -> None:
    """All verdicts in a table, and the command for the report."""
    table = Table("experiment", "verdict", "core-seconds", box=None, padding=(0, 2, 0, 0))
    table.columns[-1].justify = "right"
    for finding in findings:
        verdict = Text(finding.verdict, STYLES[finding.verdict])
        table.add_row(finding.experiment.name, verdict, f"{finding.seconds:,.0f}")
    screen.rule(Text("All experiments", "bold"), align="left")
    screen.print(table)
    where = "" if out == FOLDER else f" {shlex.quote(str(out))}"
    screen.print(f"\nreport: sightline lab report{where} --seed {findings[0].seed}", soft_wrap=True)


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding as a JSON object."""
    checks = [
        {
            "says": check.statement.en,
            "holds": check.holds,
            "found": check.measured,
            "effect": check.effect,
            "seeds": max((one.seeds for one in check.decisions), default=None),
            "seeds_needed": check.power.needed if check.power else None,
        }
        for check in finding.checks
    ]
    result = {
        "experiment": finding.experiment.name,
        "tier": finding.tier,
        "seed": finding.seed,
        "verdict": finding.verdict,
        "checks": checks,
    }
    return result | {
        "rates": {
            arm: {"rate": tuned.rate, "at_edge": tuned.at_edge, "scores": dict(tuned.scores)}
            for arm, tuned in finding.rates.items()
        },
        "core_seconds": finding.seconds,
        "complete": finding.complete,
        "versions": dict(finding.versions),
        "numbers": dict(finding.numbers),
    }


@lab.command
def report(
    results: Path = FOLDER,
    /,
    *,
    out: Annotated[Path | None, Parameter(show_default="report.html in the folder")] = None,
    language: Literal["en", "ja"] = "en",
    seed: Annotated[Count, Parameter(show_default="the one with the most findings")] = None,
) -> None:
    """Write all findings of a folder as one offline HTML page, or as Markdown with its figures.

    If the folder has results of several seeds, a table compares their verdicts.

    Parameters
    ----------
    results
        The folder written by `sightline lab run`.
    out
        The page to write: .html or .md.
    language
        Language of the page.
    seed
        The seed of the findings.
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
    findings = finished_findings(results, seed)
    write(write_page(findings, page, language=language, others=other_runs(results, findings)))


def other_runs(results: Path, findings: list[Finding]) -> list[Finding]:
    """Findings of the same tiers with other seeds."""
    from sightline.lab.results import seeds_in

    tiers = {finding.experiment.name: finding.tier for finding in findings}
    return [
        finding
        for seed in seeds_in(results)
        if seed != findings[0].seed
        for finding in findings_of(results, seed)
        if tiers.get(finding.experiment.name) == finding.tier
    ]


def finished_findings(results: Path, seed: int | None) -> list[Finding]:
    """The findings of a seed, or of the seed that has the most of them."""
    from sightline.lab.results import seeds_in

    seeds = seeds_in(results) if seed is None else [seed]
    findings = max((findings_of(results, seed) for seed in seeds), key=len, default=[])
    if not findings:
        others = [] if seed is None else seeds_in(results)
        seen = f"no finished experiment in {results}"
        fix = f"--seed {others[0]}" if others else "sightline lab run all --quick"
        raise InputError(
            seen if seed is None else f"{seen} with seed {seed}",
            expected="results of `sightline lab run`",
            fix=fix,
        )
    return findings


def findings_of(out: Path, seed: int) -> list[Finding]:
    """The finished findings of a seed, each experiment in its longest tier."""
    from sightline.lab.catalogue import EXPERIMENTS
    from sightline.lab.executor import finding
    from sightline.lab.experiment import TIERS

    findings: list[Finding] = []
    for experiment in EXPERIMENTS.values():
        tiers = [finding(experiment, out, tier=tier, seed=seed) for tier in reversed(TIERS)]
        findings += [finding for finding in tiers if finding is not None and finding.complete][:1]
    return findings
