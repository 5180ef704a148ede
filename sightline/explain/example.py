"""Self-attention in thirty seconds: three words, four numbers each, no learned weights, every step
with its equation.

s = q kᵀ / √d_k        a = softmax(s)        z = a v        with q = k = v = x
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from sightline.explain.markdown import grid

WORDS = ("I", "love", "Transformers")
X = ((1.0, 0.5, 0.2, 0.1), (0.3, 1.0, 0.4, 0.2), (0.2, 0.3, 1.0, 0.5))
SHADES = ("white on #16323c", "white on #1c4f5f", "white on #23778c", "bold black on #6fc7d6")

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of mathematics, what it says, and what comes out: one row for each word."""

    name: str
    equation: str
    shape: str
    says: str
    rows: Matrix
    columns: tuple[str, ...] = ()


def three_words() -> list[Step]:
    """The words as vectors, the scores, the weights, and what each word has become."""
    scores = scaled_scores(X, X)
    weights = tuple(softmax(row) for row in scores)
    return [
        Step("x", "q = k = v = x", "[T, d_k] = 3 × 4", "each word is a vector", X),
        Step(
            "scores",
            "s = q kᵀ / √d_k",
            "[T, T] = 3 × 3",
            "how well does each word's key answer the query?",
            scores,
            WORDS,
        ),
        Step(
            "weights",
            "a = softmax(s)",
            "[T, T] = 3 × 3",
            "scores as shares: every row adds up to 1",
            weights,
            WORDS,
        ),
        Step(
            "output",
            "z = a v",
            "[T, d_v] = 3 × 4",
            "each word is now a mixture of all three",
            product(weights, X),
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


def product(weights: Matrix, value: Matrix) -> Matrix:
    """a v"""
    return tuple(
        tuple(
            sum(a * v for a, v in zip(row, column, strict=True))
            for column in zip(*value, strict=True)
        )
        for row in weights
    )


def to_plain() -> dict[str, Any]:
    """The steps as plain values, unrounded."""
    steps = {
        step.name: {"equation": step.equation, "rows": [list(row) for row in step.rows]}
        for step in three_words()
    }
    return {"words": list(WORDS), "steps": steps}


def to_markdown() -> str:
    """The steps as a page."""
    lines = [
        "# Self-attention on three words",
        "",
        f"{', '.join(WORDS)}: every word asks all the words.",
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
            f"`{step.shape}`: {step.says}",
            "",
            *grid(header, numbers),
        ]
    return "\n".join(lines) + "\n"


def render() -> list[Text]:
    """The steps on the screen; the larger a weight, the brighter."""
    lines: list[Text] = [
        Text("Self-attention on three words", "bold"),
        Text(f"{' '.join(WORDS)}: every word asks all the words", "dim"),
    ]
    steps = three_words()
    for n, step in enumerate(steps, 1):
        lines += [
            Text(),
            Text.assemble(
                (f"{n}. {step.equation}", "bold cyan"), f"   {step.shape}   ", (step.says, "dim")
            ),
        ]
        lines += step_table(step)
    own = [row[n] for n, row in enumerate(steps[2].rows)]
    strongest = own.index(max(own))
    share = max(own)
    return [
        *lines,
        Text(),
        Text(
            f"“{WORDS[strongest]}” looks at itself most: {share:.1%} of what it becomes is what it"
            " was."
        ),
    ]


def step_table(step: Step) -> list[Text]:
    """One row for each word, under the words it looks at where the columns are words."""
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
            *((f"{number:.3f}".rjust(wide), shade(step, number)) for number in row),
        )
        for word, row in zip(WORDS, step.rows, strict=True)
    ]


def shade(step: Step, number: float) -> str:
    """Weights on a scale from their smallest to their largest; other numbers plain."""
    if step.name != "weights":
        return ""
    numbers = [weight for row in step.rows for weight in row]
    height = (number - min(numbers)) / (max(numbers) - min(numbers))
    return SHADES[min(int(height * len(SHADES)), len(SHADES) - 1)]
