"""Tokenize text files once and write the tokens to disk.

    files → documents → chunks → tokenizer → train.tokens, validation.tokens

with a datasheet (data.json) and the tokenizer next to them.

The end token follows each document. The end of the text, or whole files, are held out. The folder
is written under a temporary name and renamed when it is complete.
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

SAMPLE = 200  # characters of text in the datasheet
VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How files are split. Documents are whole files, or the pieces between `separator`s. If no
    files are `held_out`, the last `validation` share of the tokens is."""

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
                expected="a share from 0 to 0.5",
                fix="--validation 0.05",
            )

    @property
    def digest(self) -> str:
        """Identifies the tokens, except for the tokenizer."""
        digests = [[file.sha256 for file in self.files], [file.sha256 for file in self.held_out]]
        return hashlib.sha256(
            json.dumps([VERSION, *digests, self.separator, self.validation]).encode()
        ).hexdigest()


# ---------------------------------------------------------------------------------------- writing


@dataclass(slots=True)
class TokenFile:
    """A token file that is being written: its counts, and a sample of its start."""

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
        """Append a source's documents, each followed by the end token."""
        dtype = dtype_for(encoder.vocab_size)
        first = True
        for part in documents(source, separator, tick):
            if part is None:
                ids = np.array([] if encoder.end is None else [encoder.end], dtype=dtype)
                self.documents += 1
            else:
                ids = np.asarray(encoder.encode_chunk(part, first=first), dtype=dtype)
                self.text = self.text or part[:SAMPLE]
                self.first = self.first or tuple(int(id) for id in ids[:32])
            first = part is None
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
    """Write a folder of tokens; returns its datasheet."""
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
            fix="free some space, or choose another folder",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sheet


def check_target(folder: Path, *, overwrite: bool) -> None:
    """An InputError if the folder exists and is neither empty nor data to overwrite."""
    occupied = os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir()))
    if occupied and not (overwrite and (folder / SHEET).is_file()):
        raise InputError(
            f"{printable_name(folder)}: already exists",
            expected="a new folder",
            fix="choose another --out, or remove it first",
        )


def _fill(plan: Plan, encoder: Encoder, folder: Path, progress: Report) -> dict[str, Any]:
    total = sum(source.size for source in (*plan.files, *plan.held_out))
    done = 0

    def tick(size: int) -> None:
        nonlocal done
        done += size
        progress("tokenizing", done, total)

    written: dict[str, TokenFile] = {}
    for name, sources in ((TRAIN, plan.files), (VALIDATION, plan.held_out)):
        if sources:
            written[name] = TokenFile()
            with (folder / name).open("xb") as file:
                for source in sources:
                    written[name].fill(file, source, encoder, plan.separator, tick)
                file.flush()
                os.fsync(file.fileno())
    tokens = {name: token_file.tokens for name, token_file in written.items()}
    if not plan.held_out and plan.validation:
        tokens = _hold_out(
            folder, tokens[TRAIN], plan.validation, np.dtype(dtype_for(encoder.vocab_size)).itemsize
        )
    _check_length(plan, tokens)
    for name, data in encoder.files.items():
        (folder / name).write_bytes(data)
    sheet = _sheet(plan, encoder, written, tokens)
    sheet["sha256"] = {name: file_sha256(folder / name) for name in (*tokens, *encoder.files)}
    write_text(folder / SHEET, sheet_text(sheet), durable=True)
    return sheet


def _hold_out(folder: Path, tokens: int, share: float, width: int) -> dict[str, int]:
    """Move the end of the training tokens to the validation file."""
    held_out = round(tokens * share)
    with (folder / TRAIN).open("r+b") as file, (folder / VALIDATION).open("xb") as tail:
        file.seek((tokens - held_out) * width)
        shutil.copyfileobj(file, tail, READ)
        file.truncate((tokens - held_out) * width)
        for handle in (file, tail):
            handle.flush()
            os.fsync(handle.fileno())
    return {TRAIN: tokens - held_out, VALIDATION: held_out}


def _check_length(plan: Plan, tokens: dict[str, int]) -> None:
    names = ", ".join(source.path.name for source in plan.files[:3]) + (
        " …" if len(plan.files) > 3 else ""
    )
    if tokens[TRAIN] < 2:
        raise InputError(
            f"{printable_name(names)}: {tokens[TRAIN]:,} tokens to train on",
            expected="at least 2",
            fix="more text",
        )
    if tokens.get(VALIDATION, 2) < 2:
        seen = (
            f"{printable_name(names)}: {tokens[VALIDATION]:,} of {sum(tokens.values()):,}"
            " tokens would be held out"
        )
        raise InputError(seen, expected="at least 2", fix="more text, or --validation 0")


def _sheet(
    plan: Plan, encoder: Encoder, written: dict[str, TokenFile], tokens: dict[str, int]
) -> dict[str, Any]:
    """The datasheet: the tokens' source files, counts and a sample."""
    splits = (("train", plan.files), ("validation", plan.held_out))
    return {
        "version": VERSION,
        "files": [
            {"name": s.path.name, "bytes": s.size, "sha256": s.sha256, "part": split}
            for split, files in splits
            for s in files
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
        "documents": sum(token_file.documents for token_file in written.values()),
        "tokens": {"train": tokens[TRAIN], "validation": tokens.get(VALIDATION, 0)},
        "dtype": dtype_for(encoder.vocab_size),
        "vocab_size": encoder.vocab_size,
        "end": encoder.end,
        "tokenizer": {
            "kind": encoder.kind,
            "sha256": encoder.sha256,
            "files": sorted(encoder.files),
        },
        "sample": {"text": written[TRAIN].text, "tokens": list(written[TRAIN].first)},
        "versions": {name: version(name) for name in ("sightline", "tokenizers")},
    }


# ------------------------------------------------------------------------------------------ cache


def find_prepared_damage(folder: Path) -> str:
    """What is wrong with a prepared folder; "" if it is intact."""
    try:
        digests = read_sheet(folder)["sha256"]
        return next(
            (
                f"{name} was changed or truncated"
                for name, digest in digests.items()
                if file_sha256(folder / name) != digest
            ),
            "",
        )
    except (SightlineError, OSError, LookupError, TypeError, AttributeError) as error:
        return error.seen if isinstance(error, SightlineError) else f"{SHEET} is broken"


def cached(plan: Plan, kind: str, make: Callable[[], Encoder], progress: Report = silent) -> Path:
    """The cache folder of this plan and this kind of tokenizer; prepared if it is missing or
    damaged."""
    key = hashlib.sha256(f"{plan.digest} {kind} {version('tokenizers')}".encode()).hexdigest()[:24]
    place = home() / "data" / key
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.parent / f".{key}.lock"):
            if find_prepared_damage(place):
                for partial in place.parent.glob(f".{key}.*.partial"):
                    shutil.rmtree(partial, ignore_errors=True)
                with suppress(FileNotFoundError):
                    shutil.rmtree(place)
                prepare(plan, make(), place, progress=progress)
    except OSError as error:
        seen = f"{printable_name(place)}: cannot be written ({error.strerror})"
        raise InputError(seen, fix="set SIGHTLINE_HOME to a writable folder") from None
    return place


def sources(files: Sequence[Path], report: Report = silent) -> tuple[Source, ...]:
    """Validate each file."""
    return tuple(examine(path, report) for path in files)
