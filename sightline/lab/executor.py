"""Running an experiment: its parts one by one, each kept as soon as it is measured.

for event in steps(experiment, folder): …        progress
finding(experiment, folder)                       what is on disk, judged
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import InputError, nearest
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiment import TIERS, Experiment, Finding, Tier
from sightline.lab.results import Result, place_of, read, versions, write
from sightline.lab.workers import one_by_one, side_by_side

FOLDER = Path("lab")


@dataclass(frozen=True, slots=True)
class Progress:
    """A part that is done now, or was done before."""

    experiment: str
    part: str
    number: int
    of: int
    seconds: float
    kept: bool


def named(name: str) -> Experiment:
    """An experiment by its name."""
    if name not in EXPERIMENTS:
        raise InputError(
            f"no experiment is called {name[:60]!r}", fix=nearest(name[:60], EXPERIMENTS)
        )
    return EXPERIMENTS[name]


def steps(
    experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = 0
) -> Iterator[Progress]:
    """Measure what is not measured yet, side by side where there are cores. Stopping loses nothing
    that is done; nor does a part that fails or a worker that is killed (PartError)."""
    check_tier(tier)
    path = place_of(folder, experiment.name, tier, seed)
    parts = experiment.parts(tier, seed)
    result = (
        read(path) if path.exists() else Result(experiment.name, tier, seed, versions=versions())
    )
    done = [part.name for part in parts if part.name in result.parts]
    for number, name in enumerate(done, start=1):
        yield Progress(
            experiment.name, name, number, len(parts), result.seconds.get(name, 0.0), True
        )
    left = [part for part in parts if part.name not in result.parts]
    known = EXPERIMENTS.get(experiment.name) is experiment and len(left) > 1
    found = side_by_side(experiment, left, tier, seed) if known else one_by_one(experiment, left)
    for number, (name, numbers, seconds) in enumerate(found, start=len(done) + 1):
        result.parts[name], result.seconds[name] = numbers, seconds
        write(path, result)
        yield Progress(experiment.name, name, number, len(parts), seconds, False)


def finding(
    experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = 0
) -> Finding | None:
    """What was found, if anything was."""
    path = place_of(folder, experiment.name, tier, seed)
    if not path.exists():
        return None
    result = read(path)
    wanted = [part.name for part in experiment.parts(tier, seed)]
    return Finding(
        experiment=experiment,
        tier=tier,
        seed=seed,
        numbers={name: result.parts[name] for name in wanted if name in result.parts},
        seconds=sum(result.seconds.get(name, 0.0) for name in wanted),
        complete=all(name in result.parts for name in wanted),
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
    """`sl.lab.run("softmax-saturation").verdict`"""
    experiment = named(name)
    folder = Path(out)
    for step in steps(experiment, folder, tier=tier, seed=seed):
        if progress is not None:
            progress(step)
    found = finding(experiment, folder, tier=tier, seed=seed)
    assert found is not None
    return found


def check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise InputError(
            f"a budget called {tier!r}", expected=", ".join(TIERS), fix=nearest(tier, TIERS)
        )
