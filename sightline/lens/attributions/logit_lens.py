"""The logit lens (nostalgebraist 2020): what the model would say if it stopped after n layers.

    logits_n = head(final_norm(x_n))      x_n is the residual stream that enters block n;
                                          the last row is the output itself
    KL_n     = Σ p log(p / p_n)           p is the final distribution, p_n the lens', in nats

Where a norm follows every step (post-LN, nGPT), there is no final norm and x_n is normed already:
the head alone is applied. A masked language model's head is its whole head, transform and norm
included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import LanguageHead, MaskedHead, NoHead, NoNorm
from sightline.core.attention import TILE
from sightline.core.model import Transformer
from sightline.core.norms import at_least_float32
from sightline.errors import InputError
from sightline.lens.trace.layer import Rows, checked, checked_rows
from sightline.lens.trace.prompt import Text, seen
from sightline.lens.trace.subject import Subject, Token, read_tokens
from sightline.lens.trace.trace import Trace

Logits = Float[Tensor, "position vocab_size"]


@dataclass(frozen=True, slots=True)
class LogitLens:
    """Row n is the stream that enters block n, the last row the model's own answer; columns are
    `positions` of the text.

    `answers` are the tokens in question: the model's own at each position, unless one was named.
    `rank` counts from 1."""

    name: str
    applied: str
    tokens: tuple[Token, ...]
    positions: tuple[int, ...]
    answers: tuple[Token, ...]
    top: Int[Tensor, "row position k"]
    top_probability: Float[Tensor, "row position k"]
    rank: Int[Tensor, "row position"]
    probability: Float[Tensor, "row position"]
    divergence: Float[Tensor, "row position"]
    words: dict[int, str]

    def best(self, row: int, position: int = -1) -> list[tuple[str, float]]:
        """The likeliest tokens of a row and column, with their probabilities."""
        row = checked("row", row, len(self.top))
        column = checked("position", position, len(self.positions))
        pairs = zip(
            self.top[row, column].tolist(), self.top_probability[row, column].tolist(), strict=True
        )
        return [(self.words[id], probability) for id, probability in pairs]

    @property
    def settled(self) -> tuple[int, ...]:
        """For each column, the row from which the answer stays the likeliest to the end; one past
        the last where it never is."""
        first = (self.rank == 1).flip(0).int().cumprod(0).sum(0)
        return tuple(len(self.rank) - int(count) for count in first)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "name": self.name,
            "applied": self.applied,
            "tokens": [token.text for token in self.tokens],
            "positions": list(self.positions),
            "answers": [token.text for token in self.answers],
            "top": [[[self.words[id] for id in cell] for cell in row] for row in self.top.tolist()],
            "top_probability": self.top_probability.tolist(),
            "rank": self.rank.tolist(),
            "probability": self.probability.tolist(),
            "divergence": self.divergence.tolist(),
        }


@torch.inference_mode()
def logit_lens(
    subject: Subject,
    asked: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    positions: Rows = None,
    top_k: int = 5,
) -> LogitLens:
    """What the model would say after each layer, at each position (or some). `token` asks for the
    rank of one token everywhere."""
    transformer = subject.running
    size = vocabulary_of(transformer)
    if not 1 <= top_k <= size:
        raise InputError(
            f"top_k is {top_k}", expected=f"1 to {size}, the size of the vocabulary", fix="top_k=5"
        )
    wanted = None if token is None else checked("token", token, size)
    trace = seen(subject, asked, source=source, what=("residual", "output"))
    columns = list(checked_rows(positions, len(trace.tokens)))
    parts = [_columns(transformer, trace, band, wanted, top_k) for band in bands(columns, size)]
    answers, *tables = (
        torch.cat(part, dim=min(n, 1)) for n, part in enumerate(zip(*parts, strict=True))
    )
    top, top_probability, rank, probability, divergence = tables
    ids = sorted({*top.flatten().tolist(), *answers.tolist()})
    words = {token.id: token.text for id in ids for token in read_tokens(subject.tokenizer, [id])}
    said = tuple(Token(id, words[id]) for id in answers.tolist())
    return LogitLens(
        trace.name,
        applied_by(transformer),
        trace.tokens,
        tuple(columns),
        said,
        top,
        top_probability,
        rank,
        probability,
        divergence,
        words,
    )


def bands(columns: Sequence[int], size: int) -> Iterator[list[int]]:
    """Columns whose logits are in memory at once."""
    most = max(1, TILE // size)
    for start in range(0, len(columns), most):
        yield list(columns[start : start + most])


def _columns(
    transformer: Transformer, trace: Trace, columns: list[int], token: int | None, top_k: int
) -> tuple[Tensor, ...]:
    """All rows of some columns: answers, the top and its probabilities, rank, probability,
    divergence."""
    final = logits_of_row(
        transformer, trace, transformer.last_stack.config.layers, columns
    ).log_softmax(-1)
    answers = (
        final.argmax(-1)
        if token is None
        else torch.full((len(columns),), token, device=final.device)
    )
    rows: list[tuple[Tensor, ...]] = []
    for layer in range(transformer.last_stack.config.layers + 1):
        said = logits_of_row(transformer, trace, layer, columns).log_softmax(-1)
        best = said.topk(top_k)
        own = said.gather(-1, answers[:, None])
        divergence = (final.exp() * (final - said)).sum(-1)
        rows.append(
            (best.indices, best.values.exp(), 1 + (said > own).sum(-1), own[:, 0].exp(), divergence)
        )
    return (answers, *(torch.stack(part) for part in zip(*rows, strict=True)))


@torch.inference_mode()
def logits_of_row(
    transformer: Transformer, trace: Trace, row: int, columns: Sequence[int] | slice = slice(None)
) -> Logits:
    """head(final_norm(x_n)) of a trace that kept `residual` and `output`; the row after the last
    layer is the output's."""
    stack = transformer.last_stack
    if row == stack.config.layers:
        hidden = trace["output", None][columns]
    else:
        hidden = stack.norm(trace["residual", row][columns])
    return at_least_float32(transformer.head(hidden[None])[0])


def vocabulary_of(transformer: Transformer) -> int:
    """The size of the vocabulary that the head speaks."""
    head = transformer.config.head
    if not isinstance(head, (LanguageHead, MaskedHead)):
        kind = (
            "no head"
            if isinstance(head, NoHead)
            else f"a head that gives no tokens ({type(head).__name__})"
        )
        raise InputError(
            f"a model with {kind}",
            expected="a language model or a masked one",
            fix="load the checkpoint that has its head",
        )
    return transformer.config.last.embedding.vocab_size


def applied_by(transformer: Transformer) -> str:
    """What stands between the stream and the logits, in words."""
    head = (
        "its masked-token head" if isinstance(transformer.config.head, MaskedHead) else "its head"
    )
    if isinstance(transformer.config.last.final_norm, NoNorm):
        normed = transformer.config.last.block(0).placement in ("post", "sphere")
        why = (
            "the stream is normed by every block already"
            if normed
            else "the model has no final norm"
        )
        return f"{head} alone: {why}"
    return f"its final norm, then {head}"
