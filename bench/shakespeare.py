"""Shakespeare by the minute: `python -m bench.shakespeare 3 20`. Our recipe against a plain GPT loop given the same minutes.

Both read the same characters (held-out plays apart), on two threads, and are measured on the same windows of the held-out plays; only
time spent in training steps counts. The plain loop has its best of three learning rates, each with a run of its own.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from bench.measure import RESULTS, machine
from bench.plain_gpt import PlainConfig, PlainGPT, optimizer, rate, update
from sightline.recipes.shakespeare import Shakespeare
from sightline.training.evaluation import validate
from sightline.training.loop import steps, trainee
from sightline.training.packed import PackedText

RATES = (5e-4, 1e-3, 2e-3)
POINTS = 12  # evaluations in a run
Curve = list[tuple[float, float]]


def ours(minutes: float) -> Curve:
    """(minutes, validation loss), by the recipe as it is."""
    job = Shakespeare(minutes=minutes, steps=10**9).job()
    torch.manual_seed(0)
    learner = trainee(job.make(), job.config)
    curve: Curve = []
    for _ in steps(learner, job.task):
        if learner.seconds >= 60 * minutes * (len(curve) + 1) / POINTS:
            curve.append((learner.seconds / 60, validate(learner, job.task)))
    return [*curve[: POINTS - 1], (learner.seconds / 60, validate(learner, job.task))]


def plain(minutes: float, lr: float) -> Curve:
    """The same of the plain loop: 6 layers, width 384, context 256, batch 12."""
    recipe = Shakespeare()
    task = recipe.job().task
    assert isinstance(task, PackedText)
    torch.manual_seed(0)
    config = PlainConfig(vocab_size=1 + int(task.train.ids.max()), context=recipe.context)
    model, spent, step = PlainGPT(config), 0.0, 0
    adam = optimizer(model, lr)
    curve: Curve = []
    while spent < 60 * minutes:
        batch = task.batch(step)
        start = time.perf_counter()
        update(model, adam, batch.tokens, batch.targets, lr * rate(spent / 60 / minutes, step))
        spent, step = spent + time.perf_counter() - start, step + 1
        if spent >= 60 * minutes * (len(curve) + 1) / POINTS:
            curve.append((spent / 60, evaluate(model, task)))
    return [*curve[: POINTS - 1], (spent / 60, evaluate(model, task))]


@torch.no_grad()
def evaluate(model: PlainGPT, task: PackedText) -> float:
    model.eval()
    found = [(float(model(batch.tokens, batch.targets)) * batch.count, batch.count) for batch in task.validation()]
    model.train()
    return sum(loss for loss, _ in found) / sum(count for _, count in found)


def draw(results: dict[str, dict[str, Curve]]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8))
    for number, (minutes, curves) in enumerate(results.items(), start=1):
        axes = figure.add_subplot(1, len(results), number)
        for name, curve in curves.items():
            mine = name == "ours"
            axes.plot(*zip(*curve, strict=True), label=name, color="C0" if mine else "0.6", linewidth=2 if mine else 1)
        axes.set(xlabel="minutes of training", ylabel="nats for a character, held-out plays", title=f"{minutes} minutes on two cores")
        axes.legend(frameon=False)
    figure.tight_layout()
    path = RESULTS / "shakespeare.svg"
    figure.savefig(path, metadata={"Date": None})
    return str(path)


def main() -> None:
    torch.set_num_threads(2)
    path = RESULTS / "shakespeare.json"
    said = json.loads(path.read_text()) if path.exists() else {"results": {}}
    for minutes in map(float, sys.argv[1:] or ("3", "20")):
        curves: dict[str, Curve] = {f"plain, lr {lr:g}": plain(minutes, lr) for lr in RATES}
        curves["ours"] = ours(minutes)
        best = min((name for name in curves if name != "ours"), key=lambda name: curves[name][-1][1])
        print(f"{minutes:g} minutes: ours {curves['ours'][-1][1]:.4f}, best plain {curves[best][-1][1]:.4f} ({best})", flush=True)
        said["results"][f"{minutes:g}"] = curves
        path.write_text(json.dumps({"machine": machine(), "results": said["results"]}, indent=1) + "\n")
    print("written:", path, draw(said["results"]))


if __name__ == "__main__":
    main()
