"""`sightline train … --dry-run`: what a run will need, part by part, before a byte of it is
written."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from sightline.cli.ui.output import write, write_json
from sightline.cli.ui.training_view import amount, clock
from sightline.explain.memory import training_memory
from sightline.explain.summary import Explanation, explain
from sightline.recipes.estimate import Estimate, estimate
from sightline.terminal.progress import megabytes
from sightline.training.run import Job


@dataclass(frozen=True, slots=True)
class Plan:
    """An estimate, with what the model's equations add to it: FLOPs of a step, and what its
    backward pass keeps."""

    recipe: str
    data: str
    found: Estimate
    parts: dict[str, int]
    flops: int
    activations: int

    @property
    def memory(self) -> int:
        found = self.found
        return found.weights + found.gradients + found.optimizer + found.average + self.activations

    def lines(self) -> list[str]:
        found = self.found
        wide = max(len(name) for name in self.parts)
        trained = (
            "" if found.trained == found.parameters else f", {found.trained:,} of them trained"
        )
        average = f", averaged weights {megabytes(found.average)}" if found.average else ""
        batch = (
            f"{found.rows:,} rows of"
            f" {'' if found.source is None else f'{found.source:,} and '}{found.time:,}"
        )
        speed = self.flops / found.step_seconds / 1e9
        return [
            f"{self.recipe}: {found.steps:,} steps over {self.data}",
            "",
            *(f"  {name:<{wide}}  {count:>14,}" for name, count in self.parts.items()),
            f"  {'parameters':<{wide}}  {found.parameters:>14,}{trained}",
            "",
            f"batch       {batch}, {found.tokens:,} tokens"
            + (f", in {found.accumulate} parts" if found.accumulate > 1 else ""),
            (
                f"FLOPs       {self.flops:.3g} a step, {self.flops * found.steps:.3g} in all,"
                f" {speed:.1f} GFLOP/s here"
            ),
            (
                f"memory      {megabytes(self.memory)}: weights {megabytes(found.weights)},"
                f" gradients {megabytes(found.gradients)}, optimiser"
                f" {megabytes(found.optimizer)}{average}, activations about"
                f" {megabytes(self.activations)}"
            ),
            (
                f"disk        {megabytes(found.checkpoint)} a checkpoint, {megabytes(found.model)}"
                " the model"
            ),
            (
                f"time        about {clock(found.seconds)}: {found.step_seconds:.3g} s a step,"
                f" {found.evaluation_seconds:.3g} s an evaluation"
            ),
            "            as timed just now; nothing was written",
        ]

    def plain(self) -> dict[str, object]:
        costs = {name: value for name, value in asdict(self.found).items() if name != "config"}
        more = {
            "flops": self.flops,
            "activations": self.activations,
            "memory": self.memory,
            "seconds": self.found.seconds,
        }
        return {"recipe": self.recipe, "data": self.data, "parts": self.parts, **costs, **more}


def plan(job: Job) -> Plan:
    """A few real steps, and the equations."""
    found = estimate(job)
    said = explain(
        found.config, name=job.name, time=found.time, source=found.source, batch=found.rows
    )
    rows = math.ceil(found.rows / found.accumulate)
    recompute = job.config.checkpoint_activations
    kept = training_memory(
        found.config, time=found.time, source=found.source, batch=rows, recompute=recompute
    ).activations
    return Plan(job.name, amount(job.task), found, parts_of(said), said.training_flops, kept)


def parts_of(said: Explanation) -> dict[str, int]:
    """Parameters by section: decoder.attention, decoder.feed_forward …"""
    found: dict[str, int] = {}
    for part in said.parts:
        name = part.stack if part.section == part.stack else f"{part.stack}.{part.section}"
        found[name] = found.get(name, 0) + part.parameters
    return {name: count for name, count in found.items() if count}


def show(job: Job, *, json: bool) -> None:
    made = plan(job)
    if json:
        write_json(made.plain())
    else:
        write(*made.lines())
