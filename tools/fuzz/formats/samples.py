"""Small models and tokenizers that several formats share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

LETTERS = [*"abcdefghijklmnopqrstuvwxyz"]
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if"
    " add_generation_prompt %}<s>assistant:{% endif %}"
)
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
}
LLAMA = SIZES | {
    "num_key_value_heads": 1,
    "vocab_size": 267,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GEMMA2 = SIZES | {
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 40,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
}
GPT2 = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "vocab_size": 40,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def byte_pieces() -> tokenizers.Tokenizer:
    merges = [
        ("c", "a"),
        ("ca", "t"),
        ("Ġ", "t"),
        ("h", "e"),
        ("Ġt", "he"),
        ("Ġ", "cat"),
        ("Ġ", "o"),
    ]
    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *("".join(pair) for pair in merges),
    ]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={piece: id for id, piece in enumerate(pieces)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(piece, special=True, normalized=False) for piece in pieces[:4]]
    )
    return tokenizer


def word_pieces() -> tokenizers.Tokenizer:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "sat",
        "##s",
        ".",
        *LETTERS,
        *(f"##{letter}" for letter in LETTERS),
    ]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(
            vocab={piece: id for id, piece in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]"
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(pieces[:5])
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", "▁", "▁the", "▁cat", *LETTERS, ".", "é"]
    tokenizer = tokenizers.Tokenizer(
        models.Unigram([(piece, -float(n)) for n, piece in enumerate(pieces)], unk_id=0)
    )
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Metaspace(),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(pieces[:3])
    return tokenizer


def save_model(name: str, options: dict[str, Any], place: Path) -> None:
    """A transformers model with seeded weights."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    kind(kind.config_class(**options)).eval().save_pretrained(place)
