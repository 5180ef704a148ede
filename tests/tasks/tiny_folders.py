"""Tiny models with tokenizers as Hugging Face saves them, and texts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tests.families.oracle import reference, transformers

WORDS = [
    "the",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "log",
    "capital",
    "of",
    "france",
    "is",
    "paris",
    "film",
    "good",
    "bad",
    "##ing",
    "##es",
]
SIGNS = [*".,!?Σσ", "##σ"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
]
TEXTS = [
    "the cat sat on the mat.",
    "Paris",
    "",
    "the capital of France is Paris, and the capital of Rome is Rome!",
    "a good film",
    "dogs and cats running on a log, the cat sat and the dog sat and the mat sat on the log and on the cat and on the dog.",
    "[MASK] is plain text. [SEP]",
    "a bad film?",
    "猫 🙂 zebra",
]
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
}


def word_pieces(place: Path, *, lowercase: bool = True) -> Any:
    """BERT's tokenizer over a few words and all letters."""
    vocabulary = {piece: id for id, piece in enumerate([*SPECIAL, *WORDS, *SIGNS, *LETTERS])}
    made = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return _saved(made, place, names)


def byte_pieces(place: Path) -> Any:
    """RoBERTa's tokenizer: bytes, a few merges, and a mask that takes the space before it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("c", "a"),
        ("ca", "t"),
        ("Ġ", "t"),
        ("h", "e"),
        ("Ġt", "he"),
        ("Ġ", "cat"),
        ("Ġ", "o"),
        ("Ġo", "n"),
    ]
    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
        *letters,
        *("".join(pair) for pair in merges),
    ]
    made = tokenizers.Tokenizer(
        models.BPE(vocab={piece: id for id, piece in enumerate(pieces)}, merges=merges)
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _saved(
        made,
        place,
        names | {"mask_token": AddedToken("<mask>", lstrip=True, special=True, normalized=False)},
    )


def _saved(made: tokenizers.Tokenizer, place: Path, names: dict[str, Any]) -> Any:
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=64, **names
    )
    wrapped.save_pretrained(place)
    return wrapped


def bert(
    place: Path, class_name: str, *, lowercase: bool = True, **options: Any
) -> tuple[Any, Any]:
    """A folder with a tiny BERT, and the same as transformers' model and tokenizer."""
    tokenizer = word_pieces(place, lowercase=lowercase)
    model = reference(
        class_name, SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 64} | options
    )
    model.save_pretrained(place)
    return model, tokenizer


def roberta(place: Path, class_name: str, **options: Any) -> tuple[Any, Any]:
    """The same with RoBERTa's tokenizer and positions."""
    tokenizer = byte_pieces(place)
    sizes = SIZES | {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 66,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    model = reference(class_name, sizes | options)
    model.save_pretrained(place)
    return model, tokenizer
