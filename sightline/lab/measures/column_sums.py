"""Column addition with carries: the sums, the scores of answers, and curves over the training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.lab.measures.curves import first_crossing, rise_width

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from sightline.core.model import Transformer

DIGITS = 8
LENGTHS = (1, 2, 4, 8)
VISIBLE = 0.05  # exact answers that a plot begins to show; also, 5 points are a visible difference


def random_sums(count: int, base: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Columns of two digits as tokens a · base + b, the lowest column first, and the digits of the
    sum; the last carry is dropped."""
    import torch

    a, b = torch.randint(base, (2, count, DIGITS), generator=random)
    carry = torch.zeros(count, dtype=torch.long)
    digits: list[Tensor] = []
    for column in range(DIGITS):
        total = a[:, column] + b[:, column] + carry
        digits.append(total % base)
        carry = total // base
    return a * base + b, torch.stack(digits, 1)


def scores_of_model(
    model: Transformer, tokens: Tensor, digits: Tensor, base: int
) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        return answer_scores(model(tokens)[..., :base], digits)


def answer_scores(logits: Tensor, digits: Tensor) -> dict[str, Any]:
    """From the logits of every column: nats per digit; accuracy per column; the share of answers
    whose first 1, 2, 4, 8 digits are all correct; and the correlation of two columns' errors."""
    right = logits.argmax(-1) == digits
    nats = -logits.double().log_softmax(-1).gather(-1, digits[..., None]).mean()
    exact = {str(length): float(right[:, :length].all(1).double().mean()) for length in LENGTHS}
    return {
        "nats": float(nats),
        "right": right.double().mean(0).tolist(),
        "exact": exact,
        "together": error_correlation(right),
    }


def error_correlation(right: Tensor) -> float:
    """The mean covariance of two columns over their mean variance: 0 for independent errors."""
    import torch

    covariance = torch.cov(right.double().T)
    variance = float(covariance.diagonal().sum())
    between = float(covariance.sum()) - variance
    return between / (DIGITS - 1) / variance if variance > 0 else 0.0


# ------------------------------------------------------------------------------ course of training


@dataclass(frozen=True, slots=True)
class Course:
    """The scores of one model in the course of its training: log steps, nats per digit, accuracy
    per column, exact answers by length."""

    time: list[float]
    nats: list[float]
    right: list[list[float]]
    exact: list[Mapping[str, float]]
    base: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Course:
        looks = row["course"]
        return cls(
            [math.log(look["step"]) for look in looks],
            [look["nats"] for look in looks],
            [look["right"] for look in looks],
            [look["exact"] for look in looks],
            row["base"],
        )

    def matches(self, length: int) -> list[float]:
        return [row[str(length)] for row in self.exact]

    def predicted(self, length: int) -> list[float]:
        return [power_law(row, length) for row in self.right]


def power_law(right: Sequence[float], length: int) -> float:
    """p^L with p the accuracy on the first L digits."""
    return (sum(right[:length]) / length) ** length


def likelihood_progress(course: Course) -> list[float]:
    """Log-likelihood rescaled: 0 at uniform guessing (log of the base), 1 at certainty."""
    return [1 - value / math.log(course.base) for value in course.nats]


def sharpness(course: Course) -> float:
    """Rise width of log-likelihood over that of exact answers, in log steps; NaN where the answers
    do not rise."""
    exact = rise_width(course.time, course.matches(DIGITS))
    return rise_width(course.time, likelihood_progress(course)) / exact if exact > 0 else math.nan


def progress_at_first_exact(course: Course) -> float:
    """Rescaled log-likelihood when 5% of the answers are exact."""
    import numpy as np

    first = first_crossing(course.time, course.matches(DIGITS), VISIBLE)
    return float(np.clip(np.interp(first, course.time, likelihood_progress(course)), 0.0, 1.0))


def half_exact_time(course: Course, length: int) -> float:
    """Log steps at which half of the answers of a length are exact."""
    return first_crossing(course.time, course.matches(length), 0.5)


def delay_of_long_answers(course: Course) -> float:
    """Steps until half of the answers are exact: of 8 digits over those of 2."""
    return math.exp(half_exact_time(course, DIGITS) - half_exact_time(course, 2))
