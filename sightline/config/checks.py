"""The small checks that configurations share."""

from __future__ import annotations

from sightline.errors import ConfigError


def at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(
            f"{name} is {value}", expected=f"{least} or more", fix=f"{name.split('.')[-1]}={least}"
        )


def above(name: str, value: float, bound: float) -> None:
    if not value > bound:
        raise ConfigError(
            f"{name} is {value}",
            expected=f"a number above {bound}",
            fix="leave it out for the default",
        )


def probability(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise ConfigError(f"{name} is {value}", expected="0 ≤ dropout < 1", fix="dropout=0.1")


def largest_divisor(number: int, limit: int) -> int:
    return next(k for k in range(min(number, limit), 0, -1) if number % k == 0)
