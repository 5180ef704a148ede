"""Settings that no training could have are refused on one line, with a value that works."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from sightline.errors import ConfigError
from sightline.training.config import AdamW, Muon, Schedule, TrainingConfig

NAN, INF = math.nan, math.inf
BAD: list[tuple[type, str, Any]] = [
    *((AdamW, "lr", value) for value in (NAN, INF, -1, 0, 1e99, "1", None, True)),
    *((AdamW, "weight_decay", value) for value in (NAN, INF, -1)),
    *((AdamW, "eps", value) for value in (NAN, INF, -1, 0)),
    *((AdamW, "betas", value) for value in ((0.9, 1.0), (NAN, 0.9), (0.9,), (-0.1, 0.9))),
    *((Muon, "lr", value) for value in (NAN, INF, -1, 0)),
    *((Muon, "momentum", value) for value in (NAN, 1.0, -0.1)),
    *((Muon, "iterations", value) for value in (0, 2.5, NAN, 100)),
    *((Schedule, "warmup", value) for value in (-1, 1.5, NAN)),
    *((Schedule, "final", value) for value in (-0.1, 1.1, NAN)),
    *((Schedule, "decay", value) for value in (0, 1.1, NAN)),
    (Schedule, "shape", "cosin"),
    *((TrainingConfig, "steps", value) for value in (0, -1, 1e99, 2.0, NAN, "many", True)),
    *(
        (TrainingConfig, name, value)
        for name in ("accumulate", "save_every", "eval_every")
        for value in (0, -1, 1.5, NAN)
    ),
    *((TrainingConfig, "clip", value) for value in (-1, NAN, INF)),
    *((TrainingConfig, "label_smoothing", value) for value in (-0.1, 1.0, NAN)),
    *((TrainingConfig, "z_loss", value) for value in (-1, NAN, INF)),
    *((TrainingConfig, "ema", value) for value in (-0.1, 1.0, NAN)),
    *((TrainingConfig, "seed", value) for value in (-1, 0.5, 1 << 63)),
    *((TrainingConfig, "keep", value) for value in (0, 1, 2.5)),
    *((TrainingConfig, "minutes", value) for value in (0, -1, NAN, INF)),
    (TrainingConfig, "precision", "fp16"),
    (TrainingConfig, "on_bad", "ignore"),
    (TrainingConfig, "compile", "yes"),
    (TrainingConfig, "optimizer", "adamw"),
]


@pytest.mark.parametrize(
    ("kind", "name", "value"), BAD, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_what_is_refused(kind: type, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**({"steps": 1} if kind is TrainingConfig else {}) | {name: value})
    text = str(caught.value)
    assert re.search("beta" if name == "betas" else name, text)
    assert "expected" in text
    assert "\n" not in text
    assert len(text) < 200


def test_the_fix_is_accepted() -> None:
    for kind, name, value in BAD:
        try:
            kind(**({"steps": 1} if kind is TrainingConfig else {}) | {name: value})
        except ConfigError as error:
            if result := re.fullmatch(rf"{name}=([\d.e-]+)", error.fix):
                text = result[1]
                kind(
                    **({"steps": 1} if kind is TrainingConfig else {})
                    | {name: float(text) if "." in text or "e" in text else int(text)}
                )


def test_defaults_and_edges() -> None:
    assert TrainingConfig(steps=1).keep == 2
    TrainingConfig(
        steps=10**12,
        clip=0,
        ema=0.999999,
        minutes=0.001,
        optimizer=Muon(rest=AdamW(betas=(0, 0.9999))),
    )
