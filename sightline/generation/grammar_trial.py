"""The sandboxed trial of a grammar: grammars are untrusted input, and a single line of one can take
hours or all memory.

This module runs in its own process and imports nothing of sightline: see `limited`, which starts it
and enforces its limits. A grammar that passes is then compiled by the parent under the same limits:
llguidance's limits bound each mask, the process bounds the rest (compile time, memory, stack
depth).
"""

from __future__ import annotations

from typing import Any

import llguidance

SECONDS = 3.0
MEMORY = 1024**3


def limits() -> llguidance.LLParserLimits:
    """The limits of one mask: some hundredths of a second, and about 40 MB of lexer states in
    total."""
    return llguidance.LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class Table:
    """A list of bytes with the interface of llguidance's tokenizers. It never tokenizes a text:
    every grammar has `no_forcing`."""

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end
        self.bos_token_id: int | None = None
        self.special_token_ids: list[int] = []
        self.is_tokenizer_wrapper = True

    def __call__(self, text: bytes) -> list[int]:
        return [self.tokens.index(bytes([byte])) for byte in text]


def byte_table(size: int, names: dict[str, int]) -> Table:
    """The special tokens at their ids, empty entries below `size`, then all bytes and an end
    token."""
    special = {id: b"\xff" + name.encode() for name, id in names.items()}
    tokens = [special.get(id, b"") for id in range(size)]
    return Table([*tokens, *(bytes([byte]) for byte in range(256)), b"\xff<end>"], size + 256)


def answer(request: dict[str, Any]) -> str:
    """llguidance's error for a grammar, or an empty string."""
    tokenizer = llguidance.LLTokenizer(byte_table(request["size"], request["names"]), slices=[])  # pyright: ignore[reportArgumentType]
    matcher = llguidance.LLMatcher(tokenizer, request["grammar"], log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error()
