"""Run an experiment: measure its parts and save each one as soon as it is done.

for event in steps(experiment, folder): …        progress
finding(experiment, folder)                       the saved result, judged
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import InputError, nearest
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiment import TIERS, Experiment, Finding, Tier
from sightline.lab.results import Result, measuring_versions, read_result, result_path, write_result
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
    experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = 0
) -> Iterator[Progress]:
    """Measure the parts that the saved result lacks, in parallel where there are cores.

    Every finished part is saved: stopping, a part that fails or a killed worker (PartError) loses
    none of them.
    """
    check_tier(tier)
    path = result_path(folder, experiment.name, tier, seed)
    parts = experiment.parts(tier, seed)
    result = (
        read_result(path)
        if path.exists()
        else Result(experiment.name, tier, seed, versions=measuring_versions())
    )
    done = [part.name for part in parts if part.name in result.parts]
    for number, name in enumerate(done, start=1):
        yield Progress(
            experiment.name, name, number, len(parts), result.seconds.get(name, 0.0), True
        )
    remaining = [part for part in parts if part.name not in result.parts]
    can_run_in_parallel = EXPERIMENTS.get(experiment.name) is experiment and len(remaining) > 1
    measurements = (
        measure_in_parallel(experiment, remaining, tier, seed)
        if can_run_in_parallel
        else measure_in_process(experiment, remaining)
    )
    for number, (name, numbers, seconds) in enumerate(measurements, start=len(done) + 1):
        result.parts[name], result.seconds[name] = numbers, seconds
        write_result(path, result)
        yield Progress(experiment.name, name, number, len(parts), seconds, False)


def finding(
    experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = 0
) -> Finding | None:
    """The saved result of an experiment, or None if there is none."""
    path = result_path(folder, experiment.name, tier, seed)
    if not path.exists():
        return None
    result = read_result(path)
    part_names = [part.name for part in experiment.parts(tier, seed)]
    return Finding(
        experiment=experiment,
        tier=tier,
        seed=seed,
        numbers={name: result.parts[name] for name in part_names if name in result.parts},
        seconds=sum(result.seconds.get(name, 0.0) for name in part_names),
        complete=all(name in result.parts for name in part_names),
        versions=result.versions,
        path=path,
    )


def run(
    name: str,
    *,
    tier: Tier = "default",
    seed: int = 0,
    out: Path | str = FOLDER,
    progress: Callable[[Progress], None] | None = None,
) -> Finding:
    """Run an experiment and return its finding: `sl.lab.run("softmax-saturation").verdict`."""
    experiment = find_experiment(name)
    folder = Path(out)
    for step in steps(experiment, folder, tier=tier, seed=seed):
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
