"""Run an experiment: measure its parts and save each one as soon as it is done.

for event in steps(experiment, folder): …        progress
finding(experiment, folder)                       the saved result, judged
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import InputError, nearest
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiment import (
    FIRST_SEED,
    TIERS,
    Experiment,
    ExperimentPart,
    Finding,
    Plan,
    Tier,
)
from sightline.lab.results import Result, measuring_versions, read_result, result_path, write_result
from sightline.lab.tuning import PILOT_SEED, tuned_rates
from sightline.lab.workers import measure_in_parallel, measure_in_process

FOLDER = Path("lab")


@dataclass(frozen=True, slots=True)
class Progress:
    """A part that was just measured, or that a saved result already had (`resumed`)."""

    experiment: str
    part: str
    number: int
    of: int
    seconds: float
    resumed: bool


def find_experiment(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in EXPERIMENTS:
        raise InputError(
            f"no experiment is called {name[:60]!r}", fix=nearest(name[:60], EXPERIMENTS)
        )
    return EXPERIMENTS[name]


def steps(
    experiment: Experiment,
    folder: Path = FOLDER,
    *,
    tier: Tier = "default",
    seed: int = FIRST_SEED,
    settle: bool = False,
) -> Iterator[Progress]:
    """Measure the pilots, then the parts, that the saved results lack, in parallel where there are
    cores.

    Every finished part is saved: stopping, a part that fails or a killed worker (PartError) loses
    none of them. The pilots have a file of their own, which runs with other seeds share.
    """
    check_tier(tier)
    check_seed(seed)
    pilots = list(experiment.pilots(tier))
    if pilots:
        yield from measure_missing(experiment, folder, Plan(tier, PILOT_SEED), pilots)
    plan = plan_of(experiment, folder, tier, seed, settle=settle)
    yield from measure_missing(experiment, folder, plan, list(experiment.parts(plan)))


def measure_missing(
    experiment: Experiment, folder: Path, plan: Plan, parts: Sequence[ExperimentPart]
) -> Iterator[Progress]:
    """Measure the parts that the file of this tier and seed lacks."""
    path = result_path(folder, experiment.name, plan.tier, plan.seed)
    result = (
        read_result(path)
        if path.exists()
        else Result(experiment.name, plan.tier, plan.seed, versions=measuring_versions())
    )
    done = [part.name for part in parts if part.name in result.parts]
    for number, name in enumerate(done, start=1):
        yield Progress(
            experiment.name, name, number, len(parts), result.seconds.get(name, 0.0), True
        )
    remaining = [part for part in parts if part.name not in result.parts]
    can_run_in_parallel = EXPERIMENTS.get(experiment.name) is experiment and len(remaining) > 1
    measurements = (
        measure_in_parallel(experiment, remaining, plan)
        if can_run_in_parallel
        else measure_in_process(experiment, remaining)
    )
    for number, (name, numbers, seconds) in enumerate(measurements, start=len(done) + 1):
        result.parts[name], result.seconds[name] = numbers, seconds
        write_result(path, result)
        yield Progress(experiment.name, name, number, len(parts), seconds, False)


def plan_of(experiment: Experiment, folder: Path, tier: Tier, seed: int, *, settle: bool) -> Plan:
    """The plan, with the rates that the pilots in this folder chose."""
    rates = tuned_rates(saved_parts(experiment, folder, tier, PILOT_SEED).parts)
    return Plan(tier, seed, rates, experiment.settle if settle else None)


def saved_parts(experiment: Experiment, folder: Path, tier: Tier, seed: int) -> Result:
    """What is saved; nothing if there is no file."""
    path = result_path(folder, experiment.name, tier, seed)
    return read_result(path) if path.exists() else Result(experiment.name, tier, seed)


def finding(
    experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = FIRST_SEED
) -> Finding | None:
    """The saved result of an experiment, or None if there is none: with the seeds of `--settle` if
    all of them are there."""
    files = [result_path(folder, experiment.name, tier, one) for one in (seed, PILOT_SEED)]
    if not any(file.exists() for file in files):
        return None
    settled = experiment.settle and finding_of_plan(experiment, folder, tier, seed, settle=True)
    if settled and settled.complete:
        return settled
    return finding_of_plan(experiment, folder, tier, seed, settle=False)


def finding_of_plan(
    experiment: Experiment, folder: Path, tier: Tier, seed: int, *, settle: bool
) -> Finding:
    pilots = saved_parts(experiment, folder, tier, PILOT_SEED)
    result = saved_parts(experiment, folder, tier, seed)
    pilot_names = [part.name for part in experiment.pilots(tier)]
    is_tuned = all(name in pilots.parts for name in pilot_names)
    plan = plan_of(experiment, folder, tier, seed, settle=settle)
    names = [part.name for part in experiment.parts(plan)] if is_tuned else []
    numbers = {name: pilots.parts[name] for name in pilot_names if name in pilots.parts}
    numbers |= {name: result.parts[name] for name in names if name in result.parts}
    of_seeds = [name for name in names if re.search(r"\.seed-\d+$", name)]
    seeds = len({name.rsplit("-", 1)[1] for name in of_seeds})
    return Finding(
        experiment=experiment,
        tier=tier,
        seed=seed,
        numbers=numbers,
        seconds=sum(pilots.seconds.get(name, 0.0) for name in pilot_names)
        + sum(result.seconds.get(name, 0.0) for name in names),
        complete=is_tuned and all(name in result.parts for name in names),
        rates=plan.rates,
        seeds=seeds,
        seconds_per_seed=sum(result.seconds.get(name, 0.0) for name in of_seeds) / max(1, seeds),
        versions=result.versions,
        path=result_path(folder, experiment.name, tier, seed),
    )


def run(
    name: str,
    *,
    tier: Tier = "default",
    seed: int = FIRST_SEED,
    settle: bool = False,
    out: Path | str = FOLDER,
    progress: Callable[[Progress], None] | None = None,
) -> Finding:
    """Run an experiment and return its finding: `sl.lab.run("softmax-saturation").verdict`."""
    experiment = find_experiment(name)
    folder = Path(out)
    for step in steps(experiment, folder, tier=tier, seed=seed, settle=settle):
        if progress is not None:
            progress(step)
    result = finding(experiment, folder, tier=tier, seed=seed)
    assert result is not None
    return result


def check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise InputError(
            f"no tier is called {tier!r}", expected=", ".join(TIERS), fix=nearest(tier, TIERS)
        )


def check_seed(seed: int) -> None:
    if seed < FIRST_SEED:
        raise InputError(
            f"the first seed is {seed}",
            expected=f"{FIRST_SEED} or more: those below choose the learning rates",
            fix=f"--seed {FIRST_SEED}",
        )
