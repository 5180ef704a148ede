"""How far back a model reaches: recall over a distance, the layers that a distance needs, positions
that a convolution cannot tell apart, and the memory and time of a training step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from sightline.lab.learning import seeded_generator
from sightline.lab.measures.rivals import VOCABULARY, build_rival

VALUES = 8  # symbols to recall are 0 … 7; 8 … 22 are noise
QUESTION = VOCABULARY - 1
BATCH = 16
HELD_OUT = 256
EVERY = 25  # steps between evaluations
TIMED_ROWS = 4


# ----------------------------------------------------------------------------------------- recall


def recall_batch(far: int, rows: int, random: Generator) -> tuple[Tensor, Tensor]:
    """[symbol, noise …, ?]; the target is the symbol `far` tokens before the question."""
    symbol = torch.randint(0, VALUES, (rows, 1), generator=random)
    noise = torch.randint(VALUES, QUESTION, (rows, far - 1), generator=random)
    return torch.cat((symbol, noise, torch.full((rows, 1), QUESTION)), dim=1), symbol[:, 0]


def train_recall(name: str, far: int, seed: int, *, steps: int, rate: float) -> dict[str, float]:
    """Train at this distance with AdamW until all held-out rows are right, for `steps` at most:
    accuracy, steps, how much the answer depends on the symbol, and the mean loss over `steps` (0
    after an early stop) as the score of the learning rate."""
    model = build_rival(name, seed, longest=far + 1)
    random = seeded_generator(seed, far)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    held_out, truth = recall_batch(far, HELD_OUT, seeded_generator(seed, far, 1))
    right = 0.0
    step = 0
    total = 0.0
    while step < steps and right < 1:
        tokens, symbols = recall_batch(far, BATCH, random)
        loss = F.cross_entropy(model(tokens)[:, -1], symbols)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        step += 1
        if step % EVERY == 0 or step == steps:
            right = held_out_accuracy(model, held_out, truth)
    return {
        "right": right,
        "steps": step,
        "score": total / steps,
        "change": change_by_symbol(model, held_out),
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }


@torch.no_grad()
def held_out_accuracy(model: nn.Module, tokens: Tensor, truth: Tensor) -> float:
    return float((model(tokens)[:, -1].argmax(-1) == truth).double().mean())


@torch.no_grad()
def change_by_symbol(model: nn.Module, tokens: Tensor) -> float:
    """The largest change of the last logits when every row's symbol is replaced."""
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % VALUES
    return float((model(tokens)[:, -1] - model(other)[:, -1]).abs().max())


# ----------------------------------------------------------------------------- layers and positions


def fewest_layers(name: str, far: int, seed: int) -> int:
    """The minimum number of layers for the last of far + 1 states to depend on the first token."""
    return next(
        layers
        for layers in range(1, far + 1)
        if depends_on_first(name, far, layers=layers, seed=seed)
    )


def depends_on_first(name: str, far: int, *, layers: int, seed: int) -> bool:
    """Whether the last state has a nonzero gradient with respect to the embedding of the first
    token."""
    model = build_rival(name, seed, longest=far + 1, layers=layers).double()
    tokens = torch.ones(1, far + 1, dtype=torch.long)
    tokens[0, 0] = 0
    table = next(
        part
        for part in model.modules()
        if isinstance(part, nn.Embedding) and part.num_embeddings == VOCABULARY
    )
    (gradient,) = torch.autograd.grad(model.hidden(tokens)[0, -1].square().sum(), table.weight)
    return bool(gradient[0].abs().max() > 0)


def path_length_formula(name: str, far: int) -> int:
    """⌈N / (k − 1)⌉ plain, ⌈log₂(N / (k − 1) + 1)⌉ dilated, 1 for attention and for LSTM and GRU,
    which need N sequential steps."""
    span = 2
    return {"plain": math.ceil(far / span), "dilated": math.ceil(math.log2(far / span + 1))}.get(
        name, 1
    )


@torch.no_grad()
def positions_told_apart(name: str, time: int, seed: int) -> int:
    """How many of the first positions differ from the last one, where every token is the same: the
    states that know their position. Equal means within 1e-12 in float64."""
    model = build_rival(name, seed, longest=time).double()
    states = model.hidden(torch.ones(1, time, dtype=torch.long))[0]
    apart = (states - states[-1]).abs().amax(-1) > 1e-12
    return int(apart.nonzero().max()) + 1 if bool(apart.any()) else 0


# ------------------------------------------------------------------------------- cost of a step


def saved_bytes(name: str, length: int) -> int:
    """Bytes of activations that a forward pass over one row keeps for the backward pass."""
    model = build_rival(name, 0, longest=length)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}
    tensors: list[Tensor] = []  # alive, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.ones(1, length, dtype=torch.long)).sum()
    return sum(kept.values())


def time_training_steps(
    names: Sequence[str], lengths: Sequence[int], seed: int
) -> dict[str, dict[str, float]]:
    """Seconds per training step on 4 rows, models interleaved; medians of 5."""
    random = torch.Generator().manual_seed(seed)
    models = {name: build_rival(name, seed, longest=lengths[-1]) for name in names}
    medians: dict[str, dict[str, float]] = {name: {} for name in names}
    for length in lengths:
        tokens = torch.randint(0, QUESTION, (TIMED_ROWS, length), generator=random)
        samples: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(6):
            for name, model in models.items():
                start = time.perf_counter()
                model(tokens).square().mean().backward()
                samples[name] += [time.perf_counter() - start] * (turn > 0)
        for name, seconds in samples.items():
            medians[name][str(length)] = statistics.median(seconds)
    return medians
