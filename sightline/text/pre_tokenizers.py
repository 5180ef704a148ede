"""How text is cut into words before byte-level BPE: the rules that GGUF names by `tokenizer.ggml.pre`.

The patterns are the models' own, as their tokenizer files publish them.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

PreTokenizer = pre_tokenizers.PreTokenizer

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{SIGNS_AND_SPACES}"
QWEN2 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{SIGNS_AND_SPACES}"
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

NAMES = {
    "gpt-2": "gpt-2",
    "phi-2": "gpt-2",
    "mpt": "gpt-2",
    "olmo": "gpt-2",
    "roberta-bpe": "gpt-2",
    "smollm": "smollm",
    "starcoder": "smollm",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "default": "default",
}


def split_by(name: str) -> PreTokenizer:
    """The pre-tokenizer for one of NAMES' values."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    patterns = {"llama-bpe": (LLAMA3,), "qwen2": (QWEN2,), "default": DEFAULT}[name]
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns), whole])
