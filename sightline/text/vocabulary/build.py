"""Builds the engine of a vocabulary."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from sightline.errors import CheckpointError, short_repr
from sightline.text.engines.characters import CharacterEngine
from sightline.text.engines.engine import Engine, call_native
from sightline.text.engines.rust import RustEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.vocabulary.pre_tokenizers import NORMALISED, pre_tokenizer
from sightline.text.vocabulary.vocabulary import CONTROL, USER_DEFINED, Vocabulary


def build_engine(vocabulary: Vocabulary) -> Engine:
    """The engine of a vocabulary."""
    if vocabulary.kind == "characters":
        return CharacterEngine(vocabulary)
    if vocabulary.kind in ("sentencepiece", "unigram"):
        return SentencePieceEngine(vocabulary)
    tokenizer = call_native(
        vocabulary.where,
        "be built",
        lambda: (_build_byte_bpe if vocabulary.kind == "bytes" else _build_word_piece)(vocabulary),
    )
    return RustEngine(vocabulary.where, tokenizer)


def piece_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Piece to id; a repeated piece is refused."""
    ids = {piece: id for id, piece in enumerate(vocabulary.pieces)}
    if len(ids) != len(vocabulary.pieces):
        twice = next(piece for id, piece in enumerate(vocabulary.pieces) if ids[piece] != id)
        raise CheckpointError(
            f"{vocabulary.where}: the piece {short_repr(twice)} comes twice",
            expected="each piece once",
        )
    return ids


def _build_byte_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE as in GPT-2: words by a pattern, bytes as letters, merges by rank."""
    merges = [_merge_pair(vocabulary, merge) for merge in vocabulary.merges]
    ignore_merges = vocabulary.split == "llama-bpe"  # Llama 3 does not merge a word that is a piece
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=piece_ids(vocabulary), merges=merges, ignore_merges=ignore_merges)
    )
    if vocabulary.split in NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(vocabulary.split or "gpt-2")
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_pieces(tokenizer, vocabulary)
    _add_template(tokenizer, vocabulary)
    return tokenizer


def _merge_pair(vocabulary: Vocabulary, merge: str) -> tuple[str, str]:
    """The two sides of a merge."""
    sides = merge.split(" ")
    if len(sides) != 2:
        raise CheckpointError(
            f"{vocabulary.where}: the merge {short_repr(merge)} has {len(sides)} sides",
            expected="two pieces and one space",
        )
    return sides[0], sides[1]


def _build_word_piece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """WordPiece as in BERT: words by spaces and punctuation, then the longest pieces from the
    left."""
    ids = piece_ids(vocabulary)
    unknown = vocabulary.pieces[vocabulary.unknown] if vocabulary.unknown is not None else "[UNK]"
    if unknown not in ids:
        raise CheckpointError(
            f"{vocabulary.where}: the unknown piece {unknown!r} is missing",
            expected="it in the vocabulary",
        )
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab=ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocabulary.lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _add_special_pieces(tokenizer, vocabulary)
    _add_template(tokenizer, vocabulary)
    return tokenizer


def _add_special_pieces(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Special and user-defined pieces are matched before pre-tokenization."""
    pieces = vocabulary.pieces
    tokenizer.add_special_tokens(
        [
            AddedToken(pieces[id], special=True, normalized=False)
            for id in vocabulary.ids_of(CONTROL)
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(pieces[id], special=False, normalized=False)
            for id in vocabulary.ids_of(USER_DEFINED)
        ]
    )


def _add_template(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """The post-processor that adds the ids before and after a text, and between two."""
    if not (vocabulary.before or vocabulary.after):
        return
    names = {id: vocabulary.pieces[id] for id in (*vocabulary.before, *vocabulary.after)}
    before = [names[id] for id in vocabulary.before]
    after = [names[id] for id in vocabulary.after]
    second = [f"{name}:1" for name in after]
    if vocabulary.kind != "wordpiece":
        second = [f"{name}:1" for name in (*before, "$B", *after)]
    else:
        second = ["$B:1", *second]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(piece.replace("$B:1:1", "$B:1") for piece in second)],
        special_tokens=[(name, id) for id, name in names.items()],
    )
