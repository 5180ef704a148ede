"""Texts as rows of tokens, in batches of similar length, so that little computation is padding.

Rows of equal length need no mask and use the fastest kernel. Batches of exactly one length would be
many and small, so a batch takes rows that are up to a tenth shorter than its longest.
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
from sightline.errors import InputError, short_repr
from sightline.text.engines.engine import call_native
from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer

# Tokens per batch: matrices large enough for every core, activations small enough for the cache.
BUDGET = 2048
SLACK = 0.1  # how much shorter than its batch a row may be


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of the rows: their indices, tokens and padding mask (None if all have one length)."""

    places: list[int]
    tokens: Int[Tensor, "batch time"]
    padding: Bool[Tensor, "batch time"] | None


def as_list(texts: Sequence[str]) -> list[str]:
    """The texts as a list; a single text is a list of one, not its characters."""
    as_texts = [texts] if isinstance(texts, str) else list(texts)
    for place, text in enumerate(as_texts):
        if not isinstance(text, str):
            raise InputError(
                f"text {place} is {short_repr(text)}",
                expected="strings",
                fix='["one text", "another"]',
            )
    return as_texts


def max_row_length(stack: StackConfig, wanted: int | None) -> int:
    """The maximum number of tokens of a row: at most `wanted`, and never beyond a learned position
    table."""
    if wanted is None:
        return stack.max_positions
    return (
        min(wanted, stack.max_positions)
        if isinstance(stack.embedding.positions, Learned)
        else wanted
    )


def encode_rows(tokenizer: Tokenizer, texts: list[str], *, most: int) -> list[list[int]]:
    """The ids of each text with special tokens. A text that is too long is truncated, but keeps the
    special tokens after it."""
    before, after = tokenizer.engine.around
    room = max(0, most - len(before) - len(after))
    bare = encode_without_specials(tokenizer, texts)
    cut = sum(len(ids) > room for ids in bare)
    if cut:
        whom = "the text was" if len(bare) == 1 else f"{cut} of {len(bare)} texts were"
        warnings.warn(f"{whom} cut to {most} tokens, the maximum of this model", stacklevel=4)
    return [[*before, *ids[:room], *after] for ids in bare]


def encode_without_specials(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """`tokenizer.encode` of each text; the Rust library takes them all at once."""
    engine = tokenizer.engine
    if not isinstance(engine, RustEngine) or not all(map(_is_valid, texts)):
        return [tokenizer.encode(text) for text in texts]
    encodings = call_native(
        "the tokenizer",
        "encode",
        lambda: engine.tokenizer.encode_batch_fast(texts, add_special_tokens=False),
    )
    rows = [encoding.ids for encoding in encodings]
    return [
        tokenizer.encode(text) if engine.specials.intersection(ids) else ids
        for text, ids in zip(texts, rows, strict=True)
    ]


def _is_valid(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: it has no lone surrogates."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def batches(
    rows: list[list[int]], device: torch.device, *, budget: int = BUDGET
) -> Iterator[Batch]:
    """All rows that are not empty, the longest first, so that memory peaks in the first batch."""
    order = sorted(
        (place for place, row in enumerate(rows) if row), key=lambda place: -len(rows[place])
    )
    begin = 0
    while begin < len(order):
        most = len(rows[order[begin]])
        places = order[begin : begin + max(1, budget // most)]
        places = [place for place in places if len(rows[place]) >= most * (1 - SLACK)]
        yield make_batch(rows, places, device)
        begin += len(places)


def make_batch(rows: list[list[int]], places: list[int], device: torch.device) -> Batch:
    """These rows, padded on the right."""
    selected = [rows[place] for place in places]
    most = max(map(len, selected))
    if min(map(len, selected)) == most:
        return Batch(places, torch.tensor(selected, device=device), None)
    tokens = torch.tensor([row + [0] * (most - len(row)) for row in selected], device=device)
    lengths = torch.tensor([len(row) for row in selected], device=device)
    return Batch(places, tokens, torch.arange(most, device=device) >= lengths[:, None])


def hidden_states(runner: Runner, batch: Batch) -> Float[Tensor, "batch time width"]:
    """The last hidden states; of an encoder–decoder, the encoder's."""
    encoder = runner.config.encoder
    if encoder is None or runner.config.decoder is None:
        return runner.hidden(batch.tokens, padding=batch.padding)
    check.token_ids("tokens", batch.tokens, encoder.embedding.vocab_size, runner.device)
    states = runner.encode(batch.tokens, padding=batch.padding).states
    assert states is not None
    return states
