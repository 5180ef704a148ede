"""The most likely tokens for the masks of a text: softmax over the vocabulary, at each mask.

A mask is written as the tokenizer writes it, as [MASK] or <mask>, or as a gap of three underscores
or more. Everything else is plain text, other special tokens too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import MaskedHead
from sightline.core.runner import Runner
from sightline.errors import InputError, short_repr
from sightline.tasks.purpose import refusal
from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer

EXAMPLE = '"The capital of France is [MASK]."'
CONTINUES = "##"  # WordPiece's mark of a piece that continues a word


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token for a mask, with its probability."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Filling:
    """One mask: its characters in the text, its candidates (most likely first), and the text with
    all masks filled."""

    start: int
    end: int
    candidates: list[Candidate]
    text: str


@dataclass(frozen=True, slots=True)
class Gaps:
    """A text split at its masks: one part more than there are masks."""

    parts: list[str]
    spans: list[tuple[int, int]]


def fill(runner: Runner, tokenizer: Tokenizer, text: str, *, top_k: int = 5) -> list[Filling]:
    """A filling per mask, in the order of the text. Each is predicted with the other masks in
    place."""
    mask = mask_of(runner, tokenizer)
    check_top_k(runner, top_k)
    gaps = split_at_masks(text, tokenizer.token(mask))
    absorbs_left, absorbs_right = absorbs_space(tokenizer, mask)
    trimmed = Gaps(trim(gaps.parts, left=absorbs_left, right=absorbs_right), gaps.spans)
    ids, places = with_masks(tokenizer, trimmed.parts, mask)
    check_length(runner, ids)
    rows = candidates(probabilities(runner, ids, places), tokenizer, top_k)
    whole = fill_gaps(trimmed.parts, [row[0].text for row in rows])
    return [
        Filling(start, end, row, whole) for (start, end), row in zip(gaps.spans, rows, strict=True)
    ]


def mask_of(runner: Runner, tokenizer: Tokenizer) -> int:
    """The mask's id; refuses a model or tokenizer that cannot fill masks."""
    if not isinstance(runner.config.head, MaskedHead):
        raise refusal(
            runner.config,
            "filling in masks",
            expected="a model of masked tokens, such as BERT",
        )
    if tokenizer.mask is None:
        raise InputError(
            "a tokenizer without mask token",
            expected="one that has it",
            fix="add mask_token to tokenizer_config.json",
        )
    return tokenizer.mask


def check_top_k(runner: Runner, top_k: int) -> None:
    size = runner.config.last.embedding.vocab_size
    if not 1 <= top_k <= size:
        raise InputError(
            f"top_k is {top_k}", expected=f"1 to {size}, the size of the vocabulary", fix="top_k=5"
        )


def split_at_masks(text: str, mask: str) -> Gaps:
    """The text between its masks."""
    written = sorted({mask, "[MASK]", "<mask>"}, key=len, reverse=True)
    pattern = "|".join([*map(re.escape, written), "_{3,}"])
    spans = [match.span() for match in re.finditer(pattern, text)]
    if not spans:
        raise InputError(
            f"no mask in {short_repr(text)}",
            expected=f"{mask}, [MASK] or ___ in the text",
            fix=EXAMPLE,
        )
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    return Gaps(
        [text[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)], spans
    )


def absorbs_space(tokenizer: Tokenizer, mask: int) -> tuple[bool, bool]:
    """Whether the mask token absorbs the spaces before and after it, as RoBERTa's does."""
    if not isinstance(tokenizer.engine, RustEngine):
        return False, False
    token = tokenizer.engine.tokenizer.get_added_tokens_decoder().get(mask)
    return (token.lstrip, token.rstrip) if token is not None else (False, False)


def trim(parts: list[str], *, left: bool, right: bool) -> list[str]:
    """The parts without the spaces that masks absorb: at the end of a part before a mask, at the
    start of a part after one."""
    ends = [part.rstrip() if left else part for part in parts[:-1]] + parts[-1:]
    return ends[:1] + [part.lstrip() if right else part for part in ends[1:]]


def with_masks(tokenizer: Tokenizer, parts: list[str], mask: int) -> tuple[list[int], list[int]]:
    """The ids with the special ones around, and where the masks are."""
    engine = tokenizer.engine
    before, after = engine.around
    ids = [*before, *tokenizer.encode(parts[0])]
    places = list[int]()
    for part in parts[1:]:
        places.append(len(ids))
        follows = isinstance(engine, RustEngine)
        ids += [mask, *(engine.continuation_ids(part) if follows else tokenizer.encode(part))]
    return [*ids, *after], places


def check_length(runner: Runner, ids: list[int]) -> None:
    """A text with a mask is never truncated: the mask might be cut off."""
    most = runner.config.last.max_positions
    if len(ids) > most:
        raise InputError(
            f"a text of {len(ids)} tokens",
            expected=f"at most {most}",
            fix="leave out what is far from the mask",
        )


@torch.inference_mode()
def probabilities(
    runner: Runner, ids: list[int], places: list[int]
) -> Float[Tensor, "masks vocab_size"]:
    """Probabilities at the masks only."""
    hidden = runner.hidden(torch.tensor([ids], device=runner.device))
    return runner.head(hidden[:, places])[0].float().softmax(-1)


def candidates(
    probabilities: Float[Tensor, "masks vocab_size"], tokenizer: Tokenizer, top_k: int
) -> list[list[Candidate]]:
    """The most likely tokens of each mask."""
    best = probabilities.topk(top_k)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        [Candidate(id, tokenizer.token(id), value) for id, value in zip(*row, strict=True)]
        for row in rows
    ]


def fill_gaps(parts: list[str], words: list[str]) -> str:
    """The text with a word in each gap."""
    text = parts[0]
    for word, part in zip(words, parts[1:], strict=True):
        text = (
            text.rstrip() + word.removeprefix(CONTINUES)
            if word.startswith(CONTINUES)
            else text + (word if text else word.lstrip())
        )
        text += part
    return text
