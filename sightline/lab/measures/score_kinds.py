"""Small character models that differ only in their attention scores: dot product, cosine, nGPT."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from sightline.architectures import llama, ngpt
from sightline.lab.learning import held_out_loss, shakespeare, training_steps
from sightline.lab.measures.kernel_smoother import smooth_losses
from sightline.lab.measures.repeats import ProbedModel
from sightline.lens.interventions.keys import change_keys
from sightline.record import Recorder
from sightline.training.config import AdamW

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.training.data.packed import PackedText

WIDTH = 64
LAYERS = 2
HEADS = 2
CONTEXT = 64
ROWS = 8
WINDOWS = 32  # of the held-out text, with and without the differences in length


def model_of_kind(kind: str, vocabulary: int) -> ModelConfig:
    """The same size and positions; only the attention scores differ."""
    if kind == "ngpt":
        return ngpt(
            width=WIDTH, layers=LAYERS, heads=HEADS, vocab_size=vocabulary, max_positions=CONTEXT
        )
    return llama(
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        vocab_size=vocabulary,
        max_positions=CONTEXT,
        attention=kind,
        tied=False,
    )


def train_kind(kind: str, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """Train on the same batches without weight decay (nGPT without warm-up, as in its paper):
    held-out loss, smoothed learning curve, cost of equal lengths."""
    text, vocabulary = shakespeare(CONTEXT, ROWS, seed)
    warmup = 0 if kind == "ngpt" else steps // 20
    optimizer = AdamW(lr=rate, weight_decay=0.0)
    run = list(
        training_steps(
            model_of_kind(kind, vocabulary),
            text,
            steps=steps,
            warmup=warmup,
            optimizer=optimizer,
            seed=seed,
        )
    )
    learner = run[-1][0]
    losses = [event.loss for _, event in run]
    return {
        "loss": held_out_loss(learner, text),
        "parameters": sum(p.numel() for p in learner.transformer.parameters()),
        "course": smooth_losses(losses)["course"],
        **cost_of_equal_lengths(learner.transformer, held_out_windows(text)),
    }


def held_out_windows(text: PackedText) -> Tensor:
    """The first windows of the held-out text."""
    tokens = torch.cat([batch.tokens for batch in islice(text.validation(), WINDOWS)])
    return tokens[:WINDOWS]


def cost_of_equal_lengths(transformer: Transformer, tokens: Tensor) -> dict[str, float]:
    """How much the loss rises when all keys of a row get their mean length, from zero."""
    subject = ProbedModel(transformer.eval())
    losses: list[float] = []
    for edits in ({}, change_keys(subject, "length")):
        with torch.no_grad():
            logits = transformer(tokens[:, :-1], record=Recorder(edits=edits))
        losses.append(float(cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())))
    return {"windows": losses[0], "equal lengths": losses[1] - losses[0]}
