"""A tokenizer as a grammar sees it: a table of bytes in which each token stands as what it writes.

0 … size−1    what each token writes within a text; a control token as \\xff and its name, which no
              text contains
size …        for tokens that write something else when they open a text: that
the last      the end of the text, whatever ids the model has for it
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
    """`forms` places the opening forms in the table; `silent` are the tokens that write nothing
    when they open a text."""

    table: llguidance.LLTokenizer
    size: int
    end: int
    forms: dict[int, int]
    silent: frozenset[int]
    names: tuple[tuple[str, int], ...]
    control: frozenset[int]

    def places(self, ids: Sequence[int]) -> list[int] | None:
        """Where these tokens stand in the table, as they follow one another; None if one is in no
        vocabulary."""
        if not all(0 <= id < self.size for id in ids):
            return None
        first = self._first(ids)
        opening = [self.forms.get(id, id) for id in ids[first : first + 1] if id not in self.silent]
        return [*ids[:first], *opening, *ids[first + 1 :]]

    def follow(self, table: Mask, ids: Sequence[int]) -> Mask:
        """By id, whether a token may follow these: the opening forms count as long as nothing was
        written."""
        found = table[: self.size].copy()
        if self._first(ids) == len(ids):
            found[list(self.forms)] = table[list(self.forms.values())]
            found[list(self.silent)] = found.any()
        return found

    def _first(self, ids: Sequence[int]) -> int:
        """Where the first token that is no control token stands."""
        return next((place for place, id in enumerate(ids) if id not in self.control), len(ids))


def grammar_tokens(tokenizer: Tokenizer) -> GrammarTokens:
    """The table of a tokenizer, made once and kept as long as the tokenizer."""
    if tokenizer not in _KEPT:
        _KEPT[tokenizer] = _made(tokenizer)
    return _KEPT[tokenizer]


_KEPT: WeakKeyDictionary[Tokenizer, GrammarTokens] = WeakKeyDictionary()


def _made(tokenizer: Tokenizer) -> GrammarTokens:
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
