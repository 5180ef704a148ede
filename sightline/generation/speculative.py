"""Speculative decoding: a cheap proposal guesses the next tokens, one forward pass of the model
verifies all of them.

    x ~ q                                   the guess
    accepted with probability  min(1, p(x) / q(x))
    otherwise a token from max(0, p − q) / Σ max(0, p − q), and the later guesses are dropped

The text has exactly the distribution of plain decoding with the model (Leviathan et al. 2023).
Greedy decoding is the case in which p is 1 at the largest logit: a guess is accepted if it is that
token. Guesses come from a smaller draft model, or from the text itself: the tokens that followed
the last occurrence of its final n-gram (prompt lookup), where q is 1 at the guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import Learned
from sightline.core.runner import Runner
from sightline.errors import InputError
from sightline.generation.randomness import uniform
from sightline.generation.sampling import Change, draw, log_probabilities, temperature

Distribution = Callable[[Tensor, Sequence[int]], Tensor]
"""Float32 logits of one row, and the tokens before it → the probabilities to choose from."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """The new tokens and their cost: guesses proposed and accepted, and passes of the model (plain
    decoding needs one per token)."""

    tokens: list[int]
    proposed: int
    accepted: int
    passes: int


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens, and the distribution each of them was drawn from."""

    tokens: list[int]
    probabilities: Float[Tensor, "guesses vocab"]


class Proposer(Protocol):
    """A cheap source of guesses."""

    def __call__(self, tokens: list[int], most: int) -> Guess:
        """At most `most` tokens that might follow these."""
        ...


# -------------------------------------------------------------------------------------- acceptance


def after_changes(changes: Sequence[Change]) -> Distribution:
    """softmax of the logits after these changes, in float64:
    `after_changes(sampling.changes(len(prompt)))`."""

    def probabilities(logits: Tensor, tokens: Sequence[int]) -> Tensor:
        for change in changes:
            logits = change(logits, tokens)
        return log_probabilities(logits).exp()

    return probabilities


GREEDY = after_changes((temperature(0.0),))


class Chance:
    """The only source of randomness: the n-th draw is u(seed, lane, n), regardless of its
    purpose."""

    def __init__(self, seed: int = 0, *, lane: int = 0) -> None:
        self.seed = seed
        self.lane = lane
        self.thrown = 0

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        return self._throw() < probability

    def pick(self, probabilities: Float[Tensor, " vocab"]) -> int:
        """A token with these probabilities."""
        return draw(probabilities.log(), self._throw())

    def _throw(self) -> float:
        self.thrown += 1
        return uniform(self.seed, self.thrown - 1, lane=self.lane)


def judge(
    guess: Guess, target: Float[Tensor, "guesses_and_one vocab"], chance: Chance
) -> tuple[int, int]:
    """The number of accepted guesses, and the token that follows them: every pass yields at least
    one token."""
    for n, token in enumerate(guess.tokens):
        p = target[n]
        q = guess.probabilities[n]
        if not chance.happens(float(p[token] / q[token])):
            return n, chance.pick(residual(p, q))
    return len(guess.tokens), chance.pick(target[-1])


def residual(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """max(0, p − q) / Σ max(0, p − q): the residual distribution."""
    left = (p - q).clamp(min=0)
    return left / left.sum() if float(left.sum()) > 0 else p


# ---------------------------------------------------------------------------------------- guesses


def prompt_lookup(tokens: Sequence[int], ngram: int = 3, *, most: int = 8) -> list[int]:
    """The tokens that followed the last occurrence of the text's final n-gram: the longest n first,
    from `ngram` down to one.

    The copy may overlap its own output (… a b a b → a b a b), so that a repetition is continued at
    full length.
    """
    for size in range(min(ngram, len(tokens) - 1), 0, -1):
        ending = list(tokens[-size:])
        for start in range(len(tokens) - size - 1, -1, -1):
            if list(tokens[start : start + size]) == ending:
                copied = list(tokens)
                for n in range(most):
                    copied.append(copied[start + size + n])
                return copied[len(tokens) :]
    return []


class Lookup:
    """Guesses by prompt lookup: q is 1 at the guess."""

    def __init__(self, ngram: int, vocab_size: int) -> None:
        self.ngram = ngram
        self.vocab_size = vocab_size

    def __call__(self, tokens: list[int], most: int) -> Guess:
        guesses = torch.tensor(prompt_lookup(tokens, self.ngram, most=most), dtype=torch.long)
        return Guess(
            guesses.tolist(), torch.nn.functional.one_hot(guesses, self.vocab_size).double()
        )


class Draft:
    """Guesses of a smaller model, with its own cache."""

    def __init__(self, text: Text, distribution: Distribution, chance: Chance) -> None:
        self.text = text
        self.distribution = distribution
        self.chance = chance

    def __call__(self, tokens: list[int], most: int) -> Guess:
        self.text.truncate(len(tokens) - 1)
        drafted = list(tokens)
        drawn_from = [torch.empty(0, self.text.vocab_size, dtype=torch.float64)]
        for _ in range(self.text.room(len(tokens), most)):
            probabilities = self.distribution(self.text.logits(drafted, 1)[0], drafted)
            drafted.append(self.chance.pick(probabilities))
            drawn_from.append(probabilities[None])
        return Guess(drafted[len(tokens) :], torch.cat(drawn_from))


# --------------------------------------------------------------------------------------- decoding


class Text:
    """A model with the KV cache of one growing text."""

    def __init__(
        self, runner: Runner, source: Tensor | None, source_padding: Tensor | None
    ) -> None:
        self.runner = runner
        self.source = source
        self.source_padding = source_padding
        self.cache = runner.new_cache()
        self.vocab_size = runner.config.last.embedding.vocab_size

    def logits(self, tokens: list[int], count: int) -> Float[Tensor, "count vocab"]:
        """Float32 logits after each of the last `count` tokens; only those not in the cache are
        computed."""
        new = torch.tensor([tokens[self.cache.length :]], device=self.runner.device)
        first = self.cache.length == 0
        source, source_padding = (self.source, self.source_padding) if first else (None, None)
        return (
            self.runner.last_logits(
                new, count, source=source, source_padding=source_padding, cache=self.cache
            )[0]
            .float()
            .cpu()
        )

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` tokens."""
        if self.cache.length > length:
            self.cache.truncate(length)

    def room(self, length: int, most: int) -> int:
        """The number of tokens, at most `most`, that fit after `length`: a table of learned
        positions is finite."""
        stack = self.runner.config.last
        ends = isinstance(stack.embedding.positions, Learned)
        return min(most, max(0, stack.max_positions - length + 1)) if ends else most


@torch.inference_mode()
def decode_lookup(
    runner: Runner,
    prompt: Int[Tensor, "1 time"],
    *,
    max_tokens: int,
    end: tuple[int, ...] = (),
    ngram: int = 3,
    most: int = 8,
    distribution: Distribution = GREEDY,
    chance: Chance | None = None,
    source: Int[Tensor, "1 source"] | None = None,
    source_padding: Bool[Tensor, "1 source"] | None = None,
) -> Speculation:
    """Continue the prompt, guessing by prompt lookup. Greedy, unless a distribution is given."""
    chance = chance or Chance()
    text = Text(runner, source, source_padding)
    return _decode(
        text,
        prompt,
        Lookup(ngram, text.vocab_size),
        distribution,
        chance,
        max_tokens=max_tokens,
        end=end,
        most=most,
    )


@torch.inference_mode()
def decode_with_draft(
    runner: Runner,
    prompt: Int[Tensor, "1 time"],
    *,
    draft: Runner,
    max_tokens: int,
    end: tuple[int, ...] = (),
    most: int = 4,
    distribution: Distribution = GREEDY,
    chance: Chance | None = None,
    source: Int[Tensor, "1 source"] | None = None,
    source_padding: Bool[Tensor, "1 source"] | None = None,
) -> Speculation:
    """Continue the prompt, a draft model guessing `most` tokens at a time. Greedy, unless a
    distribution is given."""
    sizes = [model.config.last.embedding.vocab_size for model in (runner, draft)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"a model of {sizes[0]} tokens, a draft of {sizes[1]}",
            expected="one vocabulary",
            fix="use a draft with the same tokenizer",
        )
    chance = chance or Chance()
    draft_source = (source, source_padding) if draft.config.encoder is not None else (None, None)
    proposer = Draft(Text(draft, *draft_source), distribution, chance)
    text = Text(runner, source, source_padding)
    return _decode(
        text, prompt, proposer, distribution, chance, max_tokens=max_tokens, end=end, most=most
    )


def _decode(
    text: Text,
    prompt: Int[Tensor, "1 time"],
    proposer: Proposer,
    distribution: Distribution,
    chance: Chance,
    *,
    max_tokens: int,
    end: tuple[int, ...],
    most: int,
) -> Speculation:
    """Guess, verify in one pass, keep the accepted tokens, roll back the rest; until the end."""
    _check(prompt, max_tokens, most=most)
    tokens: list[int] = prompt[0].tolist()
    start = len(tokens)
    stop = len(tokens) + max_tokens
    proposed = accepted = passes = 0
    while len(tokens) < stop and (len(tokens) == start or tokens[-1] not in end):
        guess = proposer(tokens, min(most, stop - len(tokens) - 1))
        drafted = tokens + guess.tokens
        logits = text.logits(drafted, len(guess.tokens) + 1)
        target = torch.stack(
            [distribution(row, drafted[: len(tokens) + n]) for n, row in enumerate(logits)]
        )
        accepted_guesses, following = judge(guess, target, chance)
        new = _until([*guess.tokens[:accepted_guesses], following], end)
        proposed = proposed + len(guess.tokens)
        accepted = accepted + min(accepted_guesses, len(new))
        passes = passes + 1
        tokens += new
        text.truncate(len(tokens) - 1)
    return Speculation(tokens[start:], proposed, accepted, passes)


def _until(tokens: list[int], end: tuple[int, ...]) -> list[int]:
    """The tokens up to the first end token, with it."""
    ends = [n for n, token in enumerate(tokens) if token in end]
    return tokens[: ends[0] + 1] if ends else tokens


def _check(prompt: Tensor, max_tokens: int, *, most: int) -> None:
    """Refuse invalid arguments before anything is computed."""
    if prompt.dim() != 2 or prompt.shape[0] != 1 or prompt.shape[1] == 0:
        raise InputError(
            f"a prompt of shape {list(prompt.shape)}",
            expected="[1, time]: rows accept different numbers of guesses",
            fix="prompt[:1]",
        )
    if max_tokens < 1 or most < 0:
        raise InputError(
            f"max_tokens is {max_tokens}, most is {most}",
            expected="1 or more, 0 or more",
            fix="max_tokens=64, most=8",
        )
