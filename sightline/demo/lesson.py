"""The demo's lesson: a small Transformer learns to repeat letters, and its clearest attention head
is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.architectures import gpt
from sightline.core.attention import attention_weights
from sightline.core.model import Transformer
from sightline.record import Recorder

LETTERS = "abcdefghijklmnopqrstuvwxyz"
HALF = 10
SHADES = " ░▒▓█"


@dataclass(frozen=True)
class LessonStep:
    """One training step of the lesson."""

    number: int
    of: int
    loss: float


@dataclass(frozen=True)
class Lesson:
    """A repeating text, the model's predictions, and the attention weights of the clearest head."""

    text: str
    predicted: str
    right: float
    layer: int
    head: int
    weights: Tensor


def teach(model: Transformer, *, steps: int = 200, seed: int = 0) -> Iterator[LessonStep]:
    """Train on texts whose second half repeats the first: the loss counts the second half only."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, number / 30)
        text = repeated_letters(32, random)
        loss = F.cross_entropy(
            model(text[:, :-1])[:, HALF - 1 :].flatten(0, 1), text[:, HALF:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield LessonStep(number, steps, float(loss.detach()))


def repeated_letters(rows: int, random: torch.Generator) -> Tensor:
    """Ten random letters, twice."""
    half = torch.randint(0, len(LETTERS), (rows, HALF), generator=random)
    return torch.cat((half, half), dim=1)


def small_model() -> Transformer:
    """Two layers, four heads, learned positions."""
    torch.manual_seed(0)
    return Transformer(
        gpt(width=64, layers=2, heads=4, vocab_size=len(LETTERS), max_positions=2 * HALF)
    )


@torch.no_grad()
def evaluate_copying(model: Transformer, *, seed: int = 7) -> Lesson:
    """Evaluate on a new text; the head with the largest weight on the letter to repeat is
    returned."""
    text = repeated_letters(1, torch.Generator().manual_seed(seed))
    recorder = Recorder({"query", "key", "mask", "bias"})
    predicted = model(text, record=recorder).argmax(-1)
    best = (-1.0, 0, 0, torch.empty(0))
    for layer in range(2):
        query, key, mask, bias = (
            recorder["decoder", layer, what] for what in ("query", "key", "mask", "bias")
        )
        weights = attention_weights(
            query, key, model.last_stack[layer].attention.scoring(mask, bias)
        )[0]
        scores = weights[:, range(HALF, 2 * HALF - 1), range(1, HALF)].mean(
            -1
        )  # letter n of the second half → letter n+1 of the first
        head = int(scores.argmax())
        best = max(
            best,
            (float(scores[head]), layer, head, weights[head]),
            key=lambda candidate: candidate[0],
        )
    right = (predicted[0, HALF - 1 : -1] == text[0, HALF:]).float().mean()
    return Lesson(letters_of(text[0]), letters_of(predicted[0]), float(right), *best[1:])


def letters_of(tokens: Tensor) -> str:
    return "".join(LETTERS[int(t)] for t in tokens)


def draw_weights(weights: Tensor, text: str) -> list[str]:
    """A weight matrix in characters: one row per query, darker is more."""
    lines = ["    " + " ".join(text)]
    for letter, row in zip(text, weights, strict=True):
        cells = [SHADES[min(len(SHADES) - 1, int(float(w) * len(SHADES)))] * 2 for w in row]
        lines.append(f"  {letter} " + "".join(cells))
    return lines
