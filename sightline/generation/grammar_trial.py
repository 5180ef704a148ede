"""Where a grammar is tried first: grammars come with requests, and a line of one can ask for hours
or for all memory.

It runs by itself, nothing of sightline imported: see `limited`, which starts it and holds it to its
limits. A grammar that passes is then made by the asker, under the same limits: those of llguidance
bound each mask, the process bounds what they leave out (time to build, memory, depth of the stack).
"""

from __future__ import annotations

from typing import Any

import llguidance

SECONDS = 3.0
MEMORY = 1024**3


def limits() -> llguidance.LLParserLimits:
    """What one mask may cost: some hundredths of a second, and some 40 MB of lexer states in
    all."""
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
    """A list of bytes as llguidance wants its tokenizers. Nothing is ever cut with it: every
    grammar has `no_forcing`."""

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end
        self.bos_token_id: int | None = None
        self.special_token_ids: list[int] = []
        self.is_tokenizer_wrapper = True

    def __call__(self, text: bytes) -> list[int]:
        return [self.tokens.index(bytes([byte])) for byte in text]


def byte_table(size: int, names: dict[str, int]) -> Table:
    """The special tokens where they are, nothing else below `size`, then all bytes and an end."""
    special = {id: b"\xff" + name.encode() for name, id in names.items()}
    tokens = [special.get(id, b"") for id in range(size)]
    return Table([*tokens, *(bytes([byte]) for byte in range(256)), b"\xff<end>"], size + 256)


def answer(request: dict[str, Any]) -> str:
    """What llguidance has against a grammar, or nothing."""
    tokenizer = llguidance.LLTokenizer(byte_table(request["size"], request["names"]), slices=[])  # pyright: ignore[reportArgumentType]
    matcher = llguidance.LLMatcher(tokenizer, request["grammar"], log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error()
