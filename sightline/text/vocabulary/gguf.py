"""A GGUF file's tokenizer (`tokenizer.ggml.*`) as a Vocabulary, and a Vocabulary as a GGUF file's
tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import CheckpointError
from sightline.text.vocabulary.pre_tokenizers import NAMES
from sightline.text.vocabulary.vocabulary import CONTROL, UNKNOWN, UNUSED, Kind, Vocabulary

KINDS: dict[str, Kind] = {
    "gpt2": "bytes",
    "llama": "sentencepiece",
    "t5": "unigram",
    "bert": "wordpiece",
}
MODELS = {kind: model for model, kind in KINDS.items()}
IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "pad": "padding_token_id",
    "unknown": "unknown_token_id",
    "mask": "mask_token_id",
}
SPACE = "▁"


def from_metadata(where: Path, metadata: Mapping[str, Any]) -> Vocabulary | None:
    """The tokenizer that a GGUF file describes; None if it has none."""
    model = metadata.get("tokenizer.ggml.model")
    if model is None or (isinstance(model, str) and model == "none"):
        return None
    if not isinstance(model, str) or model not in KINDS:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.model is {str(model)[:60]!r}",
            expected=f"one of {', '.join(KINDS)}",
        )
    pieces = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(pieces, list) or not pieces or not isinstance(pieces[0], str):
        raise CheckpointError(
            f"{where}: tokenizer.ggml.tokens is missing or not a list of strings",
            expected="the pieces by id",
        )
    count = len(pieces)
    kinds = _number_per_piece(where, metadata, "token_type", count)
    ids = {name: _special_id(where, metadata, key, count) for name, key in IDS.items()}
    before, after = _around(where, metadata, pieces, ids, KINDS[model])
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(
        where=where,
        kind=KINDS[model],
        pieces=_word_pieces(pieces, kinds) if model == "bert" else pieces,
        kinds=[int(kind) for kind in kinds],
        scores=[float(score) for score in _number_per_piece(where, metadata, "scores", count)],
        merges=_strings(where, metadata, "merges"),
        split=_pre_tokenizer_name(where, metadata) if model == "gpt2" else "",
        charsmap=_metadata_charsmap(metadata),
        prefix_space=_flag(where, metadata, "add_space_prefix", default=model != "gpt2"),
        lower_case=model == "bert" and not _has_capitals(pieces, kinds),
        remove_extra_whitespaces=_flag(where, metadata, "remove_extra_whitespaces", default=False),
        bos=ids["bos"],
        eos=ids["eos"],
        pad=ids["pad"],
        unknown=ids["unknown"],
        mask=ids["mask"],
        before=before,
        after=after,
        chat_template=template if isinstance(template, str) else None,
    )


def _number_per_piece(
    where: Path, metadata: Mapping[str, Any], key: str, count: int
) -> list[float]:
    """One number per piece, or none at all."""
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return []
    if not isinstance(values, np.ndarray) or values.size != count or not np.isfinite(values).all():
        seen = f"{where}: tokenizer.ggml.{key} has {np.size(values)} values"
        raise CheckpointError(seen, expected=f"a finite number for each of the {count} tokens")
    return values.tolist()


def _strings(where: Path, metadata: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings, or an empty one."""
    values = metadata.get(f"tokenizer.ggml.{key}", [])
    if not isinstance(values, list) or (values and not isinstance(values[0], str)):
        if np.size(values) == 0:
            return []
        raise CheckpointError(
            f"{where}: tokenizer.ggml.{key} is not a list of strings", expected="strings"
        )
    return values


def _special_id(where: Path, metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    """An id inside the vocabulary, or None."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None or (isinstance(value, int) and value in (0xFFFFFFFF, -1)):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.{key} is {str(value)[:60]!r}", expected=f"an id below {count}"
        )
    return value


def _flag(where: Path, metadata: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """True or false."""
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise CheckpointError(
            f"{where}: tokenizer.ggml.{key} is {str(value)[:60]!r}", expected="true or false"
        )
    return value


def _pre_tokenizer_name(where: Path, metadata: Mapping[str, Any]) -> str:
    """The name of the pre-tokenizer."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in NAMES:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.pre is {str(name)[:60]!r}",
            expected=f"one of {', '.join(NAMES)}",
        )
    return NAMES[name]


def _metadata_charsmap(metadata: Mapping[str, Any]) -> bytes:
    """SentencePiece's compiled normalisation rules."""
    values = metadata.get("tokenizer.ggml.precompiled_charsmap")
    return (
        values.astype(np.uint8).tobytes()
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu"
        else b""
    )


def _around(
    where: Path,
    metadata: Mapping[str, Any],
    pieces: list[str],
    ids: Mapping[str, int | None],
    kind: Kind,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that go before and after a text."""
    if kind == "wordpiece":
        first = _special_id(where, metadata, "cls_token_id", len(pieces))
        last = _special_id(where, metadata, "seperator_token_id", len(pieces))
        first = first if first is not None else _index_of(pieces, "[CLS]")
        last = last if last is not None else _index_of(pieces, "[SEP]")
    else:
        starts = _flag(where, metadata, "add_bos_token", default=kind == "sentencepiece")
        ends = _flag(where, metadata, "add_eos_token", default=kind == "unigram")
        first = ids["bos"] if starts else None
        last = ids["eos"] if ends else None
    return (() if first is None else (first,)), (() if last is None else (last,))


def _index_of(pieces: list[str], piece: str) -> int | None:
    """The id of a piece, or None."""
    return pieces.index(piece) if piece in pieces else None


def _word_pieces(pieces: list[str], kinds: list[float]) -> list[str]:
    """BERT's spelling: GGUF marks the start of a word (▁word), BERT its continuation (##word)."""
    special = {id for id, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN, UNUSED)}
    return [
        piece if id in special else (piece[1:] if piece.startswith(SPACE) else f"##{piece}")
        for id, piece in enumerate(pieces)
    ]  # fmt: skip


def _has_capitals(pieces: list[str], kinds: list[float]) -> bool:
    """Whether ordinary pieces contain A–Z: then the model is cased, which GGUF does not record."""
    special = {id for id, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN, UNUSED)}
    return any(
        "A" <= character <= "Z"
        for id, piece in enumerate(pieces)
        if id not in special
        for character in piece
    )


def to_metadata(vocabulary: Vocabulary) -> dict[str, Any]:
    """The keys `tokenizer.ggml.*` for a vocabulary, as llama.cpp reads them."""
    if vocabulary.kind not in MODELS:
        raise CheckpointError(
            f"{vocabulary.where}: a tokenizer of kind {vocabulary.kind!r}",
            expected=f"one of {', '.join(MODELS)}",
        )
    kind = vocabulary.kind
    pieces = vocabulary.pieces
    keys: dict[str, Any] = {
        "model": MODELS[kind],
        "tokens": pieces,
        "token_type": vocabulary.kinds or [1] * len(pieces),
    }
    keys["pre"] = vocabulary.split or "default"
    if kind == "bytes":
        keys["merges"] = vocabulary.merges
    elif kind == "wordpiece":
        keys["tokens"] = [
            _gguf_piece(piece, vocabulary.kind_of(id)) for id, piece in enumerate(pieces)
        ]
        keys |= {
            "cls_token_id": vocabulary.before[0],
            "seperator_token_id": vocabulary.after[0],
            "token_type_count": 2,
        }
    else:
        keys |= {
            "scores": vocabulary.scores,
            "remove_extra_whitespaces": vocabulary.remove_extra_whitespaces,
        }
        keys |= {"precompiled_charsmap": list(vocabulary.charsmap)} if vocabulary.charsmap else {}
    keys |= {
        "add_space_prefix": vocabulary.prefix_space,
        "add_bos_token": bool(vocabulary.before),
        "add_eos_token": bool(vocabulary.after),
    }
    values = {
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "pad": vocabulary.pad,
        "unknown": vocabulary.unknown,
        "mask": vocabulary.mask,
    }
    keys |= {IDS[name]: value for name, value in values.items() if value is not None}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return metadata | (
        {"tokenizer.chat_template": vocabulary.chat_template} if vocabulary.chat_template else {}
    )


def _gguf_piece(piece: str, kind: int) -> str:
    """GGUF's spelling of one of BERT's pieces."""
    if kind in (CONTROL, UNKNOWN, UNUSED):
        return piece
    return piece[2:] if piece.startswith("##") else SPACE + piece
