"""A tokenizer.json as a Vocabulary, as far as GGUF and SentencePiece can express it."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Set
from pathlib import Path
from typing import Any

import tokenizers

from sightline.errors import CheckpointError
from sightline.text.vocabulary.pre_tokenizers import NAMES, pre_tokenizer
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


def vocabulary_from_json(where: Path, tokenizer_json: dict[str, Any], around: Around) -> Vocabulary:
    """The vocabulary in a parsed tokenizer.json."""
    model = tokenizer_json["model"]
    ids: dict[str, int] = (
        {piece: id for id, (piece, _) in enumerate(model["vocab"])}
        if model["type"] == "Unigram"
        else dict(model["vocab"])
    )
    ids |= {token["content"]: token["id"] for token in tokenizer_json.get("added_tokens", [])}
    pieces, kinds = _pieces_and_kinds(ids, tokenizer_json)
    text = json.dumps(tokenizer_json, ensure_ascii=False)
    byte_level = '"ByteLevel"' in json.dumps(tokenizer_json.get("decoder"))
    kind = _vocabulary_kind(where, model, byte_level)
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
        split=_gguf_pre_tokenizer(where, tokenizer_json) if kind == "bytes" else "",
        charsmap=_json_charsmap(tokenizer_json.get("normalizer")),
        prefix_space=kind not in ("bytes", "wordpiece")
        and ("Metaspace" in text or '"Prepend"' in text),
        remove_extra_whitespaces=kind == "unigram" and " {2,}" in text,
        lower_case='"lowercase": true' in text,
        unknown=unknown,
        mask=ids.get("[MASK]", ids.get("<mask>")),
        before=around[0],
        after=around[1],
    )


def without_names(tokenizer_json: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    """A tokenizer.json in which these pieces keep their ids but have random names, so that no text
    and no merge gives them."""
    new = {name: f"{name}{secrets.token_hex(16)}" for name in names}
    model = dict(tokenizer_json["model"])
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
        for token in tokenizer_json.get("added_tokens", [])
    ]
    return {**tokenizer_json, "model": model, "added_tokens": added, "post_processor": None}


def _vocabulary_kind(where: Path, model: dict[str, Any], byte_level: bool) -> Kind:
    """The kind of vocabulary of a model of `tokenizers`."""
    if model["type"] == "BPE" and (byte_level or model.get("byte_fallback")):
        return "bytes" if byte_level else "sentencepiece"
    kinds: dict[str, Kind] = {"Unigram": "unigram", "WordPiece": "wordpiece"}
    if model["type"] not in kinds:
        raise CheckpointError(
            f"{where}: a tokenizer of type {model['type']} has no other form",
            expected="byte BPE, WordPiece or Unigram",
        )
    return kinds[model["type"]]


def _pieces_and_kinds(
    ids: dict[str, int], tokenizer_json: dict[str, Any]
) -> tuple[list[str], list[int]]:
    """Pieces and their kinds by id; missing ids are unused pieces."""
    count = max(ids.values(), default=-1) + 1
    pieces = [f"[PAD{id}]" for id in range(count)]
    kinds = [UNUSED] * count
    for piece, id in ids.items():
        pieces[id] = piece
        kinds[id] = (
            BYTE if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">") else NORMAL
        )
    for token in tokenizer_json.get("added_tokens", []):
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return pieces, kinds


def _scores(kind: Kind, model: dict[str, Any], pieces: list[str], merges: list[str]) -> list[float]:
    """Unigram's scores; for BPE, the earlier a piece is merged the higher."""
    if kind == "unigram":
        scores = [float(score) for _, score in model["vocab"]]
        return scores + [0.0] * (len(pieces) - len(scores))
    if kind != "sentencepiece":
        return []
    rank = {
        merge.replace(" ", ""): -float(place) for place, merge in reversed(list(enumerate(merges)))
    }
    return [rank.get(piece, -float(len(merges))) for piece in pieces]


def _gguf_pre_tokenizer(where: Path, tokenizer_json: dict[str, Any]) -> str:
    """GGUF's name of this pre-tokenizer."""
    steps = _relevant_steps(tokenizer_json.get("pre_tokenizer"))
    for name in dict.fromkeys(NAMES.values()):
        known = tokenizers.Tokenizer(tokenizers.models.BPE())
        known.pre_tokenizer = pre_tokenizer(name)
        if _relevant_steps(json.loads(known.to_str())["pre_tokenizer"]) == steps:
            return _name_for_model(name, tokenizer_json)
    raise CheckpointError(
        f"{where}: GGUF has no name for this pre_tokenizer",
        expected=f"that of {', '.join(dict.fromkeys(NAMES.values()))}",
    )


def _name_for_model(name: str, tokenizer_json: dict[str, Any]) -> str:
    """Of two names with the same pre-tokenizer, the one that matches the rest of the tokenizer."""
    if name == "llama-bpe" and not tokenizer_json["model"].get("ignore_merges"):
        return "dbrx"
    if name == "smollm" and (tokenizer_json.get("normalizer") or {}).get("type") == "NFC":
        return "command-r"
    return name


def _relevant_steps(node: Any) -> list[Any]:
    """The steps with their types, patterns and options."""
    if not node:
        return []
    if node["type"] == "Sequence":
        return [step for child in node["pretokenizers"] for step in _relevant_steps(child)]
    return [
        (
            node["type"],
            json.dumps(node.get("pattern")),
            node.get("use_regex"),
            node.get("individual_digits"),
            node.get("add_prefix_space"),
        )
    ]


def _json_charsmap(node: Any) -> bytes:
    """SentencePiece's compiled rules, if the normaliser has them."""
    if not node:
        return b""
    if node["type"] == "Sequence":
        return next(
            (charsmap for child in node["normalizers"] if (charsmap := _json_charsmap(child))), b""
        )
    return (
        base64.b64decode(node["precompiled_charsmap"] or "")
        if node["type"] == "Precompiled"
        else b""
    )
