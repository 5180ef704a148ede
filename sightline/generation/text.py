"""Tokens as text while they come: whole characters, no stop string, and everything at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sightline.core.cache import Cache
from sightline.core.model import Transformer
from sightline.generation.decode import Finish, Request, TokenEvent, decode
from sightline.text.streaming import StopStrings, TextStream
from sightline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown now (often one token's, sometimes nothing yet), and the token that brought it; None at the very end."""

    text: str
    event: TokenEvent | None = None
    finish: Finish | None = None


@dataclass(slots=True)
class Generation:
    """A finished text: the new tokens, how likely each was, why it ended."""

    text: str = ""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list[list[tuple[int, float]]])
    finish_reason: Finish = "length"
    prompt_tokens: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds else 0.0


def stream(
    transformer: Transformer, tokenizer: Tokenizer, request: Request, *, stop: Sequence[str] = (), cache: Cache | None = None
) -> Iterator[Piece]:
    """Text as it is made. A stop string ends it and is never shown, not even its beginning."""
    text, stops = TextStream(tokenizer, list(request.prompt)), StopStrings(stop)
    for event in decode(transformer, request, cache=cache):
        ended = event.token in request.end
        shown, stopped = stops.push("" if ended else text.push(event.token))
        if stopped:
            yield Piece(shown, event, "stop")
            return
        if event.finish is not None:
            rest, stopped = stops.push(text.finish())
            yield Piece(shown + rest + ("" if stopped else stops.finish()), event, "stop" if stopped else event.finish)
            return
        yield Piece(shown, event)


def gather(pieces: Iterator[Piece], *, prompt_tokens: int = 0) -> Generation:
    """All pieces as one result."""
    found = Generation(prompt_tokens=prompt_tokens)
    for piece in pieces:
        found.text += piece.text
        if piece.event is not None:
            found.tokens.append(piece.event.token)
            found.logprobs.append(piece.event.logprob)
            found.alternatives.append(piece.event.alternatives)
            found.seconds += piece.event.step_seconds
            found.cache_bytes = piece.event.cache_bytes
        if piece.finish is not None:
            found.finish_reason = piece.finish
    return found
