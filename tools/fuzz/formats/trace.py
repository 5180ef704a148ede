"""Saved traces: equal to what was saved, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import sightline as sl
from sightline.lens.trace.layer import Look
from tools.fuzz.outcome import require

FIELDS = ("name", "config", "tokens", "text", "source", "source_text", "rows", "notes")


def make(place: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "vocab_size": 30,
        "max_positions": 16,
    }
    for name, config in (("gpt", sl.gpt(**sizes)), ("llama", sl.llama(**sizes))):
        (place / name).mkdir()
        trace = sl.Model(sl.build(config).eval(), None, name=name).trace(
            [3, 7, 1, 4], what=("query", "key", "value", "residual")
        )
        trace.save(place / name / "seen.trace")


def check(case: Path, sample: Path) -> None:
    trace = sl.Trace.open(case / "seen.trace")
    expected = sl.Trace.open(sample / "seen.trace")
    for field in FIELDS:
        require(getattr(trace, field) == getattr(expected, field), f"another {field}")
    require(same(trace.logits, expected.logits), "other logits")
    require(trace.kept.keys() == expected.kept.keys(), "other activations")
    require(
        all(same(value, expected.kept[place]) for place, value in trace.kept.items()),
        "other activations",
    )
    require(list(trace.looks) == list(expected.looks), "other heads")
    for site, look in trace.looks.items():
        for kind in (Look.weights, Look.scores):
            require(same(kind(look), kind(expected.looks[site])), "other attention")


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
