"""The tokenizer files of a model folder: copied from the source, or written from the loaded
tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from sightline.checkpoints.source import Source
from sightline.text.engines.rust import RustEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.vocabulary import Vocabulary

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
    "generation_config.json",
)
LARGEST = 100_000_000


def tokenizer_of(source: Source) -> Tokenizer | None:
    """The tokenizer that belongs to a checkpoint, or None."""
    if isinstance(source.tokenizer, Vocabulary):
        return Tokenizer.from_vocabulary(source.tokenizer)
    return Tokenizer.from_folder(source.tokenizer) if isinstance(source.tokenizer, Path) else None


def tokenizer_files(source: Source | None, tokenizer: Tokenizer | None) -> dict[str, bytes]:
    """The files to write beside the weights so that the same tokenizer is loaded again."""
    if source is not None and isinstance(source.tokenizer, Path):
        paths = [source.tokenizer / name for name in NAMES]
        return {
            path.name: path.read_bytes()
            for path in paths
            if path.is_file() and path.stat().st_size <= LARGEST
        }
    return {} if tokenizer is None else _files_for(tokenizer)


def _files_for(tokenizer: Tokenizer) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    engine = tokenizer.engine
    if isinstance(engine, RustEngine):
        files["tokenizer.json"] = engine.tokenizer.to_str(pretty=True).encode()
    elif isinstance(engine, SentencePieceEngine):
        files["tokenizer.model"] = engine.model
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    ids = {
        "bos_token": tokenizer.bos,
        "eos_token": tokenizer.eos,
        "pad_token": tokenizer.pad,
        "unk_token": tokenizer.unknown,
    }
    for name, id in ids.items():
        piece = None if id is None else engine.piece(id)
        if piece is not None:
            config[name] = piece
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    files["tokenizer_config.json"] = (
        json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    ).encode()
    return files
