"""A tokenizer.json as a Vocabulary: what GGUF and SentencePiece can say of it, or one line about
what they cannot."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Set
from pathlib import Path
from typing import Any

import tokenizers

from sightline.errors import CheckpointError
from sightline.text.vocabulary.pre_tokenizers import NAMES, split_by
from sightline.text.vocabulary.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Kind,
    Vocabulary,
)

Around = tuple[tuple[int, ...], tuple[int, ...]]


def vocabulary_of(where: Path, spelling: dict[str, Any], around: Around) -> Vocabulary:
    """The vocabulary in a parsed tokenizer.json."""
    model = spelling["model"]
    ids: dict[str, int] = (
        {piece: id for id, (piece, _) in enumerate(model["vocab"])}
        if model["type"] == "Unigram"
        else dict(model["vocab"])
    )
    ids |= {token["content"]: token["id"] for token in spelling.get("added_tokens", [])}
    pieces, kinds = _by_id(ids, spelling)
    text = json.dumps(spelling, ensure_ascii=False)
    byte_level = '"ByteLevel"' in json.dumps(spelling.get("decoder"))
    kind = _kind(where, model, byte_level)
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])
    ]
    unknown = model.get("unk_id") if kind == "unigram" else ids.get(model.get("unk_token") or "")
    if unknown is not None and kind != "bytes":
        kinds[unknown] = UNKNOWN
    return Vocabulary(
        where=where,
        kind=kind,
        pieces=pieces,
        kinds=kinds,
        scores=_scores(kind, model, pieces, merges),
        merges=merges if kind == "bytes" else [],
        split=_split(where, spelling) if kind == "bytes" else "",
        charsmap=_charsmap(spelling.get("normalizer")),
        prefix_space=kind not in ("bytes", "wordpiece")
        and ("Metaspace" in text or '"Prepend"' in text),
        remove_extra_whitespaces=kind == "unigram" and " {2,}" in text,
        lower_case='"lowercase": true' in text,
        unknown=unknown,
        mask=ids.get("[MASK]", ids.get("<mask>")),
        before=around[0],
        after=around[1],
    )


def without_names(spelling: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    """A tokenizer.json in which these pieces keep their ids and have names that nobody can type; no
    merge makes one."""
    new = {name: f"{name}{secrets.token_hex(16)}" for name in names}
    model = dict(spelling["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [[new.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {new.get(piece, piece): id for piece, id in model["vocab"].items()}
    if "unk_token" in model:
        model["unk_token"] = new.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.isdisjoint((*pair, "".join(pair)))]
    added = [
        {**token, "content": new.get(token["content"], token["content"])}
        for token in spelling.get("added_tokens", [])
    ]
    return {**spelling, "model": model, "added_tokens": added, "post_processor": None}


def _kind(where: Path, model: dict[str, Any], byte_level: bool) -> Kind:
    """Which of our kinds a model of `tokenizers` is."""
    if model["type"] == "BPE" and (byte_level or model.get("byte_fallback")):
        return "bytes" if byte_level else "sentencepiece"
    kinds: dict[str, Kind] = {"Unigram": "unigram", "WordPiece": "wordpiece"}
    if model["type"] not in kinds:
        raise CheckpointError(
            f"{where}: a tokenizer of type {model['type']} has no other form",
            expected="byte BPE, WordPiece or Unigram",
        )
    return kinds[model["type"]]


def _by_id(ids: dict[str, int], spelling: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Pieces and their kinds by id; ids that nobody has are unused pieces."""
    count = max(ids.values(), default=-1) + 1
    pieces = [f"[PAD{id}]" for id in range(count)]
    kinds = [UNUSED] * count
    for piece, id in ids.items():
        pieces[id] = piece
        kinds[id] = (
            BYTE if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">") else NORMAL
        )
    for token in spelling.get("added_tokens", []):
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return pieces, kinds


def _scores(kind: Kind, model: dict[str, Any], pieces: list[str], merges: list[str]) -> list[float]:
    """Unigram's own scores; for BPE the earlier a piece is merged the higher."""
    if kind == "unigram":
        scores = [float(score) for _, score in model["vocab"]]
        return scores + [0.0] * (len(pieces) - len(scores))
    if kind != "sentencepiece":
        return []
    rank = {
        merge.replace(" ", ""): -float(place) for place, merge in reversed(list(enumerate(merges)))
    }
    return [rank.get(piece, -float(len(merges))) for piece in pieces]


def _split(where: Path, spelling: dict[str, Any]) -> str:
    """The name that GGUF has for this pre-tokenizer."""
    seen = _essence(spelling.get("pre_tokenizer"))
    for name in dict.fromkeys(NAMES.values()):
        known = tokenizers.Tokenizer(tokenizers.models.BPE())
        known.pre_tokenizer = split_by(name)
        if _essence(json.loads(known.to_str())["pre_tokenizer"]) == seen:
            return _with_model(name, spelling)
    raise CheckpointError(
        f"{where}: GGUF has no name for this pre_tokenizer",
        expected=f"that of {', '.join(dict.fromkeys(NAMES.values()))}",
    )


def _with_model(name: str, spelling: dict[str, Any]) -> str:
    """Of two names with one pre-tokenizer, the one that also says what else the tokenizer does."""
    if name == "llama-bpe" and not spelling["model"].get("ignore_merges"):
        return "dbrx"
    if name == "smollm" and (spelling.get("normalizer") or {}).get("type") == "NFC":
        return "command-r"
    return name


def _essence(node: Any) -> list[Any]:
    """The steps that matter: types, patterns, switches."""
    if not node:
        return []
    if node["type"] == "Sequence":
        return [step for child in node["pretokenizers"] for step in _essence(child)]
    return [
        (
            node["type"],
            json.dumps(node.get("pattern")),
            node.get("use_regex"),
            node.get("individual_digits"),
            node.get("add_prefix_space"),
        )
    ]


def _charsmap(node: Any) -> bytes:
    """SentencePiece's compiled rules, where a normaliser holds them."""
    if not node:
        return b""
    if node["type"] == "Sequence":
        return next((found for child in node["normalizers"] if (found := _charsmap(child))), b"")
    return (
        base64.b64decode(node["precompiled_charsmap"] or "")
        if node["type"] == "Precompiled"
        else b""
    )
