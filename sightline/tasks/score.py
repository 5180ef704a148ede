"""The likelihood of a text under a model: log p of each token, perplexity, bits per byte.

    total          =  Σₜ log p(yₜ | tokens before it in its window)    in nats
    perplexity     =  exp(−total / tokens scored)
    bits per byte  =  −total / (ln 2 · bytes scored)                   comparable across tokenizers

A text longer than the context is scored in windows that start `stride` tokens apart. Each token is
scored once, in the first window that contains it: with stride 1 after a full window of context,
with a larger stride faster and after less context. Except in the first window, every token has at
least context − stride tokens before it. The logits of a window are never all in memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.config import LanguageHead
from sightline.core import check
from sightline.core.runner import Runner
from sightline.errors import InputError
from sightline.html import html_table
from sightline.text.engines.marian import MarianEngine
from sightline.text.tokenizer import Tokenizer

CHUNK = 512  # tokens per forward pass
ROWS = 64  # tokens whose logits are in memory at once: 50 MB for a vocabulary of 200,000


@dataclass(frozen=True, slots=True, repr=False)
class Score:
    """Tokens of the text and log p of each, in nats; None for a first token without context.
    `bytes` counts the bytes of the scored tokens."""

    tokens: list[int]
    logprobs: list[float | None]
    bytes: int

    def __repr__(self) -> str:
        return (
            f"Score(perplexity {self.perplexity:.2f}, {self.bits_per_byte:.3f} bits per byte,"
            f" {self.scored} tokens)"
        )

    def _repr_html_(self) -> str:
        headers = ("tokens", "log p", "perplexity", "bits per byte")
        figures = (
            f"{self.scored:,}",
            f"{self.total:.2f}",
            f"{self.perplexity:.2f}",
            f"{self.bits_per_byte:.3f}",
        )
        return html_table(headers, [figures])

    @property
    def scored(self) -> int:
        """The number of scored tokens."""
        return sum(logprob is not None for logprob in self.logprobs)

    @property
    def total(self) -> float:
        """Σ log p."""
        return math.fsum(logprob for logprob in self.logprobs if logprob is not None)

    @property
    def perplexity(self) -> float:
        """exp(−total / scored)."""
        return perplexity_of(self.total, self.scored)

    @property
    def bits_per_byte(self) -> float:
        """−total / (ln 2 · bytes)."""
        return bits_per_byte_of(self.total, self.bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The model's input: the tokens of the text, the unscored tokens before them, the number of
    scored bytes, and the source."""

    before: list[int]
    tokens: list[int]
    bytes: int
    source: list[int] | None = None


def score(
    runner: Runner,
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    *,
    stride: int | None = None,
    progress: Callable[[int], None] | None = None,
    source: str | None = None,
    start: int | None = None,
) -> Score:
    """Score a text, or token ids as they are. `progress(n)` is called after every n tokens.

    A text follows the begin token if the tokenizer adds one; otherwise its first token has no log
    p. An encoder–decoder scores a target, including its end token, given its `source` and the token
    that its decoder starts with.
    """
    parts = parts_of(runner, tokenizer, text, source=source, start=start)
    logprobs: list[float | None] = [] if parts.before else [None]
    for part in logprobs_of(runner, parts, stride=stride):
        logprobs.extend(part)
        if progress is not None:
            progress(len(part))
    return Score(parts.tokens, logprobs, parts.bytes)


def parts_of(
    runner: Runner,
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    *,
    source: str | None = None,
    start: int | None = None,
) -> Parts:
    """The text as model input; invalid input is refused before anything is computed."""
    require_next_token_model(runner, source)
    if not text:
        raise InputError(
            "an empty text", expected="some text to score", fix='score("Once upon a time")'
        )
    if source is not None:
        return target_parts(runner, tokenizer, text, source, start=start)
    if not isinstance(text, str):
        written = tokenizer.decode(text)
        tokens = list(text)
        before = list[int]()
    else:
        written = text
        tokens = tokenizer.encode(text)
        before = list(tokenizer.engine.around[0])
    if len(before) + len(tokens) < 2:
        raise InputError(
            "a text of one token without context",
            expected="two tokens or more",
            fix="give a longer text",
        )
    unscored = 0 if before else len(tokenizer.decode(tokens[:1]).encode())
    return Parts(before=before, tokens=tokens, bytes=max(0, size(written) - unscored))


def target_parts(
    runner: Runner,
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    source: str,
    *,
    start: int | None,
) -> Parts:
    """A target as in training: after the start token, with the special tokens that the tokenizer
    adds."""
    if start is None:
        raise InputError(
            "no start token for the decoder",
            expected="its id",
            fix="score(…, source=source, start=defaults.decoder_start)",
        )
    if isinstance(text, str):
        check_tokenizer(tokenizer)
    tokens = tokenizer.encode(text, special=True) if isinstance(text, str) else list(text)
    read = tokenizer.encode(source, special=True)
    encoder = runner.config.encoder
    decoder = runner.config.decoder
    assert encoder is not None
    assert decoder is not None
    for name, length, limit in (
        ("source", len(read), encoder.max_positions),
        ("target", len(tokens), decoder.max_positions),
    ):
        if length > limit:
            raise InputError(
                f"a {name} of {length} tokens",
                expected=f"at most {limit}",
                fix="score it sentence by sentence",
            )
    written = text if isinstance(text, str) else tokenizer.decode(text)
    return Parts(before=[start], tokens=tokens, bytes=size(written), source=read)


def require_next_token_model(runner: Runner, source: str | None) -> None:
    """Refuse models that do not predict the next token."""
    config = runner.config
    if config.decoder is None:
        raise InputError(
            "scoring with an encoder, which sees both sides of every token",
            expected="a decoder",
            fix="sightline fill MODEL TEXT",
        )
    if not isinstance(config.head, LanguageHead):
        raise InputError(
            "scoring with a model without a language head",
            expected="logits over the vocabulary",
            fix="load another model",
        )
    if (config.encoder is None) != (source is None):
        seen = (
            "a source for a model with one stack"
            if config.encoder is None
            else "no source for an encoder–decoder"
        )
        raise InputError(
            seen,
            expected="a source if there is an encoder",
            fix="leave --source out" if source is not None else "--source TEXT",
        )


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """A tokenizer that encodes one language and decodes another cannot tokenize a target."""
    ids = range(tokenizer.vocab_size)
    if isinstance(tokenizer.engine, MarianEngine) or any(
        tokenizer.token(id) != tokenizer.token(id, source=True) for id in ids
    ):
        seen = "a target as text, with a tokenizer that reads the source's language only"
        raise InputError(
            seen, expected="the target as token ids", fix="score(translation.tokens, …)"
        )


@torch.inference_mode()
def logprobs_of(
    runner: Runner, parts: Parts, *, stride: int | None = None
) -> Iterator[list[float]]:
    """log p of each token after the first, a chunk at a time."""
    tokens = torch.tensor([[*parts.before, *parts.tokens]], device=runner.device)
    check.token_ids("tokens", tokens, runner.config.last.embedding.vocab_size, runner.device)
    source = None if parts.source is None else torch.tensor([parts.source], device=runner.device)
    context = runner.config.last.max_positions + (
        source is not None
    )  # a decoder is never fed the last token of a target
    for begin, first, end in windows(
        tokens.shape[1], context, stride=stride, first=max(1, len(parts.before))
    ):
        yield from window_logprobs(runner, tokens[:, begin:end], first - begin, source=source)


def windows(
    length: int, context: int, *, stride: int | None, first: int = 1
) -> Iterator[tuple[int, int, int]]:
    """Each window's start, its first token to score, and its end."""
    if stride is not None and not 1 <= stride < context:
        raise InputError(
            f"stride is {stride}",
            expected=f"1 to {context - 1}, less than the context",
            fix=f"stride={max(1, context // 2)}",
        )
    step = max(1, context // 2) if stride is None else stride
    for begin in range(0, length, step):
        end = min(begin + context, length)
        yield begin, first, end
        first = end
        if end == length:
            return


def window_logprobs(
    runner: Runner,
    window: Int[Tensor, "1 time"],
    first: int,
    *,
    source: Int[Tensor, "1 source"] | None,
) -> Iterator[list[float]]:
    """log p of window[first:], each given all earlier tokens of the window: in chunks with a cache,
    equal to one pass over the window."""
    cache = runner.new_cache()
    for begin in range(0, window.shape[1] - 1, CHUNK):
        targets = window[0, begin + 1 : begin + 1 + CHUNK]
        hidden = runner.hidden(
            window[:, begin : begin + len(targets)],
            cache=cache,
            source=source if begin == 0 else None,
        )
        offset = max(0, first - 1 - begin)
        if offset < len(targets):
            yield target_logprobs(runner, hidden[:, offset:], targets[offset:])


def target_logprobs(
    runner: Runner, hidden: Float[Tensor, "1 time width"], targets: Int[Tensor, " time"]
) -> list[float]:
    """log softmax(head(hidden))[target], in float32, a few rows of logits at a time."""
    logprobs = list[float]()
    for states, ids in zip(hidden.split(ROWS, dim=1), targets.split(ROWS), strict=True):
        logs = runner.head(states)[0].float().log_softmax(-1)
        logprobs.extend(logs.gather(-1, ids[:, None])[:, 0].tolist())
    if any(map(math.isnan, logprobs)):
        raise InputError(
            "the model returned NaN logits", expected="numbers", fix="run the model in float32"
        )
    return logprobs


def perplexity_of(total: float, count: int) -> float:
    """exp(−total / count); infinite on overflow."""
    loss = -total / count
    return math.exp(loss) if loss < 709.0 else math.inf


def bits_per_byte_of(total: float, bytes: int) -> float:
    """−total / (ln 2 · bytes); NaN without bytes."""
    return -total / (math.log(2) * bytes) if bytes else math.nan


def size(text: str) -> int:
    """The length in UTF-8; a lone surrogate counts as U+FFFD."""
    return len(text.encode("utf-8", "surrogatepass"))
