"""The end of `sightline train`: validation loss, the model's folder, a command to try, a sample."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

import torch

from sightline.cli.ui.runs import read_run
from sightline.cli.ui.training_view import clock
from sightline.config import Classifier, LanguageHead, MaskedHead
from sightline.errors import SightlineError
from sightline.loading import load
from sightline.model import Model
from sightline.tasks.translate import BEAMS
from sightline.training.data.batch import IGNORED, Batch, Task
from sightline.training.data.packed import PackedText
from sightline.training.run import MODEL, Job

PROMPT = 12  # tokens of a sample's prompt
SAMPLE = 200  # new tokens of a sample, at most
MEASURED = 100_000  # tokens over which the characters per token are averaged


@dataclass(frozen=True, slots=True)
class RunSummary:
    """`best` is the lowest validation loss in nats per target, `sample` lines of generated text."""

    step: int
    seconds: float
    best: float | None
    best_step: int | None
    perplexity: float | None
    bits_per_character: float | None
    model: str
    command: str
    sample: list[str]

    def lines(self) -> list[str]:
        lines = [f"trained     {self.step:,} steps in {clock(self.seconds)}"]
        if self.best is not None:
            lines.append(f"validation  {', '.join(self.validation_figures())}")
        lines += [f"model       {self.model}", f"try         {self.command}"]
        return [*lines, "", *self.sample] if self.sample else lines

    def validation_figures(self) -> list[str]:
        figures = [f"{self.best:.4f} nats at step {self.best_step:,}"]
        if self.perplexity is not None:
            figures.append(f"perplexity {self.perplexity:.4g}")
        if self.bits_per_character is not None:
            figures.append(f"{self.bits_per_character:.4f} bits per character")
        return figures


def summarize_run(job: Job, folder: Path) -> RunSummary:
    """The summary of a finished run."""
    run = read_run(folder)
    model = load(folder)
    best = run.best
    predicts_tokens = isinstance(model.config.head, (LanguageHead, MaskedHead))
    return RunSummary(
        step=run.steps,
        seconds=run.seconds,
        best=None if best is None else best.loss,
        best_step=None if best is None else best.step,
        perplexity=math.exp(min(best.loss, 700)) if best is not None and predicts_tokens else None,
        bits_per_character=(
            None
            if best is None
            else bits_per_character(best.loss, characters_per_token(job.task, model))
        ),
        model=str(folder / MODEL),
        command=example_command(model, folder),
        sample=sample_lines(job.task, model),
    )


def bits_per_character(nats: float, characters: float | None) -> float | None:
    return None if not characters else nats / math.log(2) / characters


def characters_per_token(task: Task, model: Model) -> float | None:
    """Mean over the held-out text."""
    if not isinstance(task, PackedText) or task.held_out is None or model.tokenizer is None:
        return None
    ids = task.held_out.ids[:MEASURED].tolist()
    return len(model.tokenizer.decode(ids)) / len(ids)


def example_command(model: Model, folder: Path) -> str:
    """A command that uses the model."""
    config = model.config
    place = shlex.quote(str(folder))
    if config.encoder is not None and config.decoder is not None:
        return f'sightline translate {place} "…"'
    if isinstance(config.head, MaskedHead):
        return f'sightline fill {place} "… [MASK] …"'
    if isinstance(config.head, Classifier):
        return f'sightline classify {place} "…"'
    if config.decoder is not None:
        return f'sightline generate {place} "…" --temperature 0.8'
    return f'sightline embed {place} "…"'


def sample_lines(task: Task, model: Model) -> list[str]:
    """Text generated from held-out data; none if the model cannot."""
    batch = next(task.validation(), None) or task.batch(0)
    writes_text = model.config.decoder is not None and isinstance(model.config.head, LanguageHead)
    if model.tokenizer is None or not writes_text:
        return []
    try:
        texts = continuation(batch, model) if batch.source is None else translation(batch, model)
    except SightlineError:
        return []
    return [line for text in texts for line in text.splitlines()]


def continuation(batch: Batch, model: Model) -> list[str]:
    """A continuation of the start of a held-out text. Where the loss skips a prompt, the prompt is
    continued."""
    assert model.tokenizer is not None
    is_target = batch.targets[0] != IGNORED
    first = int(is_target.nonzero()[0]) if bool(is_target.any()) else 0
    prompt = batch.tokens[0, : first + 1 if first else PROMPT].tolist()
    room = model.config.last.max_positions - len(prompt)
    if room < 1:
        return []
    with torch.no_grad():
        generation = model.generate(
            prompt, max_tokens=min(SAMPLE, room), temperature=0.8, top_p=0.95, seed=1
        )
    return [model.tokenizer.decode(prompt) + generation.text]


def translation(batch: Batch, model: Model) -> list[str]:
    """A held-out sentence, its translation, and the reference."""
    assert model.tokenizer is not None
    assert batch.source is not None
    row = len(batch.targets) // 2
    source = batch.source[row]
    if batch.source_padding is not None:
        source = source[~batch.source_padding[row]]
    ids = source.tolist()
    special = model.tokenizer.special_ids
    # token by token: the tokenizer's decoder may join words as the target language does
    tokens = [model.tokenizer.token(id, source=True) for id in ids if id not in special]
    sentence = "".join(tokens).strip()
    reference = model.tokenizer.decode(batch.targets[row][batch.targets[row] != IGNORED].tolist())
    generation = model.generate(ids, beams=model.defaults.num_beams or BEAMS)
    return [
        f"source       {sentence}",
        f"translation  {generation.text}",
        f"reference    {reference}",
    ]
