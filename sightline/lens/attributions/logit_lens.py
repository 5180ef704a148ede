"""The logit lens (nostalgebraist 2020): the predictions of the model if it stopped after n layers.

    logits_n = head(final_norm(x_n))      x_n is the residual stream that enters block n;
                                          the last row is the output
    KL_n     = Σ p log(p / p_n)           p is the final distribution, p_n the lens's, in nats

Where every step ends in a norm (post-LN, nGPT), there is no final norm and x_n is normalized
already: only the head is applied. For a masked language model that is the whole head, transform and
norm included.
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
from sightline.lens.trace.layer import Rows, checked_index, checked_rows
from sightline.lens.trace.prompt import Text, trace_prompt
from sightline.lens.trace.subject import Subject, Token, eval_transformer, read_tokens
from sightline.lens.trace.trace import Trace

Logits = Float[Tensor, "position vocab_size"]


@dataclass(frozen=True, slots=True)
class LogitLens:
    """The lens's predictions. Row n is the residual stream that enters block n, the last row the
    model's output; columns are `positions` of the text.

    `answers` are the tokens whose rank and probability are given: the model's own prediction at
    each position, unless a token was given. `rank` counts from 1."""

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

    def __repr__(self) -> str:
        rows, positions, k = self.top.shape
        return (
            f"<LogitLens of {self.name or 'a model'}: {rows} rows × {positions} positions, top {k}>"
        )

    def _repr_html_(self) -> str:
        """The most likely token of each row and position, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        tokens = [self.tokens[position].text for position in self.positions]
        last = len(self.top) - 1
        rows = [
            (
                "output" if row == last else f"into {row}",
                *(
                    f"{self.words[int(ids[0])]!r} {float(self.top_probability[row, column, 0]):.0%}"
                    for column, ids in enumerate(self.top[row].tolist())
                ),
            )
            for row in range(len(self.top))
        ]
        return result_table(repr(self), ("layer", *(repr(token) for token in tokens)), rows)

    def best(self, row: int, position: int = -1) -> list[tuple[str, float]]:
        """The most likely tokens of a row and column, with their probabilities."""
        row = checked_index("row", row, len(self.top))
        column = checked_index("position", position, len(self.positions))
        pairs = zip(
            self.top[row, column].tolist(), self.top_probability[row, column].tolist(), strict=True
        )
        return [(self.words[id], probability) for id, probability in pairs]

    @property
    def settled(self) -> tuple[int, ...]:
        """For each column, the first row from which the answer stays at rank 1; one past the last
        row if it never does."""
        first = (self.rank == 1).flip(0).int().cumprod(0).sum(0)
        return tuple(len(self.rank) - int(count) for count in first)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
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
    text: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    positions: Rows = None,
    top_k: int = 5,
) -> LogitLens:
    """The model's predictions after each layer, at all or some positions. With `token`, the rank
    and probability of that token are given instead of those of the model's prediction."""
    transformer = eval_transformer(subject)
    size = vocabulary_size(transformer)
    if not 1 <= top_k <= size:
        raise InputError(
            f"top_k is {top_k}", expected=f"1 to {size}, the size of the vocabulary", fix="top_k=5"
        )
    token_id = None if token is None else checked_index("token", token, size)
    trace = trace_prompt(subject, text, source=source, what=("residual", "output"))
    columns = list(checked_rows(positions, len(trace.tokens)))
    parts = [
        _columns(transformer, trace, batch, token_id, top_k)
        for batch in column_batches(columns, size)
    ]
    answers, *tables = (
        torch.cat(part, dim=min(n, 1)) for n, part in enumerate(zip(*parts, strict=True))
    )
    top, top_probability, rank, probability, divergence = tables
    ids = sorted({*top.flatten().tolist(), *answers.tolist()})
    words = {token.id: token.text for id in ids for token in read_tokens(subject.tokenizer, [id])}
    answer_tokens = tuple(Token(id, words[id]) for id in answers.tolist())
    return LogitLens(
        trace.name,
        describe_readout(transformer),
        trace.tokens,
        tuple(columns),
        answer_tokens,
        top,
        top_probability,
        rank,
        probability,
        divergence,
        words,
    )


def column_batches(columns: Sequence[int], size: int) -> Iterator[list[int]]:
    """Batches of columns whose logits fit into one tile of memory."""
    batch = max(1, TILE // size)
    for start in range(0, len(columns), batch):
        yield list(columns[start : start + batch])


def _columns(
    transformer: Transformer, trace: Trace, columns: list[int], token: int | None, top_k: int
) -> tuple[Tensor, ...]:
    """All rows of some columns: answers, top-k tokens and probabilities, rank, probability,
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
        log_probs = logits_of_row(transformer, trace, layer, columns).log_softmax(-1)
        best = log_probs.topk(top_k)
        own = log_probs.gather(-1, answers[:, None])
        divergence = (final.exp() * (final - log_probs)).sum(-1)
        rows.append(
            (
                best.indices,
                best.values.exp(),
                1 + (log_probs > own).sum(-1),
                own[:, 0].exp(),
                divergence,
            )
        )
    return (answers, *(torch.stack(part) for part in zip(*rows, strict=True)))


@torch.inference_mode()
def logits_of_row(
    transformer: Transformer, trace: Trace, row: int, columns: Sequence[int] | slice = slice(None)
) -> Logits:
    """head(final_norm(x_n)) of a trace with `residual` and `output`; the row after the last layer
    is the output's."""
    stack = transformer.last_stack
    if row == stack.config.layers:
        hidden = trace["output", None][columns]
    else:
        hidden = stack.norm(trace["residual", row][columns])
    return at_least_float32(transformer.head(hidden[None])[0])


def vocabulary_size(transformer: Transformer) -> int:
    """The vocabulary size of a language or masked head; other heads are refused."""
    head = transformer.config.head
    if not isinstance(head, (LanguageHead, MaskedHead)):
        kind = (
            "no head"
            if isinstance(head, NoHead)
            else f"a head without token logits ({type(head).__name__})"
        )
        raise InputError(
            f"a model with {kind}",
            expected="a language model or a masked one",
            fix="load the checkpoint that has its head",
        )
    return transformer.config.last.embedding.vocab_size


def describe_readout(transformer: Transformer) -> str:
    """What is applied to the stream to get logits, in words."""
    head = (
        "its masked-token head" if isinstance(transformer.config.head, MaskedHead) else "its head"
    )
    if isinstance(transformer.config.last.final_norm, NoNorm):
        normed = transformer.config.last.block(0).placement in ("post", "sphere")
        why = (
            "the stream is normalized by every block already"
            if normed
            else "the model has no final norm"
        )
        return f"only {head}: {why}"
    return f"its final norm, then {head}"
