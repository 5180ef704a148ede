"""The runs behind `scaling_laws`: small models on Shakespeare's characters, their size and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAYERS = 2
CONTEXT = 32
ROWS = 16
CHARACTERS = 86
LEAST_STEPS = 40


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """Compute budgets in FLOP with their widths and `sweeps` seeds; the held-out budget with its
    widths and seeds; and the pilots, which tune the learning rate of every width."""

    sweep: Mapping[float, tuple[int, ...]]
    held_out: float
    widths: tuple[int, ...]
    seeds: int
    sweeps: int
    rates: tuple[float, ...]
    pilot_steps: int
    pilots: int

    @property
    def arms(self) -> list[int]:
        """Every width that is trained."""
        swept = {
            width
            for flops, widths in self.sweep.items()
            for width in widths
            if steps_for(flops, width) >= LEAST_STEPS
        }
        return sorted(swept | set(self.widths))


def parameters_of(width: float) -> float:
    """N without embeddings: 12 · layers · width²."""
    return 12 * LAYERS * width**2


def cost_of(width: float) -> float:
    """FLOP per token: 6 N, attention's 12 · layers · width · time, and the head's 6 · characters ·
    width."""
    return 6 * parameters_of(width) + 12 * LAYERS * width * CONTEXT + 6 * CHARACTERS * width


def steps_for(flops: float, width: int) -> int:
    return round(flops / (cost_of(width) * CONTEXT * ROWS))


def train_run(width: int, steps: int, rate: float, seed: int) -> dict[str, float]:
    """Train one model with a cosine schedule that ends at its last step; no text is repeated."""
    from sightline.architectures import gpt
    from sightline.lab.learning import held_out_loss, shakespeare, training_steps
    from sightline.training.config import AdamW, Muon
    from sightline.training.flops import step_flops

    task, characters = shakespeare(CONTEXT, ROWS, seed)
    task.evaluated = 512
    config = gpt(
        width=width, layers=LAYERS, heads=2, vocab_size=characters, max_positions=CONTEXT,
        positions="rotary", bias=False,
    )  # fmt: skip
    optimizer = Muon(lr=rate, rest=AdamW(lr=0.75 * rate, betas=(0.9, 0.95)))
    learner = [
        learner
        for learner, _ in training_steps(config, task, steps=steps, optimizer=optimizer, seed=seed)
    ][-1]
    counted = steps * step_flops(learner.transformer, task.batch(0))
    sizes = {
        "width": width,
        "parameters": parameters_of(width),
        "tokens": steps * CONTEXT * ROWS,
        "flops": counted,
    }
    return {**sizes, "loss": held_out_loss(learner, task)}
