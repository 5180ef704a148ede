"""Tokenizers of recipes: one token per character, and one vocabulary for the two languages of a
translator.

The translator's lower-cases, separates punctuation and 's from words as corpora do, and marks the
start of words. Byte fallback encodes everything else, so nothing is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from sightline.errors import InputError
from sightline.text.training.subwords import END as END_OF_TEXT

PAD = "<pad>"
BEGIN = "<s>"
END = "</s>"
MARK = "▁"
UNKNOWN = "\ufffd"


def character_tokenizer(text: Iterable[str]) -> tokenizers.Tokenizer:
    """Token 0 ends a text, token 1 is the unknown character; then the characters of the text, by
    code point."""
    characters: set[str] = set()
    for part in text:
        characters |= set(part)
    if not characters:
        raise InputError("no character to learn", expected="some text")
    vocabulary = [END_OF_TEXT, UNKNOWN, *sorted(characters - {UNKNOWN})]
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel(
            {character: id for id, character in enumerate(vocabulary)}, unk_token=UNKNOWN
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def train_bilingual(
    texts: Iterable[str], *, vocab_size: int, lower: bool = True, join: bool = False
) -> tokenizers.Tokenizer:
    """BPE over marked words of both languages. With `join` words are decoded without spaces between
    them, as in Japanese."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace("’", "'"),
            *([normalizers.Lowercase()] if lower else []),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r'[.,!?;:"()](?!\d)'), "isolated"),
            pre_tokenizers.Split(Regex(r"'"), "merged_with_next"),
            pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 256,
        min_frequency=2,
        special_tokens=[PAD, BEGIN, END],
        show_progress=False,
        max_token_length=24,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return add_byte_fallback(tokenizer, join=join)


def add_byte_fallback(trained: tokenizers.Tokenizer, *, join: bool) -> tokenizers.Tokenizer:
    """The same tokenizer with byte fallback, and the end token after every text."""
    tokenizer_json = json.loads(trained.to_str())
    vocabulary = tokenizer_json["model"]["vocab"]
    merges = [tuple(pair) for pair in tokenizer_json["model"]["merges"]]
    if len(vocabulary) < 16:
        raise InputError(
            "almost no text to learn a vocabulary from", expected="some thousand sentences"
        )
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True)
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.add_special_tokens([PAD, BEGIN, END])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, vocabulary[END])]
    )
    space = "" if join else " "
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(MARK, space),
            *([] if join else [decoders.Strip(" ", 1, 0)]),
        ]
    )
    return tokenizer


def chain_columns(*columns: Iterable[str]) -> Iterator[str]:
    """All texts, column by column."""
    for column in columns:
        yield from column


def tokenizer_config(
    begin: str,
    end: str,
    pad: str | None = None,
    *,
    unknown: str | None = None,
    more: Sequence[str] = (),
) -> bytes:
    """tokenizer_config.json, for transformers and for `Tokenizer.from_folder`."""
    tokens = {
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "unk_token": unknown,
        "additional_special_tokens": list(more) or None,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: value for name, value in tokens.items() if value is not None},
    }
    return json.dumps(
        {**config, "clean_up_tokenization_spaces": False}, indent=2, ensure_ascii=False
    ).encode()
