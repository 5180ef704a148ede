"""SentencePiece's model file (a protocol buffer) as a Vocabulary, and back, so that GGUF
and llama2.c vocabularies run on the SentencePiece library.

Only these fields are read: pieces (text, score, kind), the trainer's model type and ids,
the normaliser's rules.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from sightline.errors import CheckpointError, short_reason
from sightline.text.vocabulary.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    Kind,
    SpecialIds,
    Vocabulary,
)

UNIGRAM = 1
BPE = 2
VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
NORMALIZER = 3  # parts of the model
SELF_TEST = 4
ADD_DUMMY_PREFIX = 3  # an option of the normaliser


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """One variable-length integer and the place after it."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at = at + 1
        shift = shift + 7
        if byte < 0x80:
            return value, at
    raise IndexError("an integer without an end")


def _field_at(data: bytes, at: int) -> tuple[int, int | bytes, int]:
    """The field that begins at `at`: its number, its value and the place after it."""
    tag, at = _read_varint(data, at)
    wire = tag & 7
    if wire == VARINT:
        value, at = _read_varint(data, at)
        return tag >> 3, value, at
    size = {FIXED64: 8, FIXED32: 4}.get(wire)
    if wire == BYTES:
        size, at = _read_varint(data, at)
    if size is None or at + size > len(data):
        raise IndexError("a field outside the file")
    return tag >> 3, data[at : at + size], at + size


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one message: number and value."""
    at = 0
    while at < len(data):
        number, value, at = _field_at(data, at)
        yield number, value


def parse_sentencepiece(where: Path, data: bytes) -> Vocabulary:
    """The vocabulary in the bytes of a SentencePiece model."""
    try:
        return _parse_model(where, data)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(
            f"{where}: is not a SentencePiece model ({short_reason(error)})",
            fix="fetch the file again",
        ) from None


def _parse_model(where: Path, data: bytes) -> Vocabulary:
    """Read the three parts of the file."""
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normaliser: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            part = dict(_fields(value))
            pieces.append(bytes(part.get(1, b"")).decode("utf-8"))  # pyright: ignore[reportArgumentType]
            scores.append(struct.unpack("<f", part.get(2, b"\0\0\0\0"))[0])  # pyright: ignore[reportArgumentType]
            kinds.append(int(part.get(3, NORMAL)))
        elif number in (2, 3) and isinstance(value, bytes):
            (trainer if number == 2 else normaliser).update(dict(_fields(value)))
    if not pieces:
        raise ValueError("no pieces")
    model_types: dict[int, Kind] = {UNIGRAM: "unigram", BPE: "sentencepiece"}
    ids = SpecialIds(
        **{
            name: _valid_id(trainer.get(field, default), len(pieces))
            for name, field, default in _ID_FIELDS
        }
    )
    return Vocabulary(
        where=where,
        kind=model_types[int(trainer.get(3, UNIGRAM))],
        pieces=pieces,
        scores=scores,
        kinds=kinds,
        charsmap=bytes(normaliser.get(2, b"")),
        prefix_space=bool(normaliser.get(3, 1)),
        remove_extra_whitespaces=bool(normaliser.get(4, 1)),
        **ids,
    )


_ID_FIELDS = (("unknown", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1))


def _valid_id(value: int | bytes, count: int) -> int | None:
    """An id inside the vocabulary; −1, written as 2⁶⁴ − 1, means none."""
    return value if isinstance(value, int) and 0 <= value < count else None


def piece_spans(data: bytes) -> list[tuple[int, int, int]]:
    """First byte, last byte + 1 and id of each piece in a serialised SentencePieceText."""
    pieces = [
        dict(_fields(value))
        for number, value in _fields(data)
        if number == 2 and isinstance(value, bytes)
    ]
    return [(int(piece.get(4, 0)), int(piece.get(5, 0)), int(piece.get(2, 0))) for piece in pieces]


def byte_to_character(text: str) -> list[int]:
    """For each byte of the text in UTF-8, and for its end, the index of its character."""
    return [
        place for place, character in enumerate(text) for _ in range(len(character.encode("utf-8")))
    ] + [len(text)]


def _encode_varint(value: int) -> bytes:
    """A variable-length integer."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _field(number: int, value: int | bytes | float) -> bytes:
    """One field: bytes with their length, a float32, or an integer."""
    if isinstance(value, bytes):
        return _encode_varint(number << 3 | BYTES) + _encode_varint(len(value)) + value
    if isinstance(value, float):
        return _encode_varint(number << 3 | FIXED32) + struct.pack("<f", value)
    return _encode_varint(number << 3 | VARINT) + _encode_varint(value)


def encode_pieces(pieces: list[tuple[str, int]]) -> bytes:
    """Pieces (text, kind) to append to a model: fields of one message may simply follow each
    other."""
    return b"".join(
        _field(1, _field(1, piece.encode("utf-8")) + _field(2, 0.0) + _field(3, kind))
        for piece, kind in pieces
    )


def without_prefix_space(model: bytes) -> bytes:
    """The same model without the space that it adds before a text.

    Protocol buffers merge a message that is written twice, so the one changed option is appended.
    The self-test samples (field 4) are removed: they assume the original option, and a model that
    fails its samples is not loaded.
    """
    message = bytearray()
    at = 0
    while at < len(model):
        number, _, end = _field_at(model, at)
        if number != SELF_TEST:
            message += model[at:end]
        at = end
    return bytes(message) + _field(NORMALIZER, _field(ADD_DUMMY_PREFIX, 0))


def serialise(vocabulary: Vocabulary) -> bytes:
    """The bytes of a SentencePiece model with this vocabulary."""
    count = len(vocabulary.pieces)
    kinds = list(vocabulary.kinds) or [NORMAL] * count
    unknown = vocabulary.unknown if vocabulary.unknown is not None else 0
    kinds = [
        CONTROL if kind == UNKNOWN and id != unknown else kind for id, kind in enumerate(kinds)
    ]
    kinds[unknown] = UNKNOWN
    has_all_bytes = kinds.count(BYTE) == 256
    scores = vocabulary.scores or [-float(id) for id in range(count)]
    message = bytearray()
    for piece, score, kind in zip(vocabulary.pieces, scores, kinds, strict=True):
        usable = NORMAL if kind == BYTE and not has_all_bytes else kind
        message += _field(
            1, _field(1, piece.encode("utf-8")) + _field(2, float(score)) + _field(3, usable)
        )
    ids = {"unknown": unknown, "bos": vocabulary.bos, "eos": vocabulary.eos, "pad": vocabulary.pad}
    trainer = _field(3, UNIGRAM if vocabulary.kind == "unigram" else BPE) + _field(
        35, int(has_all_bytes)
    )
    for name, field, _ in _ID_FIELDS:
        value = ids[name]
        usable = value is not None and kinds[value] in (CONTROL, UNKNOWN)
        trainer += _field(field, value if usable and value is not None else -1)
    normaliser = (
        _field(3, int(vocabulary.prefix_space))
        + _field(4, int(vocabulary.remove_extra_whitespaces))
        + _field(5, 1)
    )
    normaliser += _field(2, vocabulary.charsmap) if vocabulary.charsmap else b""
    return bytes(message) + _field(2, trainer) + _field(3, normaliser)
