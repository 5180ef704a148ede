"""A checkpoint's generation defaults: end-of-text ids, forced and banned ids, and the recommended
sampling settings.

They come from generation_config.json, or else from config.json. Values that no sampler can use are
refused when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sightline.checkpoints.source import Source
from sightline.errors import CheckpointError, short_repr
from sightline.files.strict_json import read_json

FILE = "generation_config.json"
MOST_BYTES = 1_000_000
_NAMES = (
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id forced_bos_token_id"
    " forced_eos_token_id"
)
IDS = (*_NAMES.split(), "bad_words_ids", "suppress_tokens")
OPTIONAL_IDS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)  # a model can generate without these


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Generation settings for what the user does not set. None: the checkpoint does not set it
    either.

    `banned` tokens are never generated; `forced_begin` is the first generated token, `forced_end`
    the last one of a text that reaches the maximum length.
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
    """The checkpoint's defaults, each checked against its bounds."""
    path = source.where / FILE
    settings = _drop_foreign_ids(source, "config.json", source.keys, IDS, vocab_size)
    if path.is_file():
        settings |= _drop_foreign_ids(
            source, FILE, read_json(path, max_bytes=MOST_BYTES), OPTIONAL_IDS, vocab_size
        )
    where = str(path) if path.is_file() else f"{source.where}: config.json"
    return Defaults(
        begin=_read_id(where, settings, "bos_token_id", vocab_size),
        end=_read_ids(where, settings, "eos_token_id", vocab_size),
        pad=_read_id(where, settings, "pad_token_id", vocab_size),
        decoder_start=_read_id(where, settings, "decoder_start_token_id", vocab_size),
        sample=settings.get("do_sample") is True,
        temperature=_read_float(where, settings, "temperature", 0.0, 100.0),
        top_k=_read_int(where, settings, "top_k"),
        top_p=_read_float(where, settings, "top_p", 0.0, 1.0),
        repetition_penalty=_read_float(where, settings, "repetition_penalty", 1e-3, 1e3),
        banned=_banned_ids(source, where, settings, vocab_size),
        forced_begin=_read_id(where, settings, "forced_bos_token_id", vocab_size),
        forced_end=_read_id(where, settings, "forced_eos_token_id", vocab_size),
        num_beams=_read_int(where, settings, "num_beams", least=1),
        length_penalty=_read_float(where, settings, "length_penalty", -100.0, 100.0),
    )


def _drop_foreign_ids(
    source: Source, file: str, keys: dict[str, Any], names: tuple[str, ...], vocab_size: int
) -> dict[str, Any]:
    """The keys without ids beyond the vocabulary: transformers writes a class's published ids into
    small copies of the model, too."""
    remaining = dict(keys)
    for name in names:
        beyond = [id for id in _flatten_ids(remaining.get(name)) if id >= vocab_size]
        if not beyond:
            continue
        source.notes.append(
            f"{file}: {name} {beyond[0]} is not in the vocabulary of {vocab_size}, and is ignored"
        )
        value: Any = remaining.pop(name)
        inside = (
            [part for part in value if all(id < vocab_size for id in _flatten_ids(part))]
            if isinstance(value, list)
            else []
        )
        if inside:
            remaining[name] = inside
    return remaining


def _flatten_ids(value: Any) -> list[int]:
    """The ids in a value, however they are listed."""
    if isinstance(value, list):
        return [id for part in value for id in _flatten_ids(part)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


def _banned_ids(
    source: Source, where: str, settings: dict[str, Any], vocab_size: int
) -> tuple[int, ...]:
    """suppress_tokens, and the single-token entries of bad_words_ids. Longer entries are noted."""
    name = "bad_words_ids"
    phrases: Any = settings.get(name) or []
    if not isinstance(phrases, list) or not all(
        isinstance(phrase, list) and phrase for phrase in phrases
    ):
        raise CheckpointError(
            f"{where}: {name} is {short_repr(phrases)}",
            expected="a list of lists of ids",
            fix="correct the file",
        )
    words = [_read_ids(where, {name: phrase}, name, vocab_size) for phrase in phrases]
    longer = sum(len(word) > 1 for word in words)
    if longer:
        source.notes.append(
            f"{where}: {longer} of bad_words_ids are longer than one token, and are ignored"
        )
    single = [word[0] for word in words if len(word) == 1]
    return tuple(
        dict.fromkeys((*single, *_read_ids(where, settings, "suppress_tokens", vocab_size)))
    )


def _read_ids(where: str, settings: dict[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    value = settings.get(name)
    values: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for id in values:
        if not isinstance(id, int) or isinstance(id, bool) or not -1 <= id < vocab_size:
            raise CheckpointError(
                f"{where}: {name} is {short_repr(id)}",
                expected=f"an id below {vocab_size}",
                fix="correct the file",
            )
    return tuple(id for id in values if id >= 0)


def _read_id(where: str, settings: dict[str, Any], name: str, vocab_size: int) -> int | None:
    ids = _read_ids(where, settings, name, vocab_size)
    return ids[0] if ids else None


def _read_float(
    where: str, settings: dict[str, Any], name: str, least: float, most: float
) -> float | None:
    value = settings.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise CheckpointError(
            f"{where}: {name} is {short_repr(value)}",
            expected=f"a number from {least:g} to {most:g}",
            fix="correct the file",
        )
    return float(value)


def _read_int(where: str, settings: dict[str, Any], name: str, *, least: int = 0) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CheckpointError(
            f"{where}: {name} is {short_repr(value)}",
            expected=f"an integer, {least} or more",
            fix="correct the file",
        )
    return value
