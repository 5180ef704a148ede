"""Results on disk: one JSON file for an experiment, a tier and a seed, written anew after each part, whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.lab.experiment import TIERS, Tier

FORM = 1


@dataclass
class Result:
    """The parts that are done, with the seconds that each took."""

    experiment: str
    tier: Tier
    seed: int
    parts: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    versions: dict[str, str] = field(default_factory=dict[str, str])


def place_of(folder: Path, experiment: str, tier: Tier, seed: int) -> Path:
    return folder / f"{experiment}.{tier}.seed-{seed}.json"


def seeds_in(folder: Path) -> list[int]:
    """The seeds that a folder has results of."""
    found = (re.fullmatch(r".*\.seed-(\d+)\.json", path.name) for path in folder.glob("*.json"))
    return sorted({int(one[1]) for one in found if one})


def read(path: Path) -> Result:
    """A saved result; one that cannot be used is named with what to do about it."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["form"] != FORM or said["tier"] not in TIERS or not isinstance(said["parts"], dict):
            raise ValueError("another form")
        return Result(said["experiment"], said["tier"], said["seed"], said["parts"], said["seconds"], said["versions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        seen = f"{path} is no result of an experiment ({type(error).__name__}: {error})"
        raise InputError(seen, fix=f"delete it (rm {path}) and run the experiment again") from None


def write(path: Path, result: Result) -> None:
    """Beside its place first, then moved there."""
    said = {"form": FORM, **{name: getattr(result, name) for name in ("experiment", "tier", "seed", "versions", "seconds", "parts")}}
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(said, indent=1, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True) if path.parent.is_dir() else None
        raise InputError(f"{path} cannot be written: {error.strerror or error}", fix="--out FOLDER, one that can be written to") from None


def plain(value: Any) -> Any:
    """Numbers as JSON has them: tensors and arrays as lists, NaN and infinity as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    import numpy as np
    import torch

    import sightline

    return {
        "sightline": sightline.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }
