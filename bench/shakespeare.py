"""Shakespeare in a fixed time: `python -m bench.shakespeare 3 20`. Our recipe against a plain GPT
loop, both trained for the same number of minutes.

Both have the same size, train on the same characters (without the held-out plays), and are
evaluated on the same windows of the held-out plays. First the step time of both is measured,
alternating, on two threads of an idle machine. The minutes are then converted to steps, so that two
curves can be trained concurrently with one thread each. The plain loop uses the best of three
learning rates, each a separate run. Finished curves are saved, so an interrupted benchmark resumes;
`--time` measures the step times again, and retrains only the curves whose number of steps changed
by more than 1%.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from bench.measure import RESULTS, machine
from bench.plain_gpt import PlainConfig, PlainGPT, optimizer, rate, update
from sightline.recipes.shakespeare import Shakespeare
from sightline.training.data.packed import PackedText
from sightline.training.evaluation import validate
from sightline.training.loop import make_train_state
from sightline.training.state.export import export_model

RATES = (5e-4, 1e-3, 2e-3)
POINTS = 12  # evaluations per run
ROUNDS = 5  # rounds of the step timing
STEPS_PER_ROUND = 4
Curve = list[tuple[float, float]]  # (fraction of the steps, validation loss)


class Plain:
    """The plain loop, with the size of the recipe's model."""

    def __init__(self, count: int, lr: float) -> None:
        recipe = Shakespeare()
        task = recipe.job().task
        assert isinstance(task, PackedText)
        torch.manual_seed(0)
        shape = {
            "width": recipe.width,
            "layers": recipe.layers,
            "heads": recipe.heads,
            "context": recipe.context,
        }
        self.task = task
        self.count = count
        self.lr = lr
        self.done = 0
        self.model = PlainGPT(PlainConfig(vocab_size=1 + int(task.train.ids.max()), **shape))
        self.adam = optimizer(self.model, lr)

    def step(self) -> None:
        batch = self.task.batch(self.done)
        progress = self.done / self.count
        update(self.model, self.adam, batch.tokens, batch.targets, self.lr * rate(progress))
        self.done += 1


def step_seconds() -> dict[str, float]:
    """The median step time of both loops, measured alternately."""
    job = Shakespeare(steps=10**6).job()
    state = make_train_state(job.make(), job.config)
    plain = Plain(10**6, RATES[0])
    steps = state.steps(job.task)
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(ROUNDS + 1):
        for name, step in (("ours", lambda: next(steps)), ("plain", plain.step)):
            start = time.perf_counter()
            for _ in range(STEPS_PER_ROUND):
                step()
            times[name].append((time.perf_counter() - start) / STEPS_PER_ROUND)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def ours(count: int) -> Curve:
    """Train the unmodified recipe for `count` steps, and export the model."""
    job = Shakespeare(steps=count).job()
    torch.manual_seed(0)
    state = make_train_state(job.make(), job.config)
    curve = [
        (n / count, validate(state, job.task))
        for n, _ in enumerate(state.steps(job.task), start=1)
        if n in evaluation_steps(count)
    ]
    export_model(state, job.export, Path("runs") / f"bench-shakespeare-{count}")
    return curve


def plain(count: int, lr: float) -> Curve:
    """Train the plain loop for `count` steps."""
    run = Plain(count, lr)
    curve = Curve()
    for n in range(1, count + 1):
        run.step()
        if n in evaluation_steps(count):
            curve.append((n / count, evaluate(run.model, run.task)))
    return curve


def evaluation_steps(count: int) -> set[int]:
    """The steps after which a run is evaluated, including the last."""
    return {round(count * n / POINTS) for n in range(1, POINTS + 1)}


@torch.no_grad()
def evaluate(model: PlainGPT, task: PackedText) -> float:
    model.eval()
    losses = [
        (float(model(batch.tokens, batch.targets)) * batch.count, batch.count)
        for batch in task.validation()
    ]
    model.train()
    return sum(loss for loss, _ in losses) / sum(count for _, count in losses)


def draw(results: dict[str, dict[str, Curve]]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8))
    for number, (minutes, curves) in enumerate(results.items(), start=1):
        axes = figure.add_subplot(1, len(results), number)
        for name, style in (
            ("ours", "-"),
            *zip((f"plain, lr {lr:g}" for lr in RATES), (":", "--", "-"), strict=True),
        ):
            shares, losses = zip(*curves[name], strict=True)
            line = (
                {"color": "C0", "linewidth": 2}
                if name == "ours"
                else {"color": "0.5", "linewidth": 1}
            )
            axes.plot(
                [float(minutes) * share for share in shares],
                losses,
                label=name,
                linestyle=style,
                **line,
            )
        axes.set(
            xlabel="minutes of training",
            ylabel="nats per character, held-out plays",
            title=f"{minutes} minutes on two cores",
        )
        axes.legend(frameon=False)
    figure.tight_layout()
    path = RESULTS / "shakespeare.svg"
    figure.savefig(path, metadata={"Date": None})
    return str(path)


@dataclass(frozen=True)
class CurveSpec:
    """A curve to train."""

    minutes: str
    name: str
    count: int
    lr: float = 0.0

    def curve(self) -> Curve:
        torch.set_num_threads(1)
        return ours(self.count) if self.name == "ours" else plain(self.count, self.lr)


def curve_specs(minutes: str, seconds: dict[str, float]) -> list[CurveSpec]:
    count = {name: round(60 * float(minutes) / step) for name, step in seconds.items()}
    others = [CurveSpec(minutes, f"plain, lr {lr:g}", count["plain"], lr) for lr in RATES]
    return [CurveSpec(minutes, "ours", count["ours"]), *others]


def train_curve(spec: CurveSpec) -> tuple[CurveSpec, Curve]:
    return spec, spec.curve()


def main() -> None:
    path = RESULTS / "shakespeare.json"
    durations = [word for word in sys.argv[1:] if word != "--time"] or ["3", "20"]
    results: dict[str, Any] = (
        json.loads(path.read_text())
        if path.exists()
        else {"machine": machine(), "results": {}, "steps": {}}
    )
    if "step_seconds" not in results or "--time" in sys.argv:
        torch.set_num_threads(2)
        results["step_seconds"] = step_seconds()
        path.write_text(json.dumps(results, indent=1) + "\n")
    print(
        {name: f"{1e3 * time:.0f} ms per step" for name, time in results["step_seconds"].items()},
        flush=True,
    )
    todo = [
        spec
        for minutes in durations
        for spec in curve_specs(minutes, results["step_seconds"])
        if not is_done(results, spec)
    ]
    with get_context("spawn").Pool(2) as pool:
        for spec, curve in pool.imap_unordered(train_curve, todo):
            results["results"].setdefault(spec.minutes, {})[spec.name] = curve
            results["steps"].setdefault(spec.minutes, {})[spec.name] = spec.count
            path.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{spec.minutes} minutes, {spec.name}, {spec.count} steps: {curve[-1][1]:.4f} nats",
                flush=True,
            )
    for minutes, curves in results["results"].items():
        best = min(
            (name for name in curves if name != "ours"), key=lambda name: curves[name][-1][1]
        )
        print(
            f"{minutes} minutes: ours {curves['ours'][-1][1]:.4f}, best plain"
            f" {curves[best][-1][1]:.4f} ({best})"
        )
    print("written:", path, draw(results["results"]))


def is_done(results: dict[str, Any], spec: CurveSpec) -> bool:
    """Whether the curve exists with the same number of steps, within 1%."""
    return abs(results["steps"].get(spec.minutes, {}).get(spec.name, 0) / spec.count - 1) <= 0.01


if __name__ == "__main__":
    main()
