"""The files of a tokenizer, read with limits: JSON objects, special tokens, the chat template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError, short_repr
from sightline.files.regular import read_regular_file
from sightline.files.strict_json import parse_json
from sightline.text.vocabulary.patterns import check_pattern

MAX_BYTES = 128 * 2**20
MAX_SEPARATORS = 20_000_000  # a vocabulary of 256,000 tokens and its merges have 2,500,000
NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "pad": "pad_token",
    "unknown": "unk_token",
    "mask": "mask_token",
}


def read_bytes(path: Path) -> bytes:
    """A regular file of reasonable size."""
    try:
        return read_regular_file(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror})", fix="check the file's permissions"
        ) from None


def read_text(path: Path) -> str:
    """A text file in UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path}: is not UTF-8 (at byte {error.start})", fix="fetch the file again"
        ) from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, read strictly."""
    value = parse_json(read_bytes(path), str(path), max_separators=MAX_SEPARATORS)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}", expected="a JSON object")
    return value


def optional_object(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one if there is no such file."""
    return read_object(path) if path.exists() else {}


def check_token_ids(path: Path, ids: dict[str, Any]) -> None:
    """Refuse repeated and negative ids, and large gaps (a table by id would be huge)."""
    values = list(ids.values())
    wrong = next(
        (
            piece
            for piece, id in ids.items()
            if isinstance(id, bool) or not isinstance(id, int) or id < 0
        ),
        None,
    )
    if wrong is not None:
        raise CheckpointError(
            f"{path}: the id of {wrong[:40]!r} is {str(ids[wrong])[:40]!r}",
            expected="an integer from 0",
        )
    if len(set(values)) != len(values):
        ids_so_far: set[int] = set()
        twice = next(piece for piece, id in ids.items() if id in ids_so_far or ids_so_far.add(id))
        raise CheckpointError(
            f"{path}: {twice[:40]!r} has the id {ids[twice]} of another token",
            expected="each id once",
        )
    if values and max(values) >= 2 * len(values) + 1024:
        raise CheckpointError(
            f"{path}: {len(values)} tokens have ids up to {max(values)}",
            expected="ids without large holes",
        )


def check_tokenizer_json(path: Path, tokenizer_json: dict[str, Any]) -> None:
    """Check the ids and patterns of a tokenizer.json before the library reads them."""
    model = tokenizer_json.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise CheckpointError(f"{path}: model.vocab is missing", expected="a tokenizer.json")
    ids = _vocabulary_ids(path, model["vocab"])
    check_token_ids(path, ids)
    added = tokenizer_json.get("added_tokens", [])
    if not isinstance(added, list) or not all(_is_token(token) for token in added):
        seen = f"{path}: added_tokens is not a list of tokens"
        raise CheckpointError(
            seen,
            expected="objects with an integer id and a text as content",
            fix="fetch the file again",
        )
    vocabulary_ids = set(ids.values())
    check_token_ids(
        path,
        {
            str(id): id
            for id in [
                *vocabulary_ids,
                *(token["id"] for token in added if token["id"] not in vocabulary_ids),
            ]
        },
    )
    for pattern in _patterns(tokenizer_json):
        check_pattern(str(path), pattern)


def _vocabulary_ids(path: Path, vocabulary: Any) -> dict[str, Any]:
    """Piece to id; Unigram has a list of [piece, score], whose ids are their indices."""
    if isinstance(vocabulary, dict):
        return vocabulary
    if isinstance(vocabulary, list):
        return {str(place): place for place in range(len(vocabulary))}
    seen = f"{path}: model.vocab is {short_repr(vocabulary)}"
    raise CheckpointError(
        seen, expected="ids by piece, or a list of pieces with scores", fix="fetch the file again"
    )


def _is_token(token: Any) -> bool:
    return (
        isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and isinstance(token.get("id"), int)
    )


def _patterns(node: Any) -> Iterator[str]:
    """Every regular expression in a tokenizer.json."""
    if isinstance(node, dict):
        if isinstance(node.get("Regex"), str):
            yield node["Regex"]
        for name, child in node.items():
            if name not in ("vocab", "merges"):
                yield from _patterns(child)
    elif isinstance(node, list):
        for child in node:
            yield from _patterns(child)


def special_tokens(folder: Path) -> dict[str, str]:
    """bos, eos, pad, unknown and mask, from the folder's files."""
    tokens: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        values = optional_object(folder / file)
        for name, key in NAMES.items():
            value = values.get(key)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[name] = content
    return tokens


def added_tokens(folder: Path) -> dict[int, tuple[str, bool]]:
    """Added tokens by id: the text and whether it is special."""
    tokens: dict[int, tuple[str, bool]] = {}
    for content, id in optional_object(folder / "added_tokens.json").items():
        if isinstance(id, int):
            tokens[id] = (content, True)
    decoder = optional_object(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    for id, token in decoder.items() if isinstance(decoder, dict) else ():
        if (
            isinstance(token, dict)
            and isinstance(token.get("content"), str)
            and id.isdecimal()
            and len(id) < 10
        ):
            tokens[int(id)] = (token["content"], bool(token.get("special", True)))
    return tokens


def chat_template(folder: Path) -> str | None:
    """The chat template: from its file, or from tokenizer_config.json (the one named default if
    there are several)."""
    if (folder / "chat_template.jinja").exists():
        return read_text(folder / "chat_template.jinja")
    value = optional_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):
        templates = {
            each.get("name"): each.get("template") for each in value if isinstance(each, dict)
        }
        value = templates.get("default")
    return value if isinstance(value, str) else None
