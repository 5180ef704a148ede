"""What `sightline train` says at the end: how good the model is, where it is, how to try it, and
something that it wrote."""

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
from sightline.model import Model, load
from sightline.tasks.translate import BEAMS
from sightline.training.data.batch import IGNORED, Batch, Task
from sightline.training.data.packed import PackedText
from sightline.training.run import MODEL, Job

PROMPT = 12  # tokens that a sample begins with
SAMPLE = 200  # tokens of a sample at most
MEASURED = 100_000  # tokens that tell how many characters a token has


@dataclass(frozen=True, slots=True)
class Ending:
    """`sample` is what the model wrote, in lines; `best` the least validation loss, in nats a
    target."""

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
        found = [f"trained     {self.step:,} steps in {clock(self.seconds)}"]
        if self.best is not None:
            more = [] if self.perplexity is None else [f"perplexity {self.perplexity:.4g}"]
            more += (
                []
                if self.bits_per_character is None
                else [f"{self.bits_per_character:.4f} bits per character"]
            )
            found.append(
                "validation "
                f" {', '.join([f'{self.best:.4f} nats at step {self.best_step:,}', *more])}"
            )
        return [
            *found,
            f"model       {self.model}",
            f"try         {self.command}",
            *(["", *self.sample] if self.sample else []),
        ]


def ending(job: Job, folder: Path) -> Ending:
    """What is to be said of a run that is over."""
    run = read_run(folder)
    model = load(folder)
    best = run.best
    words = isinstance(model.config.head, (LanguageHead, MaskedHead))
    return Ending(
        step=run.steps,
        seconds=run.seconds,
        best=None if best is None else best.loss,
        best_step=None if best is None else best.step,
        perplexity=math.exp(min(best.loss, 700)) if best is not None and words else None,
        bits_per_character=(
            None if best is None else bits(best.loss, characters_per_token(job.task, model))
        ),
        model=str(folder / MODEL),
        command=try_it(model, folder),
        sample=sample(job.task, model),
    )


def bits(nats: float, characters: float | None) -> float | None:
    return None if not characters else nats / math.log(2) / characters


def characters_per_token(task: Task, model: Model) -> float | None:
    """Of the text that is held out."""
    if not isinstance(task, PackedText) or task.held_out is None or model.tokenizer is None:
        return None
    ids = task.held_out.ids[:MEASURED].tolist()
    return len(model.tokenizer.decode(ids)) / len(ids)


def try_it(model: Model, folder: Path) -> str:
    """A command that uses the model."""
    config = model.config
    place = shlex.quote(str(folder))
    if config.encoder is not None and config.decoder is not None:
        return f'sightline translate {place} "…"'
    if isinstance(config.head, MaskedHead):
        return f'sightline fill {place} "… [MASK] …"'
    if isinstance(config.head, Classifier):
        return f'sightline classify {place} "…"'
    return (
        f'sightline generate {place} "…" --temperature 0.8'
        if config.decoder is not None
        else f'sightline embed {place} "…"'
    )


def sample(task: Task, model: Model) -> list[str]:
    """Something that the model wrote, given what was held out. That it cannot is no reason to
    fail."""
    batch = next(task.validation(), None) or task.batch(0)
    try:
        if (
            model.tokenizer is None
            or model.config.decoder is None
            or not isinstance(model.config.head, LanguageHead)
        ):
            return []
        found = written(batch, model) if batch.source is None else translated(batch, model)
    except SightlineError:
        return []
    return [line for text in found for line in text.splitlines()]


def written(batch: Batch, model: Model) -> list[str]:
    """A text that goes on from the beginning of another: where targets are not all asked for, from
    where they begin to be."""
    assert model.tokenizer is not None
    asked = (
        int((batch.targets[0] != IGNORED).nonzero()[0])
        if bool((batch.targets[0] != IGNORED).any())
        else 0
    )
    prompt = batch.tokens[0, : asked + 1 if asked else PROMPT].tolist()
    room = model.config.last.max_positions - len(prompt)
    if room < 1:
        return []
    with torch.no_grad():
        found = model.generate(
            prompt, max_tokens=min(SAMPLE, room), temperature=0.8, top_p=0.95, seed=1
        )
    return [model.tokenizer.decode(prompt) + found.text]


def translated(batch: Batch, model: Model) -> list[str]:
    """A sentence, its translation, and what it should have been."""
    assert model.tokenizer is not None
    assert batch.source is not None
    row = len(batch.targets) // 2
    source = (
        batch.source[row]
        if batch.source_padding is None
        else batch.source[row][~batch.source_padding[row]]
    )
    ids, special = (
        source.tolist(),
        model.tokenizer.special_ids,
    )  # read as they are: a decoder may write the other language's way
    sentence = "".join(
        model.tokenizer.token(id, source=True) for id in ids if id not in special
    ).strip()
    reference = model.tokenizer.decode(batch.targets[row][batch.targets[row] != IGNORED].tolist())
    found = model.generate(ids, beams=model.defaults.num_beams or BEAMS)
    return [f"source       {sentence}", f"translation  {found.text}", f"reference    {reference}"]
