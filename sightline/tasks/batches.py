"""Texts as rows of tokens, in batches of nearly one length, so that hardly anything that is
computed is padding.

Rows of exactly one length need no mask and take the fastest kernel. Groups of exactly one length
would be many and small, so a batch takes rows that are up to a tenth shorter than its longest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import Learned, StackConfig
from sightline.core import check
from sightline.core.runner import Runner
from sightline.errors import InputError, short
from sightline.text.engines.engine import guarded
from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer

# Tokens per batch: matrices large enough for every core, activations small enough for the cache.
BUDGET = 2048
SLACK = 0.1  # how much shorter than its batch a row may be


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of the rows: which, their tokens, and where they are padding; None where all have one
    length."""

    places: list[int]
    tokens: Int[Tensor, "batch time"]
    padding: Bool[Tensor, "batch time"] | None


def listed(texts: Sequence[str]) -> list[str]:
    """The texts as a list; one text alone is a list of one, not its characters."""
    found = [texts] if isinstance(texts, str) else list(texts)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(
                f"text {place} is {short(text)}", expected="strings", fix='["one text", "another"]'
            )
    return found


def longest(stack: StackConfig, wanted: int | None) -> int:
    """The most tokens of a row. Beyond a learned table nothing can stand; other positions go on if
    that is wanted."""
    if wanted is None:
        return stack.max_positions
    return (
        min(wanted, stack.max_positions)
        if isinstance(stack.embedding.positions, Learned)
        else wanted
    )


def rows_of(tokenizer: Tokenizer, texts: list[str], *, most: int) -> list[list[int]]:
    """The ids of each text with the special ones around. One that is too long loses its end, but
    not the special tokens after it."""
    before, after = tokenizer.engine.around
    room = max(0, most - len(before) - len(after))
    bare = bare_rows(tokenizer, texts)
    cut = sum(len(ids) > room for ids in bare)
    if cut:
        whom = "the text was" if len(bare) == 1 else f"{cut} of {len(bare)} texts were"
        warnings.warn(f"{whom} cut to {most} tokens, the most that this model reads", stacklevel=4)
    return [[*before, *ids[:room], *after] for ids in bare]


def bare_rows(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """`tokenizer.encode` of each text; the Rust library takes them all at once."""
    engine = tokenizer.engine
    if not isinstance(engine, RustEngine) or not all(map(_is_valid, texts)):
        return [tokenizer.encode(text) for text in texts]
    found = guarded(
        "the tokenizer",
        "encode",
        lambda: engine.tokenizer.encode_batch_fast(texts, add_special_tokens=False),
    )
    plain = [encoding.ids for encoding in found]
    return [
        tokenizer.encode(text) if engine.specials.intersection(ids) else ids
        for text, ids in zip(texts, plain, strict=True)
    ]


def _is_valid(text: str) -> bool:
    """Whether UTF-8 can carry it: no lone surrogates."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def batches(
    rows: list[list[int]], device: torch.device, *, budget: int = BUDGET
) -> Iterator[Batch]:
    """All rows that are not empty, the longest first (so memory is largest at once, not at the
    end)."""
    order = sorted(
        (place for place, row in enumerate(rows) if row), key=lambda place: -len(rows[place])
    )
    begin = 0
    while begin < len(order):
        most = len(rows[order[begin]])
        chosen = order[begin : begin + max(1, budget // most)]
        chosen = [place for place in chosen if len(rows[place]) >= most * (1 - SLACK)]
        yield batch_of(rows, chosen, device)
        begin += len(chosen)


def batch_of(rows: list[list[int]], places: list[int], device: torch.device) -> Batch:
    """These rows, the shorter ones filled up on the right."""
    chosen = [rows[place] for place in places]
    most = max(map(len, chosen))
    if min(map(len, chosen)) == most:
        return Batch(places, torch.tensor(chosen, device=device), None)
    tokens = torch.tensor([row + [0] * (most - len(row)) for row in chosen], device=device)
    lengths = torch.tensor([len(row) for row in chosen], device=device)
    return Batch(places, tokens, torch.arange(most, device=device) >= lengths[:, None])


def states(runner: Runner, batch: Batch) -> Float[Tensor, "batch time width"]:
    """The last hidden states; of an encoder–decoder, the encoder's."""
    encoder = runner.config.encoder
    if encoder is None or runner.config.decoder is None:
        return runner.hidden(batch.tokens, padding=batch.padding)
    check.token_ids("tokens", batch.tokens, encoder.embedding.vocab_size, runner.device)
    found = runner.encode(batch.tokens, padding=batch.padding).states
    assert found is not None
    return found
