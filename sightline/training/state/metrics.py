"""metrics.jsonl: one line for each step and evaluation. A full disk costs lines, never the run."""

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
    """The file, or nothing where there is no path. Each method gives what is to be said, once for
    each time that writing fails anew."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.failing = False

    def cut(self, step: int) -> str:
        """Without what lies after a step: the run goes on from there. A line that was cut short
        goes as well."""
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
        """One more line, whole or not at all."""
        if self.path is None:
            return ""
        said = {
            "kind": kind,
            **{field.name: plain(getattr(event, field.name)) for field in fields(event)},
        }
        size = None
        try:
            with append_to_regular_file(self.path) as file:
                size = file.tell()
                file.write(json.dumps(said).encode() + b"\n")
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
            else f"{self.path}: cannot be written ({error.strerror}); training goes on without it"
        )


def plain(value: Any) -> Any:
    """A number that JSON can hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def at_most(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
