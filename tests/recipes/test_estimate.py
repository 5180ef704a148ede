"""What a run will cost, against what torch itself counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sightline.recipes.estimate import estimate
from sightline.recipes.translate import Translate


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_sizes_are_the_models(ema: float, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(
            "".join(f"{name} sentence number {n} .\n" for n in range(300))
        )
    recipe = Translate(
        source=tmp_path / "a.txt",
        target=tmp_path / "b.txt",
        vocab=320,
        width=16,
        layers=1,
        heads=2,
        hidden=32,
        batch=64,
        steps=10,
        eval_every=4,
        ema=ema,
    )
    job = recipe.job()
    result = estimate(job, timed=1)
    parameters = dict(job.make().named_parameters())
    count = sum(p.numel() for p in parameters.values())
    assert (result.parameters, result.trained, result.weights, result.gradients) == (
        count,
        count,
        4 * count,
        4 * count,
    )
    matrices = sum(
        p.numel() for name, p in parameters.items() if p.ndim == 2 and "embedding" not in name
    )
    others = [p for name, p in parameters.items() if p.ndim != 2 or "embedding" in name]
    assert result.optimizer == 4 * (
        matrices + sum(2 * p.numel() + 1 for p in others)
    )  # one momentum; two moments and a counter
    assert result.average == (4 * count if ema else 0)
    assert result.checkpoint == result.weights + result.optimizer + result.average
    assert result.model == count * torch.float32.itemsize
    batches = [job.task.batch(n) for n in range(2)]
    assert result.rows == round(sum(len(batch.tokens) for batch in batches) / 2)
    assert (result.steps, result.evaluations) == (10, 3)
    assert result.seconds == pytest.approx(10 * result.step_seconds + 3 * result.evaluation_seconds)
