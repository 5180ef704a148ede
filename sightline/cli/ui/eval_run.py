"""`sightline eval RUN`: the model of a run, measured on all of the run's held-out data.

The recipe and settings in run.json build the same job again, and with it the same held-out data.
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

from sightline.cli.commands.train.eval import (
    DataOptions,
    Report,
    check_limit,
    collect_results,
    evaluate_pairs,
    require_tokenizer,
)
from sightline.cli.ui.loading import load_shown
from sightline.cli.ui.options.sampling import TranslationOptions
from sightline.cli.ui.output import note
from sightline.cli.ui.runs import PastRun, read_run
from sightline.config import Classifier, LanguageHead
from sightline.core.model import Transformer
from sightline.core.runner import in_eval_mode
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


def evaluate_run(folder: Path, options: DataOptions, beam: TranslationOptions) -> Report:
    """The loss; then perplexity and bits per byte, BLEU and chrF, or accuracy, by kind of model."""
    check_limit(options.limit)
    run = read_run(folder)
    recipe = run.settings()
    job = rebuild_job(run, recipe)
    loaded = load_shown(str(folder))
    if not isinstance(job.task, Pairs):
        return evaluate_loss(loaded, job.task, options.limit)
    joins_words = isinstance(recipe, Translate) and recipe.join
    tokenize = options.tokenize or ("char" if joins_words else "13a")
    bleu_with(tokenize)
    loss = evaluate_loss(loaded, job.task, options.limit)
    rows = held_out_pairs(recipe, job.task, loaded)[: options.limit]
    quality = evaluate_pairs(loaded, require_tokenizer(loaded), rows, beam, tokenize=tokenize)
    return replace(
        quality,
        figures={**loss.figures, **quality.figures},
        lines=[*loss.lines, "", *quality.lines],
    )


def rebuild_job(run: PastRun, recipe: Recipe) -> Job:
    """The job of a run, with a note if its data has changed."""
    job = recipe.job()
    if job.task.fingerprint != run.description.get("data"):
        note("the data has changed since this run began")
    return job


def held_out_pairs(recipe: Recipe, task: Pairs, loaded: Model) -> list[tuple[str, str]]:
    """The pairs as in the files; with `join`, references lose their spaces like the
    translations."""
    if isinstance(recipe, Translate):
        sources, references = recipe.sentences()[1]
        if recipe.join:
            references = ["".join(text.split()) for text in references]
        return list(zip(sources, references, strict=True))
    decode = require_tokenizer(loaded).decode
    return [(decode(source), decode(target)) for source, target in zip(*task.held_out, strict=True)]


# --------------------------------------------------------------------------------------- the loss


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rows so far: nats of the targets, correct labels, bytes of the text."""

    rows: int = 0
    nats: float = 0.0
    targets: int = 0
    right: int = 0
    bytes: int = 0


def evaluate_loss(loaded: Model, task: Task, limit: int | None) -> Report:
    """Nats per target, and the figures that follow from them."""
    batches = list(first_rows(with_all_windows(task).validation(), limit))
    if not batches:
        raise InputError(
            "a run without held-out data", expected="data", fix="sightline eval RUN DATA"
        )
    text = isinstance(loaded.config.head, LanguageHead) and loaded.config.encoder is None
    total = sum(batch.rows for batch in batches)
    results = running_totals(loaded, batches, require_tokenizer(loaded) if text else None)
    last = collect_results(results, at=lambda partial: (partial[-1].rows, total))[-1]
    loss = last.nats / last.targets
    figures: dict[str, Any] = {"loss": loss, "targets": last.targets}
    lines = [f"loss           {loss:.4f} nats per target, {last.targets:,} targets"]
    if isinstance(loaded.config.head, Classifier):
        figures |= {"accuracy": last.right / last.rows, "right": last.right}
        lines.append(f"accuracy       {last.right / last.rows:.4f}, {last.right} correct")
    else:
        figures["perplexity"] = math.exp(min(loss, 700))
        lines.append(f"perplexity     {figures['perplexity']:.4f}")
    if last.bytes:
        figures |= {"bits_per_byte": last.nats / math.log(2) / last.bytes, "bytes": last.bytes}
        lines.append(f"bits per byte  {figures['bits_per_byte']:.4f}")
    return Report(figures, lines, last.rows, total, "rows")


def with_all_windows(task: Task) -> Task:
    """The task, evaluated on all of its held-out text."""
    if isinstance(task, MaskedText):
        return replace(task, text=replace(task.text, evaluated=EVERYTHING))
    return replace(task, evaluated=EVERYTHING) if isinstance(task, PackedText) else task


def first_rows(batches: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """The batches up to a number of rows; the last one may be a part."""
    left = limit
    for batch in batches:
        if left is None or batch.rows <= left:
            left = None if left is None else left - batch.rows
            yield batch
        elif left:
            part = batch.part(slice(0, left))
            yield replace(part, count=int((part.targets != IGNORED).sum()))
            return


def running_totals(
    loaded: Model, batches: Sequence[Batch], tokenizer: Tokenizer | None
) -> Iterator[Totals]:
    """Running sums; with a tokenizer, the bytes of the targets' text too."""
    transformer = in_eval_mode(loaded.transformer)
    totals = Totals()
    stream = None if tokenizer is None else TextStream(tokenizer)
    for batch in batches:
        nats, correct = batch_loss(transformer, batch)
        targets = batch.targets[batch.targets != IGNORED].tolist()
        size = 0 if stream is None else sum(len(stream.push(id).encode()) for id in targets)
        totals = Totals(
            totals.rows + batch.rows,
            totals.nats + nats,
            totals.targets + batch.count,
            totals.right + correct,
            totals.bytes + size,
        )
        yield totals


@torch.no_grad()
def batch_loss(transformer: Transformer, batch: Batch) -> tuple[float, int]:
    """Nats of a batch, and its number of correct labels."""
    if not isinstance(transformer.config.head, Classifier):
        return float(Objective(transformer)(batch)[1]), 0
    logits: Tensor = transformer.head(
        transformer.hidden(batch.tokens, padding=batch.padding), padding=batch.padding
    )
    nats = F.cross_entropy(logits, batch.targets, reduction="sum")
    correct = (logits.argmax(-1) == batch.targets).sum()
    return float(nats), int(correct)
