"""Results on disk: one JSON file per experiment, tier and seed, rewritten after each part.

A checksum covers all fields: edited numbers are refused. Files of form 1 had no checksum.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError, InputError, short_repr
from sightline.files.atomic import write_text
from sightline.files.checkpoint_files import printable_name
from sightline.files.strict_json import read_json
from sightline.lab.experiment import TIERS, Tier

FORM = 2
FORM_WITHOUT_SUM = 1
FIELDS = ("experiment", "tier", "seed", "versions", "seconds", "parts")
MOST_BYTES = 100_000_000


@dataclass
class Result:
    """The finished parts and the seconds that each took."""

    experiment: str
    tier: Tier
    seed: int
    parts: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    versions: dict[str, str] = field(default_factory=dict[str, str])


def result_path(folder: Path, experiment: str, tier: Tier, seed: int) -> Path:
    return folder / f"{experiment}.{tier}.seed-{seed}.json"


def seeds_in(folder: Path) -> list[int]:
    """The seeds for which a folder has results; 0 is that of the pilots."""
    matches = (re.fullmatch(r".*\.seed-(\d+)\.json", path.name) for path in folder.glob("*.json"))
    return sorted({int(match[1]) for match in matches if match} - {0})


def read_result(path: Path) -> Result:
    """Read a saved result; raise InputError with the fix if it cannot be used."""
    try:
        fields = read_json(path, max_bytes=MOST_BYTES)
    except CheckpointError as error:
        raise unusable_result(path, error.seen.removeprefix(f"{printable_name(path)} ")) from None
    form = fields.pop("form", None)
    checksum = fields.pop("sum", None)
    if form not in (FORM, FORM_WITHOUT_SUM) or set(fields) != set(FIELDS):
        raise unusable_result(path, f"form {short_repr(form)} with {short_repr(sorted(fields))}")
    if checksum != (checksum_of(fields) if form == FORM else None):
        raise unusable_result(path, "its checksum is not that of its numbers")
    result = Result(**fields)
    if reason := misfit(result):
        raise unusable_result(path, reason)
    if path.name != result_path(path.parent, result.experiment, result.tier, result.seed).name:
        raise unusable_result(
            path, f"it is of {short_repr(result.experiment)}, {result.tier}, seed {result.seed}"
        )
    return result


def unusable_result(path: Path, reason: str) -> InputError:
    return InputError(
        f"{printable_name(path)} is not a result of an experiment ({reason})",
        fix=f"delete it (rm {path}) and run the experiment again",
    )


def misfit(result: Result) -> str:
    """The first field of a result with a wrong type, or an empty string. Numbers are finite: the
    JSON reader accepts no others."""
    if not isinstance(result.experiment, str) or result.tier not in TIERS:
        return (
            f"the experiment {short_repr(result.experiment)} in the tier {short_repr(result.tier)}"
        )
    if not is_count(result.seed):
        return f"the seed {short_repr(result.seed)}"
    if not isinstance(result.parts, dict):
        return f"parts are {short_repr(result.parts)}"
    if not isinstance(result.seconds, dict) or not all(
        is_duration(value) for value in result.seconds.values()
    ):
        return f"seconds are {short_repr(result.seconds)}"
    if not isinstance(result.versions, dict) or not all(
        isinstance(value, str) for value in result.versions.values()
    ):
        return f"versions are {short_repr(result.versions)}"
    return ""


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def checksum_of(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the fields, independent of key order and whitespace."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_result(path: Path, result: Result) -> None:
    """Write a result atomically."""
    fields = {name: getattr(result, name) for name in FIELDS}
    content = {"form": FORM, "sum": checksum_of(fields), **fields}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}",
            fix="--out FOLDER, one that can be written to",
        ) from None


def to_json_numbers(value: Any) -> Any:
    """JSON-serializable numbers: tensors and arrays as lists, NaN and infinity as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): to_json_numbers(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def measuring_versions() -> dict[str, str]:
    """The versions and thread count that the numbers were measured with."""
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
