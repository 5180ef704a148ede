"""metrics.jsonl: one line per step and evaluation. A full disk loses lines, but never ends the
run."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from sightline.files.atomic import write_text
from sightline.files.regular import append_to_regular_file, read_text_file

MOST_BYTES = 1 << 30


class Metrics:
    """The metrics file; without a path, nothing is written. Each method returns a note when writing
    starts to fail, otherwise an empty string."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.failing = False

    def cut(self, step: int) -> str:
        """Remove the lines after a step, from which the run is resumed, and incomplete lines."""
        if self.path is None:
            return ""
        try:
            if self.path.exists():
                lines = read_text_file(
                    self.path, max_bytes=MOST_BYTES, errors="replace"
                ).splitlines()
                write_text(
                    self.path,
                    "".join(f"{line}\n" for line in lines if at_most(line, step)),
                    durable=True,
                )
        except OSError as error:
            return self._failed(error)
        return ""

    def write(self, kind: str, event: Any) -> str:
        """Append one line; a line that could not be written completely is removed."""
        if self.path is None:
            return ""
        record = {
            "kind": kind,
            **{field.name: json_number(getattr(event, field.name)) for field in fields(event)},
        }
        size = None
        try:
            with append_to_regular_file(self.path) as file:
                size = file.tell()
                file.write(json.dumps(record).encode() + b"\n")
        except OSError as error:
            with suppress(OSError):
                if size is not None:
                    os.truncate(self.path, size)
            return self._failed(error)
        self.failing = False
        return ""

    def _failed(self, error: OSError) -> str:
        known = self.failing
        self.failing = True
        return (
            ""
            if known
            else f"{self.path}: cannot be written ({error.strerror}); training continues without it"
        )


def json_number(value: Any) -> Any:
    """The value, or None if it is NaN or infinite, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def at_most(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
