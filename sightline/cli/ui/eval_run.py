"""`sightline eval RUN`: the model that a run handed out, on everything that the run held out.

The run's recipe and settings are in its run.json; they make the same job again, and with it the
same held-out data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.cli.commands.train.eval import Report, check_limit, followed, of_pairs
from sightline.cli.ui.loading import load_shown
from sightline.cli.ui.output import note
from sightline.cli.ui.runs import PastRun, read_run
from sightline.config import Classifier, LanguageHead
from sightline.core.model import Transformer
from sightline.errors import InputError
from sightline.model import Model
from sightline.recipes import Recipe
from sightline.recipes.translate import Translate
from sightline.tasks.evaluate import bleu_with
from sightline.text.streaming import TextStream
from sightline.text.tokenizer import Tokenizer
from sightline.training.data.batch import IGNORED, Batch, Task
from sightline.training.data.masked import MaskedText
from sightline.training.data.packed import PackedText
from sightline.training.data.pairs import Pairs
from sightline.training.loss import Objective
from sightline.training.run import Job

EVERYTHING = 1 << 40  # windows


def of_run(
    folder: Path,
    *,
    tokenize: str | None,
    beams: int | None,
    max_tokens: int | None,
    limit: int | None,
) -> Report:
    """Loss; then perplexity and bits per byte, BLEU and chrF, or accuracy, as the model is."""
    check_limit(limit)
    run = read_run(folder)
    recipe = run.settings()
    job = rebuilt(run, recipe)
    loaded = load_shown(str(folder))
    if isinstance(job.task, Pairs):
        words = tokenize or ("char" if isinstance(recipe, Translate) and recipe.join else "13a")
        bleu_with(words)
        report = of_loss(loaded, job.task, limit)
        rows = held_out_pairs(recipe, job.task, loaded)[:limit]
        tokenizer = needed(loaded)
        found = of_pairs(
            loaded, tokenizer, rows, tokenize=words, beams=beams, max_tokens=max_tokens
        )
        return replace(
            found,
            figures={**report.figures, **found.figures},
            lines=[*report.lines, "", *found.lines],
        )
    return of_loss(loaded, job.task, limit)


def rebuilt(run: PastRun, recipe: Recipe) -> Job:
    """The job of a run. That its data is another by now is said."""
    job = recipe.job()
    if job.task.fingerprint != run.said.get("data"):
        note("the data has changed since this run began")
    return job


def needed(loaded: Model) -> Tokenizer:
    if loaded.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    return loaded.tokenizer


def held_out_pairs(recipe: Recipe, task: Pairs, loaded: Model) -> list[tuple[str, str]]:
    """As they are in the files; with `join`, references are written without spaces, as the
    translations are."""
    if isinstance(recipe, Translate):
        sources, references = recipe.sentences()[1]
        return list(
            zip(
                sources,
                ["".join(text.split()) if recipe.join else text for text in references],
                strict=True,
            )
        )
    decode = needed(loaded).decode
    return [(decode(source), decode(target)) for source, target in zip(*task.held_out, strict=True)]


# --------------------------------------------------------------------------------------- the loss


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rows so far: nats of the targets that were asked for, how many labels were
    right, the bytes of the text."""

    rows: int = 0
    nats: float = 0.0
    targets: int = 0
    right: int = 0
    bytes: int = 0


def of_loss(loaded: Model, task: Task, limit: int | None) -> Report:
    """Nats for each target, and what follows from them."""
    batches = list(first(whole(task).validation(), limit))
    if not batches:
        raise InputError(
            "a run that held nothing out", expected="data", fix="sightline eval RUN DATA"
        )
    text = isinstance(loaded.config.head, LanguageHead) and loaded.config.encoder is None
    total = sum(batch.rows for batch in batches)
    results = totals(loaded, batches, needed(loaded) if text else None)
    last = followed(results, at=lambda found: (found[-1].rows, total))[-1]
    loss = last.nats / last.targets
    figures: dict[str, Any] = {"loss": loss, "targets": last.targets}
    lines = [f"loss           {loss:.4f} nats a target, {last.targets:,} targets"]
    if isinstance(loaded.config.head, Classifier):
        figures |= {"accuracy": last.right / last.rows, "right": last.right}
        lines.append(f"accuracy       {last.right / last.rows:.4f}, {last.right} right")
    else:
        figures["perplexity"] = math.exp(min(loss, 700))
        lines.append(f"perplexity     {figures['perplexity']:.4f}")
    if last.bytes:
        figures |= {"bits_per_byte": last.nats / math.log(2) / last.bytes, "bytes": last.bytes}
        lines.append(f"bits per byte  {figures['bits_per_byte']:.4f}")
    return Report(figures, lines, last.rows, total, "rows")


def whole(task: Task) -> Task:
    """The task, of whose held-out text all is read."""
    if isinstance(task, MaskedText):
        return replace(task, text=replace(task.text, evaluated=EVERYTHING))
    return replace(task, evaluated=EVERYTHING) if isinstance(task, PackedText) else task


def first(batches: Iterator[Batch], rows: int | None) -> Iterator[Batch]:
    """So many rows of them."""
    left = rows
    for batch in batches:
        if left is None or batch.rows <= left:
            left = None if left is None else left - batch.rows
            yield batch
        elif left:
            part = batch.part(slice(0, left))
            yield replace(part, count=int((part.targets != IGNORED).sum()))
            return


def totals(
    loaded: Model, batches: Sequence[Batch], tokenizer: Tokenizer | None
) -> Iterator[Totals]:
    """Running sums; with a tokenizer, the bytes that the targets write."""
    transformer = loaded.running
    found = Totals()
    stream = None if tokenizer is None else TextStream(tokenizer)
    for batch in batches:
        nats, right = measured(transformer, batch)
        asked = batch.targets[batch.targets != IGNORED].tolist()
        written = 0 if stream is None else sum(len(stream.push(id).encode()) for id in asked)
        found = Totals(
            found.rows + batch.rows,
            found.nats + nats,
            found.targets + batch.count,
            found.right + right,
            found.bytes + written,
        )
        yield found


@torch.no_grad()
def measured(transformer: Transformer, batch: Batch) -> tuple[float, int]:
    """Nats of a batch, and how many of its labels are right."""
    if not isinstance(transformer.config.head, Classifier):
        return float(Objective(transformer)(batch)[1]), 0
    logits: Tensor = transformer.head(
        transformer.hidden(batch.tokens, padding=batch.padding), padding=batch.padding
    )
    return float(F.cross_entropy(logits, batch.targets, reduction="sum")), int(
        (logits.argmax(-1) == batch.targets).sum()
    )
