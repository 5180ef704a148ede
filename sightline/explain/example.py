"""Self-attention on three words: four numbers each, no learned weights, every step with its
equation.

s = q kᵀ / √d_k        a = softmax(s)        z = a v        with q = k = v = x
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from sightline.explain.markdown import markdown_table

WORDS = ("I", "love", "Transformers")
X = ((1.0, 0.5, 0.2, 0.1), (0.3, 1.0, 0.4, 0.2), (0.2, 0.3, 1.0, 0.5))
SHADES = ("white on #16323c", "white on #1c4f5f", "white on #23778c", "bold black on #6fc7d6")

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class ExampleStep:
    """One equation, what it means, and its result: one row per word."""

    name: str
    equation: str
    shape: str
    meaning: str
    rows: Matrix
    columns: tuple[str, ...] = ()


def three_words() -> list[ExampleStep]:
    """The word vectors, the scores, the weights and the outputs."""
    scores = scaled_scores(X, X)
    weights = tuple(softmax(row) for row in scores)
    return [
        ExampleStep("x", "q = k = v = x", "[T, d_k] = 3 × 4", "each word is a vector", X),
        ExampleStep(
            "scores",
            "s = q kᵀ / √d_k",
            "[T, T] = 3 × 3",
            "how well each key matches the query",
            scores,
            WORDS,
        ),
        ExampleStep(
            "weights",
            "a = softmax(s)",
            "[T, T] = 3 × 3",
            "scores as weights: every row sums to 1",
            weights,
            WORDS,
        ),
        ExampleStep(
            "output",
            "z = a v",
            "[T, d_v] = 3 × 4",
            "each output is a weighted mean of the three values",
            weighted_sum(weights, X),
        ),
    ]


def scaled_scores(query: Matrix, key: Matrix) -> Matrix:
    """q kᵀ / √d_k"""
    root = math.sqrt(len(key[0]))
    return tuple(
        tuple(sum(a * b for a, b in zip(q, k, strict=True)) / root for k in key) for q in query
    )


def softmax(row: tuple[float, ...]) -> tuple[float, ...]:
    """exp(s_j) / Σ exp(s)"""
    powers = [math.exp(score - max(row)) for score in row]
    return tuple(power / sum(powers) for power in powers)


def weighted_sum(weights: Matrix, value: Matrix) -> Matrix:
    """a v"""
    return tuple(
        tuple(
            sum(a * v for a, v in zip(row, column, strict=True))
            for column in zip(*value, strict=True)
        )
        for row in weights
    )


def three_words_values() -> dict[str, Any]:
    """The steps as dictionaries and lists, unrounded."""
    steps = {
        step.name: {"equation": step.equation, "rows": [list(row) for row in step.rows]}
        for step in three_words()
    }
    return {"words": list(WORDS), "steps": steps}


def three_words_markdown() -> str:
    """The steps as a Markdown page."""
    lines = [
        "# Self-attention on three words",
        "",
        f"{', '.join(WORDS)}: every word attends to all words.",
    ]
    for n, step in enumerate(three_words(), 1):
        numbers = [
            (word, *(f"{number:.3f}" for number in row))
            for word, row in zip(WORDS, step.rows, strict=True)
        ]
        header = ("", *(step.columns or [f"{axis}" for axis in range(1, len(step.rows[0]) + 1)]))
        lines += [
            "",
            f"## {n}. `{step.equation}`",
            "",
            f"`{step.shape}`: {step.meaning}",
            "",
            *markdown_table(header, numbers),
        ]
    return "\n".join(lines) + "\n"


def render_three_words() -> list[Text]:
    """The steps for the terminal; larger weights are brighter."""
    lines: list[Text] = [
        Text("Self-attention on three words", "bold"),
        Text(f"{' '.join(WORDS)}: every word attends to all words", "dim"),
    ]
    steps = three_words()
    for n, step in enumerate(steps, 1):
        lines += [
            Text(),
            Text.assemble(
                (f"{n}. {step.equation}", "bold cyan"), f"   {step.shape}   ", (step.meaning, "dim")
            ),
        ]
        lines += step_table(step)
    self_weights = [row[n] for n, row in enumerate(steps[2].rows)]
    strongest = self_weights.index(max(self_weights))
    share = max(self_weights)
    return [
        *lines,
        Text(),
        Text(
            f"“{WORDS[strongest]}” attends to itself most: {share:.1%} of its output is its own"
            " value."
        ),
    ]


def step_table(step: ExampleStep) -> list[Text]:
    """One row per word; the header names the keys where the columns are words."""
    label = max(len(word) for word in WORDS)
    wide = max(8, *(len(column) + 2 for column in step.columns)) if step.columns else 8
    header = (
        [Text(" " * (label + 4) + "".join(column.rjust(wide) for column in step.columns), "dim")]
        if step.columns
        else []
    )
    return header + [
        Text.assemble(
            "    ",
            (word.ljust(label), "bold"),
            *((f"{number:.3f}".rjust(wide), weight_style(step, number)) for number in row),
        )
        for word, row in zip(WORDS, step.rows, strict=True)
    ]


def weight_style(step: ExampleStep, number: float) -> str:
    """A background colour for weights, from the smallest to the largest; none for other numbers."""
    if step.name != "weights":
        return ""
    numbers = [weight for row in step.rows for weight in row]
    height = (number - min(numbers)) / (max(numbers) - min(numbers))
    return SHADES[min(int(height * len(SHADES)), len(SHADES) - 1)]
