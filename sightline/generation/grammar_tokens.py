"""A tokenizer for grammars: a table with the bytes that each token writes.

0 … size−1    the bytes of each token within a text; a control token is \\xff and its name, which no
              text contains
size …        the bytes of tokens that differ at the start of a text
the last      the end of the text, for all end ids of the model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import llguidance
import numpy as np
import numpy.typing as npt

from sightline.generation.grammar_trial import Table
from sightline.text.token_bytes import token_byte_table
from sightline.text.tokenizer import Tokenizer

CONTROL = b"\xff"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """`forms` maps tokens to their opening forms in the table; `silent` are the tokens that write
    nothing at the start of a text."""

    table: llguidance.LLTokenizer
    size: int
    end: int
    forms: dict[int, int]
    silent: frozenset[int]
    names: tuple[tuple[str, int], ...]
    control: frozenset[int]

    def places(self, ids: Sequence[int]) -> list[int] | None:
        """The indices of these consecutive tokens in the table; None if one is not in the
        vocabulary."""
        if not all(0 <= id < self.size for id in ids):
            return None
        first = self._first(ids)
        opening = [self.forms.get(id, id) for id in ids[first : first + 1] if id not in self.silent]
        return [*ids[:first], *opening, *ids[first + 1 :]]

    def follow(self, table: Mask, ids: Sequence[int]) -> Mask:
        """By id, whether a token may follow these: the opening forms count until something is
        written."""
        allowed = table[: self.size].copy()
        if self._first(ids) == len(ids):
            allowed[list(self.forms)] = table[list(self.forms.values())]
            allowed[list(self.silent)] = allowed.any()
        return allowed

    def _first(self, ids: Sequence[int]) -> int:
        """The position of the first token that is not a control token."""
        return next((place for place, id in enumerate(ids) if id not in self.control), len(ids))


def grammar_tokens(tokenizer: Tokenizer) -> GrammarTokens:
    """The table of a tokenizer, cached as long as the tokenizer lives."""
    if tokenizer not in _KEPT:
        _KEPT[tokenizer] = _read_table(tokenizer)
    return _KEPT[tokenizer]


_KEPT: WeakKeyDictionary[Tokenizer, GrammarTokens] = WeakKeyDictionary()


def _read_table(tokenizer: Tokenizer) -> GrammarTokens:
    """The bytes within a text, the names of control tokens, the opening forms, the end."""
    texts = token_byte_table(tokenizer)
    size = tokenizer.vocab_size
    names = {tokenizer.token(id): id for id in sorted(tokenizer.special_ids) if 0 <= id < size}
    tokens = list(texts.within)
    for name, id in names.items():
        tokens[id] = CONTROL + name.encode()
    spoken = [id for id, text in texts.opening.items() if text]
    tokens += [texts.opening[id] for id in spoken]
    return GrammarTokens(
        table=llguidance.LLTokenizer(Table([*tokens, CONTROL + b"<end>"], len(tokens))),  # pyright: ignore[reportArgumentType]
        size=size,
        end=len(tokens),
        forms={id: size + place for place, id in enumerate(spoken)},
        silent=frozenset(id for id, text in texts.opening.items() if not text),
        names=tuple(names.items()),
        control=frozenset(tokenizer.special_ids),
    )
