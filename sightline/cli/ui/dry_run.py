"""`sightline train … --dry-run`: what a run needs, part by part; nothing is written."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from sightline.cli.ui.output import write, write_json
from sightline.cli.ui.training_view import clock, describe_data
from sightline.explain.memory import training_memory
from sightline.explain.summary import Explanation, explain
from sightline.recipes.estimate import Estimate, estimate
from sightline.terminal.progress import megabytes
from sightline.training.run import Job


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A measured estimate, with the FLOPs and activation memory computed from the model's
    equations."""

    recipe: str
    data: str
    estimate: Estimate
    parts: dict[str, int]
    flops: int
    activations: int

    @property
    def memory(self) -> int:
        costs = self.estimate
        return costs.weights + costs.gradients + costs.optimizer + costs.average + self.activations

    def lines(self) -> list[str]:
        costs = self.estimate
        wide = max(len(name) for name in self.parts)
        trained = (
            "" if costs.trained == costs.parameters else f", {costs.trained:,} of them trained"
        )
        average = f", averaged weights {megabytes(costs.average)}" if costs.average else ""
        batch = (
            f"{costs.rows:,} rows of"
            f" {'' if costs.source is None else f'{costs.source:,} and '}{costs.time:,}"
        )
        speed = self.flops / costs.step_seconds / 1e9
        return [
            f"{self.recipe}: {costs.steps:,} steps over {self.data}",
            "",
            *(f"  {name:<{wide}}  {count:>14,}" for name, count in self.parts.items()),
            f"  {'parameters':<{wide}}  {costs.parameters:>14,}{trained}",
            "",
            f"batch       {batch}, {costs.tokens:,} tokens"
            + (f", in {costs.accumulate} parts" if costs.accumulate > 1 else ""),
            (
                f"FLOPs       {self.flops:.3g} per step, {self.flops * costs.steps:.3g} in total,"
                f" {speed:.1f} GFLOP/s here"
            ),
            (
                f"memory      {megabytes(self.memory)}: weights {megabytes(costs.weights)},"
                f" gradients {megabytes(costs.gradients)}, optimizer"
                f" {megabytes(costs.optimizer)}{average}, activations about"
                f" {megabytes(self.activations)}"
            ),
            (
                f"disk        {megabytes(costs.checkpoint)} per checkpoint,"
                f" {megabytes(costs.model)} for the model"
            ),
            (
                f"time        about {clock(costs.seconds)}: {costs.step_seconds:.3g} s per step,"
                f" {costs.evaluation_seconds:.3g} s per evaluation"
            ),
            "            measured just now; nothing was written",
        ]

    def to_dict(self) -> dict[str, object]:
        costs = {name: value for name, value in asdict(self.estimate).items() if name != "config"}
        more = {
            "flops": self.flops,
            "activations": self.activations,
            "memory": self.memory,
            "seconds": self.estimate.seconds,
        }
        return {"recipe": self.recipe, "data": self.data, "parts": self.parts, **costs, **more}


def plan_run(job: Job) -> RunPlan:
    """Time a few real steps, and compute the rest from the equations."""
    costs = estimate(job)
    explanation = explain(
        costs.config, name=job.name, time=costs.time, source=costs.source, batch=costs.rows
    )
    memory = training_memory(
        costs.config,
        time=costs.time,
        source=costs.source,
        batch=math.ceil(costs.rows / costs.accumulate),
        recompute=job.config.checkpoint_activations,
    )
    return RunPlan(
        recipe=job.name,
        data=describe_data(job.task),
        estimate=costs,
        parts=section_parameters(explanation),
        flops=explanation.training_flops,
        activations=memory.activations,
    )


def section_parameters(explanation: Explanation) -> dict[str, int]:
    """Parameters by section: decoder.attention, decoder.feed_forward …"""
    counts: dict[str, int] = {}
    for part in explanation.parts:
        name = part.stack if part.section == part.stack else f"{part.stack}.{part.section}"
        counts[name] = counts.get(name, 0) + part.parameters
    return {name: count for name, count in counts.items() if count}


def show_plan(job: Job, *, json: bool) -> None:
    plan = plan_run(job)
    if json:
        write_json(plan.to_dict())
    else:
        write(*plan.lines())
