"""How text is cut into words before byte-level BPE: the rules that GGUF names by `tokenizer.ggml.pre`, and which patterns are safe.

The patterns are the models' own, as their tokenizer files publish them.
"""

from __future__ import annotations

import re

from tokenizers import Regex, pre_tokenizers

from sightline.errors import CheckpointError

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
LONGEST_PATTERN = 4096
ENDLESS = re.compile(r"(?:[*+]|\{\d*,\})[+?]?")
MOST_ENDLESS = 2  # in one branch; the models' own patterns have two, and each more multiplies the time by the text's length


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


def check_pattern(where: str, pattern: str) -> None:
    """Refuse a pattern whose matching time can explode: a repeated group that itself repeats or chooses, many repeats in a row,
    or a back-reference."""
    if len(pattern) > LONGEST_PATTERN:
        raise CheckpointError(f"{where}: a pattern of {len(pattern)} characters", expected=f"at most {LONGEST_PATTERN}")
    bare = re.sub(r"\\[pPx]\{[^}]*\}|\\[^1-9k]", "x", pattern)
    bare = re.sub(r"\[(?:[^\]]|(?<=\[)\]|(?<=\[\^)\])*\]", "x", bare)
    if re.search(r"\\[1-9k]", bare):
        raise CheckpointError(f"{where}: the pattern {pattern[:60]!r} refers back to a group", expected="a pattern without references")
    if any(len(ENDLESS.findall(branch)) > MOST_ENDLESS for branch in bare.split("|")):
        seen = f"{where}: the pattern {pattern[:60]!r} repeats three times in one branch"
        raise CheckpointError(seen, expected="a pattern whose time is bounded", fix="use the model's original tokenizer.json")
    for start, end in _groups(where, bare):
        body, repeat = bare[start + 1 : end], bare[end + 1 : end + 2]
        if repeat and repeat in "*+{" and re.search(r"[*+{|]", body):
            seen = f"{where}: the pattern {pattern[:60]!r} repeats a group that repeats or chooses"
            raise CheckpointError(seen, expected="a pattern whose time is bounded", fix="use the model's original tokenizer.json")


def _groups(where: str, pattern: str) -> list[tuple[int, int]]:
    """Where each group of a pattern (without escapes and classes) begins and ends."""
    opened: list[int] = []
    groups: list[tuple[int, int]] = []
    for at, sign in enumerate(pattern):
        if sign == "(":
            opened.append(at)
        elif sign == ")":
            if not opened:
                raise CheckpointError(f"{where}: a pattern closes a group that it did not open", expected="a regular expression")
            groups.append((opened.pop(), at))
    return groups
