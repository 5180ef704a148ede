"""The texts of recipes, and how files become training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.files.checkpoint_files import printable_name
from sightline.recipes.plays import works
from sightline.terminal.progress import Report, reporting
from sightline.text.training.words import tokenizer_config
from sightline.training.data.chunk_encoders import (
    FILES,
    Encoder,
    bpe_encoder,
    character_encoder,
    model_encoder,
)
from sightline.training.data.documents import documents, examine
from sightline.training.data.packed import SHEET, TRAIN, VALIDATION, Tokens, read_sheet
from sightline.training.data.prepare import Plan, cached, find_prepared_damage, sources

__all__ = [
    "Prepared",
    "prepared_characters",
    "prepared_folder",
    "prepared_text",
    "read_pairs",
    "tokenizer_config",
]
SAID = {"files", "held out", "documents", "tokens", "dtype", "tokenizer", "sample"}
AGAIN = "prepare it again: sightline data prepare"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A text as tokens, with its tokenizer. `end` follows each document; `sheet` is the
    datasheet."""

    train: Tokens
    validation: Tokens | None
    vocab_size: int
    tokenizer_files: dict[str, bytes]
    end: int | None = None
    sheet: dict[str, Any] = field(default_factory=dict[str, Any])


def prepared_characters(text: Path | None, *, progress: Report | None = None) -> Prepared:
    """A text file, the last 5 % of it held out, or Shakespeare's works, four plays held out;
    character by character."""
    if text is None:
        train, held_out = works(progress)
        plan = Plan(files=sources(train), held_out=sources(held_out))
    else:
        plan = Plan(files=sources([text]))
    with reporting(progress) as report:
        return prepared_folder(
            cached(
                plan, "characters", lambda: encoder_for(plan, "characters", progress=report), report
            )
        )


def prepared_text(
    text: Path | Sequence[Path], vocab: int, *, progress: Report | None = None
) -> Prepared:
    """Text files, the last 5 % held out, in byte-level BPE of `vocab` tokens that is learned from
    them."""
    plan = Plan(files=sources([text] if isinstance(text, Path) else text))
    with reporting(progress) as report:
        folder = cached(
            plan,
            f"bpe {vocab}",
            lambda: encoder_for(plan, "bpe", vocab=vocab, progress=report),
            report,
        )
    return prepared_folder(folder)


def encoder_for(plan: Plan, tokenizer: str, *, vocab: int = 8000, progress: Report) -> Encoder:
    """One token per character of all files, BPE learned from the training files, or the tokenizer
    of a folder or model."""
    if tokenizer == "characters":
        chunks = (
            part
            for source in (*plan.files, *plan.held_out)
            for part in documents(source, plan.separator)
            if part is not None
        )
        return character_encoder(chunks)
    return (
        bpe_encoder([source.path for source in plan.files], vocab, progress)
        if tokenizer == "bpe"
        else model_encoder(tokenizer)
    )


def prepared_folder(folder: Path) -> Prepared:
    """A folder that `sightline data prepare` wrote, each file verified against its datasheet. No
    other file in it is opened."""
    sheet = read_sheet(folder)
    if not (is_complete_sheet(sheet) and set(sheet["sha256"]) <= {TRAIN, VALIDATION, *FILES}):
        raise InputError(
            f"{printable_name(folder / SHEET)}: is not a datasheet",
            expected="one of sightline data prepare",
            fix=AGAIN,
        )
    if fault := find_prepared_damage(folder):
        raise InputError(
            f"{printable_name(folder)}: {fault}", expected="the files as they were made", fix=AGAIN
        )
    names = [name for name in (TRAIN, VALIDATION) if name in sheet["sha256"]]
    tokens = {
        name: Tokens.open(
            folder / name, dtype=sheet["dtype"], vocab_size=sheet["vocab_size"], min_tokens=2
        )
        for name in names
    }
    files = {name: (folder / name).read_bytes() for name in sheet["sha256"] if name in FILES}
    return Prepared(
        tokens[TRAIN], tokens.get(VALIDATION), sheet["vocab_size"], files, sheet["end"], sheet
    )


def is_complete_sheet(sheet: dict[str, Any]) -> bool:
    """Whether a datasheet has every value needed to read the tokens, with the right types."""
    vocab_size = sheet.get("vocab_size")
    end = sheet.get("end")
    sums = sheet.get("sha256")
    if (
        not isinstance(vocab_size, int)
        or not isinstance(sums, dict)
        or TRAIN not in sums
        or not sheet.keys() >= SAID
    ):
        return False
    return sheet["dtype"] in ("uint16", "uint32") and (
        end is None or (isinstance(end, int) and 0 <= end < vocab_size)
    )


# ------------------------------------------------------------------------------------------ pairs


def read_pairs(
    pairs: Path | None, source: Path | None, target: Path | None
) -> tuple[list[str], list[str]]:
    """Two columns of a .tsv, or two files with equal numbers of lines. Every line has two sides."""
    if source is not None and target is not None:
        columns = (lines(source), lines(target))
        if len(columns[0]) != len(columns[1]):
            seen = (
                f"{printable_name(source)} has {len(columns[0]):,} lines,"
                f" {printable_name(target)} has"
                f" {len(columns[1]):,}"
            )
            raise InputError(
                seen,
                expected="the same number in both",
                fix="line n of one must be the translation of line n of the other",
            )
        for path, column in zip((source, target), columns, strict=True):
            both_sides(path, column)
        return columns
    if pairs is None:
        raise InputError(
            "one side of the pairs is missing",
            expected="a .tsv, or two files",
            fix="source=FILE and target=FILE",
        )
    rows = [line.split("\t") for line in lines(pairs)]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            seen = (
                f"{printable_name(pairs)}: line {number:,} has {len(row)}"
                f" column{'s' * (len(row) != 1)}"
            )
            raise InputError(seen, expected="two, with one tab between them")
    sides = [row[0] for row in rows], [row[1] for row in rows]
    for column in sides:
        both_sides(pairs, column)
    return sides


def lines(path: Path) -> list[str]:
    """A text file's lines, without the empty ones at its end. Only newlines separate lines: U+2028
    and similar characters are text."""
    return examine(path).path.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")


def both_sides(path: Path, column: Sequence[str]) -> None:
    """Refuse empty lines."""
    empty = next((number for number, line in enumerate(column, 1) if not line.strip()), None)
    if empty is not None:
        raise InputError(
            f"{printable_name(path)}: line {empty:,} has an empty side",
            expected="a sentence on both",
            fix="remove the pair",
        )
