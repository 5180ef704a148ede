"""How a checkpoint wants to be run: the ids that end a text, and the sampling that its makers recommend.

From generation_config.json where there is one, else from config.json. What no sampler could obey is refused here, not later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sightline.checkpoints.json_file import read_json
from sightline.checkpoints.source import Source
from sightline.errors import CheckpointError, short

FILE = "generation_config.json"
LARGEST = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What to do where the user says nothing. None means that the checkpoint says nothing either."""

    begin: int | None = None
    end: tuple[int, ...] = ()
    pad: int | None = None
    decoder_start: int | None = None
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None


def read_defaults(source: Source, vocab_size: int) -> Defaults:
    """The checkpoint's own defaults, each within its bounds."""
    path = source.where / FILE
    said = {**_within(source, vocab_size), **(read_json(path, most_bytes=LARGEST) if path.is_file() else {})}
    where = str(path) if path.is_file() else f"{source.where}: config.json"
    return Defaults(
        begin=_id(where, said, "bos_token_id", vocab_size),
        end=_ids(where, said, "eos_token_id", vocab_size),
        pad=_id(where, said, "pad_token_id", vocab_size),
        decoder_start=_id(where, said, "decoder_start_token_id", vocab_size),
        sample=said.get("do_sample") is True,
        temperature=_number(where, said, "temperature", 0.0, 100.0),
        top_k=_whole(where, said, "top_k"),
        top_p=_number(where, said, "top_p", 0.0, 1.0),
        repetition_penalty=_number(where, said, "repetition_penalty", 1e-3, 1e3),
    )


def _within(source: Source, vocab_size: int) -> dict[str, Any]:
    """config.json without the ids that its vocabulary does not have: classes write their published ids into small copies too."""
    found = dict(source.keys)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        id = found.get(name)
        if isinstance(id, int) and not isinstance(id, bool) and id >= vocab_size:
            source.notes.append(f"config.json: {name} {id} is not in the vocabulary of {vocab_size}, and is ignored")
            del found[name]
    return found


def _ids(where: str, said: dict[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    value = said.get(name)
    values: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for id in values:
        if not isinstance(id, int) or isinstance(id, bool) or not -1 <= id < vocab_size:
            raise CheckpointError(f"{where}: {name} is {short(id)}", expected=f"an id below {vocab_size}", fix="correct the file")
    return tuple(id for id in values if id >= 0)


def _id(where: str, said: dict[str, Any], name: str, vocab_size: int) -> int | None:
    found = _ids(where, said, name, vocab_size)
    return found[0] if found else None


def _number(where: str, said: dict[str, Any], name: str, least: float, most: float) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise CheckpointError(f"{where}: {name} is {short(value)}", expected=f"a number from {least:g} to {most:g}", fix="correct the file")
    return float(value)


def _whole(where: str, said: dict[str, Any], name: str) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"{where}: {name} is {short(value)}", expected="a whole number, 0 or more", fix="correct the file")
    return value
