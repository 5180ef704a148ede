"""Running an experiment: its parts one by one, each kept as soon as it is measured.

for event in steps(experiment, folder): …        progress
finding(experiment, folder)                       what is on disk, judged
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import InputError, nearest
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiment import TIERS, Experiment, Finding, Tier
from sightline.lab.results import Result, place_of, plain, read, versions, write

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
        raise InputError(f"no experiment is called {name[:60]!r}", fix=nearest(name[:60], EXPERIMENTS))
    return EXPERIMENTS[name]


def steps(experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = 0) -> Iterator[Progress]:
    """Measure what is not measured yet. Stopping between two parts loses nothing."""
    check_tier(tier)
    path, parts = place_of(folder, experiment.name, tier, seed), experiment.parts(tier, seed)
    result = read(path) if path.exists() else Result(experiment.name, tier, seed, versions=versions())
    for number, part in enumerate(parts, start=1):
        kept = part.name in result.parts
        if not kept:
            start = time.perf_counter()
            result.parts[part.name] = plain(part.measure())
            result.seconds[part.name] = round(time.perf_counter() - start, 3)
            write(path, result)
        yield Progress(experiment.name, part.name, number, len(parts), result.seconds.get(part.name, 0.0), kept)


def finding(experiment: Experiment, folder: Path = FOLDER, *, tier: Tier = "default", seed: int = 0) -> Finding | None:
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
    )


def run(
    name: str, *, tier: Tier = "default", seed: int = 0, out: Path | str = FOLDER, progress: Callable[[Progress], None] | None = None
) -> Finding:
    """`sl.lab.run("softmax-saturation").verdict`"""
    experiment, folder = named(name), Path(out)
    for step in steps(experiment, folder, tier=tier, seed=seed):
        if progress is not None:
            progress(step)
    found = finding(experiment, folder, tier=tier, seed=seed)
    assert found is not None
    return found


def check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise InputError(f"a budget called {tier!r}", expected=", ".join(TIERS), fix=nearest(tier, TIERS))
