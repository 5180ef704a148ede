"""Shakespeare by the minute: `python -m bench.shakespeare 3 20`. Our recipe against a plain GPT
loop given the same minutes.

Both have the same size, read the same characters (held-out plays apart), and are measured on the
same windows of the held-out plays. First the time of a step is measured, in turns, on two threads
of a machine that does nothing else; the minutes then are so many steps, so that the long part may
run two curves side by side, one thread each. The plain loop has its best of three learning rates,
each with a run of its own. Curves that are done are kept: what was interrupted goes on where it
was; `--time` measures the steps anew, and makes only those curves again whose number of steps grew
or shrank by more than a hundredth.
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
POINTS = 12  # evaluations in a run
ROUNDS = 5  # the time of a step: so many rounds of so many steps each
TURN = 4
Curve = list[tuple[float, float]]  # the share of the steps, the validation loss


class Plain:
    """The plain loop, with the recipe's size."""

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
        share = self.done / self.count
        update(self.model, self.adam, batch.tokens, batch.targets, self.lr * rate(share))
        self.done += 1


def step_seconds() -> dict[str, float]:
    """The median time of a step of either, in turns."""
    job = Shakespeare(steps=10**6).job()
    learner = make_train_state(job.make(), job.config)
    plain = Plain(10**6, RATES[0])
    mine = learner.steps(job.task)
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(ROUNDS + 1):
        for name, step in (("ours", lambda: next(mine)), ("plain", plain.step)):
            start = time.perf_counter()
            for _ in range(TURN):
                step()
            times[name].append((time.perf_counter() - start) / TURN)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def ours(count: int) -> Curve:
    """The recipe as it is, for so many steps; the model is kept."""
    job = Shakespeare(steps=count).job()
    torch.manual_seed(0)
    learner = make_train_state(job.make(), job.config)
    curve = [
        (n / count, validate(learner, job.task))
        for n, _ in enumerate(learner.steps(job.task), start=1)
        if n in marks(count)
    ]
    export_model(learner, job.export, Path("runs") / f"bench-shakespeare-{count}")
    return curve


def plain(count: int, lr: float) -> Curve:
    """The same of the plain loop."""
    run = Plain(count, lr)
    curve = Curve()
    for n in range(1, count + 1):
        run.step()
        if n in marks(count):
            curve.append((n / count, evaluate(run.model, run.task)))
    return curve


def marks(count: int) -> set[int]:
    """The steps after which a run is measured; the last is one."""
    return {round(count * n / POINTS) for n in range(1, POINTS + 1)}


@torch.no_grad()
def evaluate(model: PlainGPT, task: PackedText) -> float:
    model.eval()
    found = [
        (float(model(batch.tokens, batch.targets)) * batch.count, batch.count)
        for batch in task.validation()
    ]
    model.train()
    return sum(loss for loss, _ in found) / sum(count for _, count in found)


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
            look = (
                {"color": "C0", "linewidth": 2}
                if name == "ours"
                else {"color": "0.5", "linewidth": 1}
            )
            axes.plot(
                [float(minutes) * share for share in shares],
                losses,
                label=name,
                linestyle=style,
                **look,
            )
        axes.set(
            xlabel="minutes of training",
            ylabel="nats for a character, held-out plays",
            title=f"{minutes} minutes on two cores",
        )
        axes.legend(frameon=False)
    figure.tight_layout()
    path = RESULTS / "shakespeare.svg"
    figure.savefig(path, metadata={"Date": None})
    return str(path)


@dataclass(frozen=True)
class Wanted:
    """One curve."""

    minutes: str
    name: str
    count: int
    lr: float = 0.0

    def curve(self) -> Curve:
        torch.set_num_threads(1)
        return ours(self.count) if self.name == "ours" else plain(self.count, self.lr)


def wanted(minutes: str, seconds: dict[str, float]) -> list[Wanted]:
    count = {name: round(60 * float(minutes) / took) for name, took in seconds.items()}
    others = [Wanted(minutes, f"plain, lr {lr:g}", count["plain"], lr) for lr in RATES]
    return [Wanted(minutes, "ours", count["ours"]), *others]


def drawn(one: Wanted) -> tuple[Wanted, Curve]:
    return one, one.curve()


def main() -> None:
    path = RESULTS / "shakespeare.json"
    timed = [word for word in sys.argv[1:] if word != "--time"] or ["3", "20"]
    said: dict[str, Any] = (
        json.loads(path.read_text())
        if path.exists()
        else {"machine": machine(), "results": {}, "steps": {}}
    )
    if "step_seconds" not in said or "--time" in sys.argv:
        torch.set_num_threads(2)
        said["step_seconds"] = step_seconds()
        path.write_text(json.dumps(said, indent=1) + "\n")
    print(
        {name: f"{1e3 * seconds:.0f} ms a step" for name, seconds in said["step_seconds"].items()},
        flush=True,
    )
    todo = [
        one
        for minutes in timed
        for one in wanted(minutes, said["step_seconds"])
        if not is_done(said, one)
    ]
    with get_context("spawn").Pool(2) as pool:
        for one, curve in pool.imap_unordered(drawn, todo):
            said["results"].setdefault(one.minutes, {})[one.name] = curve
            said["steps"].setdefault(one.minutes, {})[one.name] = one.count
            path.write_text(json.dumps(said, indent=1) + "\n")
            print(
                f"{one.minutes} minutes, {one.name}, {one.count} steps: {curve[-1][1]:.4f} nats",
                flush=True,
            )
    for minutes, curves in said["results"].items():
        best = min(
            (name for name in curves if name != "ours"), key=lambda name: curves[name][-1][1]
        )
        print(
            f"{minutes} minutes: ours {curves['ours'][-1][1]:.4f}, best plain"
            f" {curves[best][-1][1]:.4f} ({best})"
        )
    print("written:", path, draw(said["results"]))


def is_done(said: dict[str, Any], one: Wanted) -> bool:
    """Whether the curve is there, for as many steps within a hundredth."""
    return abs(said["steps"].get(one.minutes, {}).get(one.name, 0) / one.count - 1) <= 0.01


if __name__ == "__main__":
    main()
