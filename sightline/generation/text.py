"""Tokens as streamed text: complete characters, no part of a stop string, and the rest at the
end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sightline.core.cache.kv_cache import Cache
from sightline.core.runner import Runner
from sightline.errors import InputError, short_repr
from sightline.generation.batch import ROWS, Batch
from sightline.generation.batch import Sequence as BatchSequence
from sightline.generation.decode import Finish, Request, TokenEvent, decode
from sightline.html import paragraph
from sightline.record import Watcher, record_nothing
from sightline.text.streaming import StopStrings, TextStream
from sightline.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sightline.lens.trace.trace import Trace


MAX_SHOWN = 40  # tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that can be shown now (often one token's, sometimes empty), and the token that completed
    it; None at the very end."""

    text: str
    event: TokenEvent | None = None
    finish: Finish | None = None
    trace: Trace | None = None  # attention of the pass that produced this token, with trace=True


@dataclass(slots=True, repr=False)
class Generation:
    """A finished text: the new tokens, their log-probabilities, the finish reason. After a beam
    search also its score, and the next best texts."""

    text: str = ""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    alternatives: list[list[tuple[int, float]]] = field(
        default_factory=list[list[tuple[int, float]]]
    )
    finish_reason: Finish | Literal["interrupted"] = "length"
    prompt_tokens: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0
    score: float | None = None
    others: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    trace: Trace | None = None

    def add(self, piece: Piece) -> None:
        """One more piece."""
        self.text += piece.text
        if piece.event is not None:
            self.tokens.append(piece.event.token)
            self.logprobs.append(piece.event.logprob)
            self.alternatives.append(piece.event.alternatives)
            self.seconds += piece.event.step_seconds
            self.cache_bytes = piece.event.cache_bytes
        if piece.finish is not None:
            self.finish_reason = piece.finish

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score {self.score:.3f}"
        return (
            f"Generation({short_repr(self.text)}, {len(self.tokens)} tokens, ended by"
            f" {self.finish_reason}, {self.tokens_per_second:.1f} tokens/s{score})"
        )

    def _repr_html_(self) -> str:
        """The text, and how likely each token was."""
        certainty = ", ".join(f"{math.exp(logprob):.0%}" for logprob in self.logprobs[:MAX_SHOWN])
        return paragraph(self.text) + paragraph(
            f"{len(self.tokens)} tokens, ended by {self.finish_reason};"
            f" probability of each: {certainty}{'…' if len(self.tokens) > MAX_SHOWN else ''}"
        )

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds else 0.0


class Writer:
    """One request's tokens as text. A stop string ends it and is never shown, not even a part of
    it."""

    def __init__(self, tokenizer: Tokenizer | None, request: Request) -> None:
        if tokenizer is None and request.stop:
            raise InputError(
                "stop strings for a model without tokenizer",
                expected="no stop strings",
                fix="leave stop out",
            )
        self.end = request.end
        self.text = None if tokenizer is None else TextStream(tokenizer, list(request.prompt))
        self.stops = StopStrings(request.stop)

    def take(self, event: TokenEvent) -> Piece:
        """The text that can be shown now; without a tokenizer, only the token."""
        if self.text is None:
            return Piece("", event, event.finish)
        shown, stopped = self.stops.push(
            "" if event.token in self.end else self.text.push(event.token)
        )
        if stopped or event.finish is None:
            return Piece(shown, event, "stop" if stopped else None)
        rest, stopped = self.stops.push(self.text.finish())
        return Piece(
            shown + rest + ("" if stopped else self.stops.finish()),
            event,
            "stop" if stopped else event.finish,
        )


def stream(
    runner: Runner,
    tokenizer: Tokenizer | None,
    request: Request,
    *,
    cache: Cache | None = None,
    watch: Watcher = record_nothing,
) -> Iterator[Piece]:
    """The text, piece by piece. Without a tokenizer the pieces have tokens and no text. The events
    carry the recorders that `watch` supplied for their passes."""
    writer = Writer(tokenizer, request)
    for event in decode(runner, request, cache=cache, watch=watch):
        piece = writer.take(event)
        yield piece
        if piece.finish is not None:
            return


def stream_many(
    runner: Runner,
    tokenizer: Tokenizer | None,
    requests: Sequence[Request],
    *,
    rows: int = ROWS,
) -> Iterator[tuple[int, Piece]]:
    """The texts of many requests decoded in one batch, each piece with the index of its request."""
    batch = Batch(runner, rows=rows)
    numbers = dict[BatchSequence, tuple[int, Writer]]()
    try:
        for number, request in enumerate(requests):
            numbers[batch.submit(request)] = number, Writer(tokenizer, request)
        for sequence, event in batch.run():
            if isinstance(event, Exception):
                raise event
            number, writer = numbers[sequence]
            piece = writer.take(event)
            if piece.finish is not None and event.finish is None:
                batch.cancel(sequence)
            yield number, piece
    finally:
        batch.close()


def gather(pieces: Iterable[Piece], *, prompt_tokens: int = 0) -> Generation:
    """All pieces as one result."""
    generation = Generation(prompt_tokens=prompt_tokens)
    for piece in pieces:
        generation.add(piece)
    return generation
