"""Decoding: a generator of token events.

    prefill     the prompt, in chunks, into the KV cache
    decode      logits of the last token → sampling → the next token → back in

Greedy or sampled, the n-th token depends only on the prompt, the sampling and its seed, never on
other requests in the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import LanguageHead, ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.runner import Runner
from sightline.errors import InputError, short_repr
from sightline.generation.randomness import whole
from sightline.generation.sampling import Change, Sampling, alternatives, choose
from sightline.record import NOTHING, Record, Watcher, record_nothing

Finish = Literal["stop", "length"]
CHUNK = 512


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One new token: its log-probability, the top alternatives, its cost, and the finish reason if
    it is the last."""

    token: int
    logprob: float
    alternatives: list[tuple[int, float]]
    step_seconds: float
    cache_bytes: int
    finish: Finish | None = None
    recording: Record | None = None  # of the forward pass that made this token, if recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt and how to continue it.

    `end` are the tokens that end the text and `stop` the strings that do; `finished(tokens)` may
    end it too. `truncated` counts the tokens that were cut from the left of the prompt."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    end: tuple[int, ...] = ()
    source: Sequence[int] | None = None
    alternatives: int = 0
    changes: tuple[Change, ...] = ()
    finished: Callable[[Sequence[int]], bool] | None = None
    stop: Sequence[str] = ()
    truncated: int = 0

    @property
    def prompt_tokens(self) -> int:
        """The number of input tokens: those of the source, if there is one."""
        return len(self.prompt if self.source is None else self.source)


class DecodeState:
    """A request in progress: the tokens so far. `take(logits)` chooses the next one."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.step = 0
        self.history = list(request.prompt)
        self.started = time.perf_counter()

    def take(self, logits: Float[Tensor, " vocab"], cache_bytes: int) -> TokenEvent:
        """The next token, a function of the request and these logits alone."""
        request = self.request
        choice = choose(
            logits,
            self.history,
            request.sampling,
            self.step,
            prompt_length=len(request.prompt),
            extra=request.changes,
        )
        others = alternatives(logits, request.alternatives) if request.alternatives else []
        self.history.append(choice.token)
        self.step += 1
        started = self.started
        self.started = time.perf_counter()
        return TokenEvent(
            choice.token,
            choice.logprob,
            others,
            self.started - started,
            cache_bytes,
            self._finish(choice.token),
        )

    def _finish(self, token: int) -> Finish | None:
        if token in self.request.end or (
            self.request.finished is not None and self.request.finished(self.history)
        ):
            return "stop"
        return "length" if self.step >= self.request.max_tokens else None


def decode(
    runner: Runner,
    request: Request,
    *,
    cache: Cache | None = None,
    chunk: int = CHUNK,
    watch: Watcher = record_nothing,
) -> Iterator[TokenEvent]:
    """The tokens that follow the prompt, one event each. A cache may hold only a prefix of this
    prompt.

    `watch()` supplies the recorder of each forward pass.
    """
    check_request(runner, request)
    cache = runner.new_cache() if cache is None else cache
    state = DecodeState(request)
    device = runner.device
    logits, record = prefill(runner, request, cache, chunk=chunk, watch=watch)
    while True:
        event = state.take(logits, cache.bytes)
        yield event if record is NOTHING else replace(event, recording=record)
        if event.finish is not None:
            return
        state.started = time.perf_counter()
        record = watch()
        logits = last_logits(
            runner, torch.tensor([[event.token]], device=device), cache, record=record
        )


@torch.inference_mode()
def prefill(
    runner: Runner,
    request: Request,
    cache: Cache,
    *,
    chunk: int = CHUNK,
    watch: Watcher = record_nothing,
) -> tuple[Tensor, Record]:
    """Prefill the prompt in chunks; returns the logits after its last token and the recorder of the
    last chunk."""
    prompt = torch.tensor([list(request.prompt)], device=runner.device)[
        :, min(cache.length, len(request.prompt) - 1) :
    ]
    if cache.length >= len(request.prompt):
        cache.truncate(len(request.prompt) - 1)
    source = (
        None
        if request.source is None or cache.length
        else torch.tensor([list(request.source)], device=runner.device)
    )
    pieces = prompt.split(chunk, dim=1)
    for n, piece in enumerate(pieces[:-1]):
        runner.hidden(piece, cache=cache, source=source if n == 0 else None, record=watch())
    record = watch()
    return (
        last_logits(
            runner,
            pieces[-1],
            cache,
            source=source if len(pieces) == 1 else None,
            record=record,
        ),
        record,
    )


@torch.inference_mode()
def last_logits(
    runner: Runner,
    tokens: Tensor,
    cache: Cache,
    *,
    source: Tensor | None = None,
    record: Record = NOTHING,
) -> Tensor:
    """Logits after the last token only; the head does not run for the others."""
    return runner.last_logits(tokens, cache=cache, source=source, record=record)[0, -1].float()


def check_request(runner: Runner, request: Request) -> None:
    """Refuse invalid requests before anything is computed."""
    config = runner.config
    if config.decoder is None or not isinstance(config.head, LanguageHead):
        kind = (
            "an encoder: it fills in masked tokens"
            if config.decoder is None
            else "a model without a language head"
        )
        raise InputError(
            f"generation with {kind}",
            expected="a decoder with a language head",
            fix="use fill, classify or embed with this model",
        )
    check_ids("prompt", request.prompt, config.decoder.embedding.vocab_size)
    check_source(config, request.source)
    if not request.prompt:
        raise InputError(
            "an empty prompt",
            expected="at least one token",
            fix="give some text, or the tokenizer's begin token",
        )
    whole("max_tokens", request.max_tokens, least=1)
    limit = config.decoder.max_positions
    length = len(request.prompt) + request.max_tokens
    if len(request.prompt) >= limit:
        raise InputError(
            f"a prompt of {len(request.prompt)} tokens for a context of {limit}",
            expected=f"at most {limit - 1}",
            fix="shorten the prompt, or cut it on the left (--truncate left)",
        )
    if length > limit:
        raise InputError(
            f"{len(request.prompt)} prompt tokens and max_tokens {request.max_tokens} for a context"
            f" of {limit}",
            expected=f"{limit} together",
            fix=f"max_tokens={limit - len(request.prompt)}",
        )


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Token ids that the model has."""
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab_size:
            raise InputError(
                f"the {name} holds {short_repr(id)}",
                expected=f"token ids below {vocab_size}",
                fix="give a text, or ids in that range",
            )


def check_source(config: ModelConfig, source: Sequence[int] | None) -> None:
    """An encoder–decoder needs a source; a decoder-only model cannot use one."""
    if (source is None) != (config.encoder is None):
        raise InputError(
            "a source for a decoder-only model"
            if source
            else "an encoder–decoder without a source",
            fix="Request(source=…)",
        )
    if source is None or config.encoder is None:
        return
    check_ids("source", source, config.encoder.embedding.vocab_size)
    if not 1 <= len(source) <= config.encoder.max_positions:
        limit = config.encoder.max_positions
        raise InputError(
            f"a source of {len(source)} tokens for an encoder of {limit}",
            expected=f"1 to {limit}",
            fix="shorten the text",
        )
