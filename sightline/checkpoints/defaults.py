"""How a checkpoint wants to be run: the ids that end a text, those that must or may not come, the
sampling that its makers recommend.

From generation_config.json where there is one, else from config.json. What no sampler could obey is
refused here, not later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sightline.checkpoints.source import Source
from sightline.errors import CheckpointError, short
from sightline.files.strict_json import read_json

FILE = "generation_config.json"
LARGEST = 1_000_000
_NAMES = (
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id forced_bos_token_id"
    " forced_eos_token_id"
)
IDS = (*_NAMES.split(), "bad_words_ids", "suppress_tokens")
HARMLESS = ("bos_token_id", "eos_token_id", "pad_token_id")  # a model writes without these


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What to do where the user says nothing. None means that the checkpoint says nothing either.

    `banned` tokens are never generated; `forced_begin` is the first that is, `forced_end` the last
    where a text would be cut.
    """

    begin: int | None = None
    end: tuple[int, ...] = ()
    pad: int | None = None
    decoder_start: int | None = None
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    banned: tuple[int, ...] = ()
    forced_begin: int | None = None
    forced_end: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None


def read_defaults(source: Source, vocab_size: int) -> Defaults:
    """The checkpoint's own defaults, each within its bounds."""
    path = source.where / FILE
    said = _within(source, "config.json", source.keys, IDS, vocab_size)
    if path.is_file():
        said |= _within(source, FILE, read_json(path, most_bytes=LARGEST), HARMLESS, vocab_size)
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
        banned=_banned(source, where, said, vocab_size),
        forced_begin=_id(where, said, "forced_bos_token_id", vocab_size),
        forced_end=_id(where, said, "forced_eos_token_id", vocab_size),
        num_beams=_whole(where, said, "num_beams", least=1),
        length_penalty=_number(where, said, "length_penalty", -100.0, 100.0),
    )


def _within(
    source: Source, file: str, keys: dict[str, Any], names: tuple[str, ...], vocab_size: int
) -> dict[str, Any]:
    """A file's keys without the ids that the vocabulary does not have: classes write their
    published ids into small copies too."""
    found = dict(keys)
    for name in names:
        beyond = [id for id in _flat(found.get(name)) if id >= vocab_size]
        if not beyond:
            continue
        source.notes.append(
            f"{file}: {name} {beyond[0]} is not in the vocabulary of {vocab_size}, and is ignored"
        )
        value: Any = found.pop(name)
        inside = (
            [part for part in value if all(id < vocab_size for id in _flat(part))]
            if isinstance(value, list)
            else []
        )
        if inside:
            found[name] = inside
    return found


def _flat(value: Any) -> list[int]:
    """The ids in a value, however they are listed."""
    if isinstance(value, list):
        return [id for part in value for id in _flat(part)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


def _banned(source: Source, where: str, said: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """suppress_tokens, and those of bad_words_ids that are one token. Longer phrases are named in a
    note."""
    name = "bad_words_ids"
    phrases: Any = said.get(name) or []
    if not isinstance(phrases, list) or not all(
        isinstance(phrase, list) and phrase for phrase in phrases
    ):
        raise CheckpointError(
            f"{where}: {name} is {short(phrases)}",
            expected="a list of lists of ids",
            fix="correct the file",
        )
    words = [_ids(where, {name: phrase}, name, vocab_size) for phrase in phrases]
    longer = sum(len(word) > 1 for word in words)
    if longer:
        source.notes.append(
            f"{where}: {longer} of bad_words_ids are several tokens long, and are not obeyed"
        )
    single = [word[0] for word in words if len(word) == 1]
    return tuple(dict.fromkeys((*single, *_ids(where, said, "suppress_tokens", vocab_size))))


def _ids(where: str, said: dict[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    value = said.get(name)
    values: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for id in values:
        if not isinstance(id, int) or isinstance(id, bool) or not -1 <= id < vocab_size:
            raise CheckpointError(
                f"{where}: {name} is {short(id)}",
                expected=f"an id below {vocab_size}",
                fix="correct the file",
            )
    return tuple(id for id in values if id >= 0)


def _id(where: str, said: dict[str, Any], name: str, vocab_size: int) -> int | None:
    found = _ids(where, said, name, vocab_size)
    return found[0] if found else None


def _number(where: str, said: dict[str, Any], name: str, least: float, most: float) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise CheckpointError(
            f"{where}: {name} is {short(value)}",
            expected=f"a number from {least:g} to {most:g}",
            fix="correct the file",
        )
    return float(value)


def _whole(where: str, said: dict[str, Any], name: str, *, least: int = 0) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CheckpointError(
            f"{where}: {name} is {short(value)}",
            expected=f"a whole number, {least} or more",
            fix="correct the file",
        )
    return value
