"""Vocabulary to engine."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from sightline.errors import CheckpointError, short
from sightline.text.engines.characters import CharacterEngine
from sightline.text.engines.engine import Engine, guarded
from sightline.text.engines.rust import RustEngine
from sightline.text.engines.sentencepiece import SentencePieceEngine
from sightline.text.vocabulary.pre_tokenizers import NORMALISED, split_by
from sightline.text.vocabulary.vocabulary import CONTROL, USER_DEFINED, Vocabulary


def engine_of(vocabulary: Vocabulary) -> Engine:
    """The engine for a vocabulary's kind."""
    if vocabulary.kind == "characters":
        return CharacterEngine(vocabulary)
    if vocabulary.kind in ("sentencepiece", "unigram"):
        return SentencePieceEngine(vocabulary)
    made = guarded(
        vocabulary.where,
        "be built",
        lambda: (_byte_bpe if vocabulary.kind == "bytes" else _word_piece)(vocabulary),
    )
    return RustEngine(vocabulary.where, made)


def ids_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Piece to id; a piece that comes twice is refused."""
    ids = {piece: id for id, piece in enumerate(vocabulary.pieces)}
    if len(ids) != len(vocabulary.pieces):
        twice = next(piece for id, piece in enumerate(vocabulary.pieces) if ids[piece] != id)
        raise CheckpointError(
            f"{vocabulary.where}: the piece {short(twice)} comes twice", expected="each piece once"
        )
    return ids


def _byte_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """GPT-2's way: words by a pattern, bytes as letters, merges by rank."""
    merges = [_pair(vocabulary, merge) for merge in vocabulary.merges]
    whole = vocabulary.split == "llama-bpe"  # Llama 3 takes a word that is a piece without merging
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=ids_of(vocabulary), merges=merges, ignore_merges=whole)
    )
    if vocabulary.split in NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_by(vocabulary.split or "gpt-2")
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer, vocabulary)
    _surround(tokenizer, vocabulary)
    return tokenizer


def _pair(vocabulary: Vocabulary, merge: str) -> tuple[str, str]:
    """The two sides of a merge."""
    sides = merge.split(" ")
    if len(sides) != 2:
        raise CheckpointError(
            f"{vocabulary.where}: the merge {short(merge)} has {len(sides)} sides",
            expected="two pieces and one space",
        )
    return sides[0], sides[1]


def _word_piece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """BERT's way: words by spaces and punctuation, then the longest pieces from the left."""
    ids = ids_of(vocabulary)
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
    _add(tokenizer, vocabulary)
    _surround(tokenizer, vocabulary)
    return tokenizer


def _add(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Special and user-defined pieces are found before anything is cut."""
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


def _surround(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """The ids before and after a text, and between two."""
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
