"""The tokenizer of a model's folder, from the files that it has.

tokenizer.json │ vocab.json + merges.txt (GPT-2) │ vocab.txt (BERT) │ tokenizer.model, spiece.model
(SentencePiece) │ source.spm + target.spm + vocab.json (Marian) │ vocab.json of single characters.
The first that exists is used.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from sightline.errors import CheckpointError
from sightline.text import folder_files as files
from sightline.text.engines.engine import Engine, call_native
from sightline.text.engines.marian import MarianEngine
from sightline.text.engines.rust import RustEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.build import build_engine
from sightline.text.vocabulary.sentencepiece_model import encode_pieces, parse_sentencepiece
from sightline.text.vocabulary.vocabulary import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SpecialIds,
    Vocabulary,
)

# classes that put <s> and </s> around a text, and those that split words like Qwen
WITH_BOS_AND_EOS = ("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer")
QWEN = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3Tokenizer")


def open_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder, or None."""
    engine = _engine(folder)
    if engine is None:
        return None
    pieces = {**_default_special_tokens(folder), **files.special_tokens(folder)}
    ids = {name: engine.id(piece) for name, piece in pieces.items()}
    vocabulary = None if isinstance(engine, RustEngine | MarianEngine) else engine.vocabulary()
    if vocabulary is not None:
        known = {
            "bos": vocabulary.bos,
            "eos": vocabulary.eos,
            "pad": vocabulary.pad,
            "unknown": vocabulary.unknown,
        }
        ids = known | {name: id for name, id in ids.items() if id is not None}
    return Tokenizer(engine, ids=ids, chat_template=files.chat_template(folder))


def _engine(folder: Path) -> Engine | None:
    """The engine of the folder's files, or None."""
    if (folder / "tokenizer.json").exists():
        return _read_tokenizer_json(folder / "tokenizer.json")
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return build_engine(_read_byte_bpe(folder))
    if _is_word_piece(folder):
        return build_engine(_read_word_piece(folder))
    for name in ("tokenizer.model", "spiece.model"):
        if (folder / name).exists():
            return _read_sentencepiece(folder / name)
    if (folder / "source.spm").exists() and (folder / "vocab.json").exists():
        return _read_marian(folder)
    if (folder / "vocab.json").exists():
        return build_engine(_read_characters(folder))
    return None


def _is_word_piece(folder: Path) -> bool:
    """Whether vocab.txt defines the tokenizer."""
    byte_bpe = (folder / "vocab.json").exists() and (folder / "merges.txt").exists()
    return (
        (folder / "vocab.txt").exists()
        and not (folder / "tokenizer.json").exists()
        and not byte_bpe
    )


def _default_special_tokens(folder: Path) -> dict[str, str]:
    """BERT's special tokens, for a vocab.txt without other files."""
    return {"pad": "[PAD]", "unknown": "[UNK]", "mask": "[MASK]"} if _is_word_piece(folder) else {}


def _read_tokenizer_json(path: Path) -> Engine:
    """The format of the Rust library."""
    files.check_tokenizer_json(path, files.read_object(path))
    text = files.read_text(path)
    tokenizer = call_native(path, "be built", lambda: tokenizers.Tokenizer.from_str(text))
    known = {
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    }
    pieces = [piece for piece in files.special_tokens(path.parent).values() if piece not in known]
    tokenizer.add_special_tokens(
        [piece for piece in pieces if tokenizer.token_to_id(piece) is not None]
    )  # as transformers does
    return RustEngine(path, tokenizer)


def _pieces_by_id(path: Path, ids: dict[str, Any], folder: Path) -> tuple[list[str], list[int]]:
    """Pieces and kinds by id, including the folder's added and special tokens."""
    files.check_token_ids(path, ids)
    added = {id: token for id, token in files.added_tokens(folder).items() if token[0] not in ids}
    files.check_token_ids(path, {**ids, **{content: id for id, (content, _) in added.items()}})
    count = max([*ids.values(), *added], default=-1) + 1
    pieces = [f"[PAD{id}]" for id in range(count)]
    kinds = [UNUSED] * count
    for piece, id in ids.items():
        pieces[id], kinds[id] = piece, NORMAL
    for id, (content, special) in {**files.added_tokens(folder), **added}.items():
        if id < count and (id in added or pieces[id] == content):
            pieces[id], kinds[id] = content, CONTROL if special else USER_DEFINED
    for piece in files.special_tokens(folder).values():
        if piece in ids:
            kinds[ids[piece]] = CONTROL
    return pieces, kinds


def _tokenizer_class(folder: Path) -> str:
    """The tokenizer class that the folder names."""
    return str(files.optional_object(folder / "tokenizer_config.json").get("tokenizer_class", ""))


def _read_byte_bpe(folder: Path) -> Vocabulary:
    """GPT-2's two files."""
    path = folder / "vocab.json"
    ids = files.read_object(path)
    pieces, kinds = _pieces_by_id(path, ids, folder)
    for piece in ("<|endoftext|>", "<s>", "</s>", "<pad>", "<mask>"):
        if piece in ids:
            kinds[ids[piece]] = CONTROL
    lines = files.read_text(folder / "merges.txt").split("\n")
    merges = [
        line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")
    ]
    around = [
        (ids[piece],) if _tokenizer_class(folder) in WITH_BOS_AND_EOS and piece in ids else ()
        for piece in ("<s>", "</s>")
    ]
    split = "qwen2" if _tokenizer_class(folder) in QWEN else "gpt-2"
    return Vocabulary(
        where=path,
        kind="bytes",
        pieces=pieces,
        kinds=kinds,
        merges=merges,
        split=split,
        before=around[0],
        after=around[1],
        prefix_space=False,
    )


def _read_word_piece(folder: Path) -> Vocabulary:
    """BERT's one file: a piece per line."""
    path = folder / "vocab.txt"
    lines = files.read_text(path).rstrip("\n").split("\n")
    ids = {line.rstrip("\r"): id for id, line in enumerate(lines)}
    if len(ids) != len(lines):
        raise CheckpointError(f"{path}: a piece comes twice", expected="each piece once")
    pieces, kinds = _pieces_by_id(path, ids, folder)
    missing = [piece for piece in ("[UNK]", "[CLS]", "[SEP]") if piece not in ids]
    if missing:
        raise CheckpointError(f"{path}: {missing[0]} is missing", expected="BERT's special pieces")
    for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        if piece in ids:
            kinds[ids[piece]] = CONTROL
    lower = bool(files.optional_object(folder / "tokenizer_config.json").get("do_lower_case", True))
    return Vocabulary(
        where=path,
        kind="wordpiece",
        pieces=pieces,
        kinds=kinds,
        lower_case=lower,
        unknown=ids["[UNK]"],
        before=(ids["[CLS]"],),
        after=(ids["[SEP]"],),
    )


def _read_sentencepiece(path: Path) -> Engine:
    """SentencePiece's file, run by SentencePiece; added tokens follow its pieces."""
    model = files.read_bytes(path)
    vocabulary = parse_sentencepiece(path, model)
    config = files.optional_object(path.parent / "tokenizer_config.json")
    count = len(vocabulary.pieces)
    added = {id: token for id, token in files.added_tokens(path.parent).items() if id >= count}
    if added and max(added) != count + len(added) - 1:
        raise CheckpointError(
            f"{path}: added tokens have ids up to {max(added)}",
            expected=f"{count} to {count + len(added) - 1}",
        )
    more = [(added[id][0], CONTROL if added[id][1] else USER_DEFINED) for id in sorted(added)]
    is_t5 = path.name == "spiece.model" or str(config.get("tokenizer_class", "")).startswith("T5")
    has_bos = config.get("add_bos_token", not is_t5) and vocabulary.bos is not None
    has_eos = config.get("add_eos_token", is_t5) and vocabulary.eos is not None
    extended = replace(
        vocabulary,
        pieces=vocabulary.pieces + [piece for piece, _ in more],
        kinds=vocabulary.kinds + [kind for _, kind in more],
        scores=vocabulary.scores + [0.0] * len(more),
        before=(vocabulary.bos,) if has_bos and vocabulary.bos is not None else (),
        after=(vocabulary.eos,) if has_eos and vocabulary.eos is not None else (),
    )
    return SentencePieceEngine(extended, model + encode_pieces(more))


def _read_marian(folder: Path) -> Engine:
    """Marian's source.spm, target.spm and vocab.json."""
    ids = files.read_object(folder / "vocab.json")
    files.check_token_ids(folder / "vocab.json", ids)
    target = folder / "target.spm"
    source = files.read_bytes(folder / "source.spm")
    return MarianEngine(
        folder / "vocab.json", ids, source, files.read_bytes(target) if target.exists() else source
    )


def _read_characters(folder: Path) -> Vocabulary:
    """A vocab.json of single characters and a few special tokens."""
    path = folder / "vocab.json"
    ids = files.read_object(path)
    pieces, kinds = _pieces_by_id(path, ids, folder)
    special_ids = {
        name: ids[piece]
        for name, piece in files.special_tokens(folder).items()
        if name != "mask" and piece in ids
    }
    if "unknown" in special_ids:
        kinds[special_ids["unknown"]] = UNKNOWN
    return Vocabulary(
        where=path, kind="characters", pieces=pieces, kinds=kinds, **SpecialIds(**special_ids)
    )
