"""The tuned lens (Belrose et al. 2023): one affine translator per layer, trained so that the
model's own readout of the translated stream gives the final distribution.

    lens_n(x)  = head(final_norm(x + A_n x + b_n))     A_n = 0 and b_n = 0: the raw logit lens
    loss_n     = KL(final ‖ lens_n)                    in nats

Training sees the most probable tokens only, which makes a step ten times cheaper; the divergences
that are reported are over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.runner import in_eval_mode
from sightline.lab.measures.sparse_autoencoder import BEINGS, MODEL, OPENINGS
from sightline.record import Recorder

FREQUENT = 2048  # tokens that training sees
BATCH = 128  # tokens of a step
JUDGED = 400  # held-out tokens over the whole vocabulary
Streams = Float[Tensor, "rows tokens width"]


@dataclass(frozen=True, slots=True)
class Readout:
    """The final norm and the vectors of the vocabulary."""

    norm: Callable[[Tensor], Tensor]
    vocabulary: Float[Tensor, "vocab_size width"]

    def log_probs(self, stream: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The distribution over all tokens, or over some."""
        vectors = self.vocabulary if tokens is None else self.vocabulary[tokens]
        return (self.norm(stream) @ vectors.T).log_softmax(-1)


@dataclass(frozen=True, slots=True)
class Reading:
    """The stream that enters each block, and the last one, at the tokens of some texts."""

    streams: Streams
    last: Float[Tensor, "tokens width"]


@dataclass(frozen=True, slots=True)
class Translators:
    """A and b of every row."""

    matrices: Float[Tensor, "rows width width"]
    biases: Float[Tensor, "rows 1 width"]

    @classmethod
    def identity(cls, rows: int, width: int) -> Translators:
        return cls(torch.zeros(rows, width, width), torch.zeros(rows, 1, width))

    def __call__(self, streams: Streams) -> Streams:
        return streams + streams @ self.matrices + self.biases


@lru_cache(maxsize=2)
def read_stories(stories: int, length: int, seed: int) -> tuple[Readout, Reading, Reading]:
    """The model reads stories that it wrote itself; every fourth one is held out."""
    from sightline.loading import load

    model = load(MODEL)
    openings = [f"{opening} {being}" for being in BEINGS for opening in OPENINGS][:stories]
    written = model.generate_many(openings, max_tokens=length, temperature=1.0, seed=seed)
    transformer = in_eval_mode(model.transformer)
    stack = transformer.last_stack
    readings = list[tuple[Tensor, Tensor]]()
    for opening, story in zip(openings, written, strict=True):
        recorder = Recorder({"residual", "feed_forward", "attention"})
        with torch.no_grad():
            transformer(torch.tensor([[*model.ids(opening), *story.tokens]]), record=recorder)
        layers = stack.config.layers
        streams = [recorder[stack.name, layer, "residual"][0] for layer in range(layers)]
        adds = [recorder[stack.name, layers - 1, name][0] for name in ("attention", "feed_forward")]
        readings.append((torch.stack(streams), streams[-1] + adds[0] + adds[1]))
    training, held_out = (
        Reading(
            torch.cat([row[0] for n, row in enumerate(readings) if (n % 4 == 3) == which], 1),
            torch.cat([row[1] for n, row in enumerate(readings) if (n % 4 == 3) == which]),
        )
        for which in (False, True)
    )
    readout = Readout(frozen(stack.norm), stack.embedding.tokens.weight.detach())
    return readout, training, held_out


def frozen(norm: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """The norm without gradients of its own."""
    for parameter in norm.parameters():
        parameter.requires_grad = False
    return norm


def train_translators(
    readout: Readout,
    reading: Reading,
    *,
    rate: float,
    steps: int,
    seed: int,
    shuffled: bool = False,
) -> Translators:
    """Adam with a cosine decay to zero. `shuffled`: each token gets the final distribution of
    another, so that only what does not depend on the text can be learned."""
    rows, count, width = reading.streams.shape
    generator = torch.Generator().manual_seed(seed)
    targets = reading.last[torch.randperm(count, generator=generator)] if shuffled else reading.last
    tokens = frequent_tokens(readout, reading)
    made = Translators.identity(rows, width)
    parameters = [made.matrices.requires_grad_(), made.biases.requires_grad_()]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = torch.randint(count, (BATCH,), generator=generator)
        loss = divergences(readout, made(reading.streams[:, batch]), targets[batch], tokens).sum()
        optimizer.zero_grad()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()
        schedule.step()
    return Translators(made.matrices.detach(), made.biases.detach())


@torch.no_grad()
def frequent_tokens(readout: Readout, reading: Reading) -> Tensor:
    """The tokens with the highest mean probability at some of the positions."""
    mean = readout.log_probs(reading.last[:: max(1, len(reading.last) // 256)]).exp().mean(0)
    return mean.topk(min(FREQUENT, len(mean))).indices


def divergences(
    readout: Readout, translated: Streams, last: Tensor, tokens: Tensor | None = None
) -> Float[Tensor, " rows"]:
    """KL(final ‖ lens) of each row, over all tokens or some."""
    final = readout.log_probs(last, tokens)
    return torch.stack(
        [
            (final.exp() * (final - readout.log_probs(row, tokens))).sum(-1).mean()
            for row in translated
        ]
    )


@torch.no_grad()
def held_out_divergences(
    readout: Readout, reading: Reading, translators: Translators
) -> list[float]:
    """Over the whole vocabulary, at evenly spaced held-out tokens."""
    step = max(1, len(reading.last) // JUDGED)
    translated = translators(reading.streams[:, ::step])
    return divergences(readout, translated, reading.last[::step]).tolist()


@torch.no_grad()
def restricted_score(
    readout: Readout, reading: Reading, translators: Translators, tokens: Tensor, targets: Tensor
) -> float:
    """The mean divergence from these targets over some tokens: what pilots compare."""
    translated = translators(reading.streams)
    return float(divergences(readout, translated, targets, tokens).mean())
