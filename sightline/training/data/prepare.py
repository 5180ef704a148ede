"""Text files become tokens on the disk, once.

    files → documents → parts → tokenizer → train.tokens, validation.tokens

and beside them data.json (what they are) and the tokenizer.

The end token follows each document. What is held out is the end of the text, or whole files. A
folder has its name only when all of it is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from sightline.checkpoints.sources.directories import home
from sightline.errors import InputError, SightlineError
from sightline.files.atomic import replace_folder, sibling, write_text
from sightline.files.checkpoint_files import file_sha256, printable_name
from sightline.terminal.progress import Report, silent
from sightline.training.data.chunk_encoders import Encoder
from sightline.training.data.documents import READ, Source, documents, examine
from sightline.training.data.packed import (
    SHEET,
    TRAIN,
    VALIDATION,
    dtype_for,
    read_sheet,
    sheet_text,
)

SAMPLE = 200  # characters that the datasheet shows
VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What becomes of the files. Documents are files, or what `separator` parts in them. `held_out`
    are whole files; without any, the last `validation` part of the tokens is."""

    files: tuple[Source, ...]
    held_out: tuple[Source, ...] = ()
    separator: str = ""
    validation: float = 0.05

    def __post_init__(self) -> None:
        if not self.files:
            raise InputError("no text to prepare", expected="at least one file")
        if not 0 <= self.validation <= 0.5:
            raise InputError(
                f"validation is {self.validation}",
                expected="a part from 0 to 0.5",
                fix="--validation 0.05",
            )

    @property
    def digest(self) -> str:
        """What decides the tokens, the tokenizer aside."""
        said = [[file.sha256 for file in self.files], [file.sha256 for file in self.held_out]]
        return hashlib.sha256(
            json.dumps([VERSION, *said, self.separator, self.validation]).encode()
        ).hexdigest()


# ---------------------------------------------------------------------------------------- writing


@dataclass(slots=True)
class Counted:
    """One file of tokens on its way: how many, of how many documents, and how it begins."""

    tokens: int = 0
    documents: int = 0
    text: str = ""
    first: tuple[int, ...] = ()

    def fill(
        self,
        file: BinaryIO,
        source: Source,
        encoder: Encoder,
        separator: str,
        tick: Callable[[int], None],
    ) -> None:
        """A source's documents, each with the end token behind it."""
        dtype = dtype_for(encoder.vocab_size)
        fresh = True
        for part in documents(source, separator, tick):
            if part is None:
                ids = np.array([] if encoder.end is None else [encoder.end], dtype=dtype)
                self.documents += 1
            else:
                ids = np.asarray(encoder.part(part, first=fresh), dtype=dtype)
                self.text = self.text or part[:SAMPLE]
                self.first = self.first or tuple(int(id) for id in ids[:32])
            fresh = part is None
            file.write(ids.tobytes())
            self.tokens += len(ids)


def prepare(
    plan: Plan,
    encoder: Encoder,
    folder: Path,
    *,
    progress: Report = silent,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a folder of tokens; what its datasheet says."""
    folder = Path(os.path.abspath(folder))
    check_target(folder, overwrite=overwrite)
    temporary = sibling(folder, "partial")
    try:
        temporary.mkdir(parents=True)
        sheet = _fill(plan, encoder, temporary, progress)
        replace_folder(temporary, folder)
    except OSError as error:
        raise InputError(
            f"{printable_name(folder)}: cannot be written ({error.strerror})",
            fix="free some space, or another folder",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sheet


def check_target(folder: Path, *, overwrite: bool) -> None:
    there = os.path.lexists(folder)
    if (
        there
        and (not folder.is_dir() or any(folder.iterdir()))
        and not (overwrite and (folder / SHEET).is_file())
    ):
        raise InputError(
            f"{printable_name(folder)}: is there already",
            expected="a new folder",
            fix="another --out, or remove it first",
        )


def _fill(plan: Plan, encoder: Encoder, folder: Path, progress: Report) -> dict[str, Any]:
    total = sum(source.size for source in (*plan.files, *plan.held_out))
    done = 0

    def tick(size: int) -> None:
        nonlocal done
        done += size
        progress("making tokens", done, total)

    counted: dict[str, Counted] = {}
    for name, sources in ((TRAIN, plan.files), (VALIDATION, plan.held_out)):
        if sources:
            counted[name] = Counted()
            with (folder / name).open("xb") as file:
                for source in sources:
                    counted[name].fill(file, source, encoder, plan.separator, tick)
                file.flush()
                os.fsync(file.fileno())
    tokens = {name: found.tokens for name, found in counted.items()}
    if not plan.held_out and plan.validation:
        tokens = _hold_out(
            folder, tokens[TRAIN], plan.validation, np.dtype(dtype_for(encoder.vocab_size)).itemsize
        )
    _check_length(plan, tokens)
    for name, data in encoder.files.items():
        (folder / name).write_bytes(data)
    sheet = _sheet(plan, encoder, counted, tokens)
    sheet["sha256"] = {name: file_sha256(folder / name) for name in (*tokens, *encoder.files)}
    write_text(folder / SHEET, sheet_text(sheet), durable=True)
    return sheet


def _hold_out(folder: Path, tokens: int, part: float, width: int) -> dict[str, int]:
    """The end of the training tokens becomes the held-out ones."""
    held = round(tokens * part)
    with (folder / TRAIN).open("r+b") as file, (folder / VALIDATION).open("xb") as tail:
        file.seek((tokens - held) * width)
        shutil.copyfileobj(file, tail, READ)
        file.truncate((tokens - held) * width)
        for handle in (file, tail):
            handle.flush()
            os.fsync(handle.fileno())
    return {TRAIN: tokens - held, VALIDATION: held}


def _check_length(plan: Plan, tokens: dict[str, int]) -> None:
    names = ", ".join(source.path.name for source in plan.files[:3]) + (
        " …" if len(plan.files) > 3 else ""
    )
    if tokens[TRAIN] < 2:
        raise InputError(
            f"{printable_name(names)}: {tokens[TRAIN]:,} tokens to learn from",
            expected="at least 2",
            fix="more text",
        )
    if tokens.get(VALIDATION, 2) < 2:
        seen = (
            f"{printable_name(names)}: {tokens[VALIDATION]:,} of {sum(tokens.values()):,}"
            " tokens would be"
            " held out"
        )
        raise InputError(seen, expected="at least 2", fix="more text, or --validation 0")


def _sheet(
    plan: Plan, encoder: Encoder, counted: dict[str, Counted], tokens: dict[str, int]
) -> dict[str, Any]:
    """The datasheet: where the tokens come from, how many there are, and how they look."""
    both = (("train", plan.files), ("validation", plan.held_out))
    return {
        "version": VERSION,
        "files": [
            {"name": s.path.name, "bytes": s.size, "sha256": s.sha256, "part": part}
            for part, found in both
            for s in found
        ],
        "held out": (
            "whole files"
            if plan.held_out
            else (
                f"the last {100 * plan.validation:.3g} % of the tokens"
                if plan.validation
                else "nothing"
            )
        ),
        "separator": plan.separator,
        "documents": sum(found.documents for found in counted.values()),
        "tokens": {"train": tokens[TRAIN], "validation": tokens.get(VALIDATION, 0)},
        "dtype": dtype_for(encoder.vocab_size),
        "vocab_size": encoder.vocab_size,
        "end": encoder.end,
        "tokenizer": {
            "kind": encoder.kind,
            "sha256": encoder.sha256,
            "files": sorted(encoder.files),
        },
        "sample": {"text": counted[TRAIN].text, "tokens": list(counted[TRAIN].first)},
        "versions": {name: version(name) for name in ("sightline", "tokenizers")},
    }


# ---------------------------------------------------------------------------------------- keeping


def wrong(folder: Path) -> str:
    """What is wrong with a prepared folder; nothing if nothing is."""
    try:
        said = read_sheet(folder)["sha256"]
        return next(
            (
                f"{name} was changed or cut short"
                for name, digest in said.items()
                if file_sha256(folder / name) != digest
            ),
            "",
        )
    except (SightlineError, OSError, LookupError, TypeError, AttributeError) as error:
        return error.seen if isinstance(error, SightlineError) else f"{SHEET} is broken"


def cached(plan: Plan, kind: str, make: Callable[[], Encoder], progress: Report = silent) -> Path:
    """The folder for this plan and this kind of tokenizer in the cache; made if it is not there, or
    not as it was made."""
    key = hashlib.sha256(f"{plan.digest} {kind} {version('tokenizers')}".encode()).hexdigest()[:24]
    place = home() / "data" / key
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.parent / f".{key}.lock"):
            if wrong(place):
                for left in place.parent.glob(f".{key}.*.partial"):
                    shutil.rmtree(left, ignore_errors=True)
                with suppress(FileNotFoundError):
                    shutil.rmtree(place)
                prepare(plan, make(), place, progress=progress)
    except OSError as error:
        seen = f"{printable_name(place)}: cannot be written ({error.strerror})"
        raise InputError(seen, fix="set SIGHTLINE_HOME to a folder that you may write") from None
    return place


def sources(files: Sequence[Path], report: Report = silent) -> tuple[Source, ...]:
    """Each of the files, looked through."""
    return tuple(examine(path, report) for path in files)
