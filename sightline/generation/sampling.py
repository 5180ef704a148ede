"""One row of logits to one token: changes are pure functions, composed in a fixed order, then one
draw.

    change : (logits [vocab], tokens so far, prompt included) → logits [vocab];
             −inf means impossible, and stays −inf
    order  : extra, bias, repetition, presence, frequency, n-gram, temperature, top-k, top-p, min-p,
             typical
    token  = the first in the stable order whose cumulative probability exceeds u(seed, lane, step)

The stable order is: probability descending, then id ascending. It decides ties everywhere: top-k
keeps exactly k, greedy takes the lowest id. +inf is certainty: it shares all probability with the
other +inf. Factories check their argument at once; ids are checked against the vocabulary when
applied. Probabilities are float64, so that no set depends on rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.generation.randomness import (
    draw,
    few,
    log_probabilities,
    log_probability,
    places,
    ranked,
    reaching,
    relative,
    shown,
    uniform,
    whole,
)

Tokens = Sequence[int]
Change = Callable[[Tensor, Tokens], Tensor]

INFINITY = math.inf
LARGEST = torch.finfo(torch.float32).max
# Colder than this differs from greedy only between logits that float32 rounding could swap.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to choose a token. The default is greedy; None and 0 disable a change."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float], hash=False)
    no_repeat_ngram: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole("seed", self.seed)
        self.changes(0)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def changes(self, prompt_length: int) -> tuple[Change, ...]:
        """Penalties, then filters: the order of `transformers` where both have them."""
        return (*self.penalties(prompt_length), *self.filters())

    def penalties(self, prompt_length: int) -> tuple[Change, ...]:
        """bias, repetition, presence, frequency, n-gram: what depends on the text so far."""
        return effective_changes(
            logit_bias(self.logit_bias),
            unless_none(repetition_penalty, self.repetition_penalty),
            presence_penalty(self.presence_penalty, start=prompt_length),
            frequency_penalty(self.frequency_penalty, start=prompt_length),
            unless_none(no_repeat_ngram, self.no_repeat_ngram),
        )

    def filters(self) -> tuple[Change, ...]:
        """temperature, top-k, top-p, min-p, typical: each keeps the most probable token, and greedy
        keeps only that."""
        return effective_changes(
            temperature(self.temperature),
            unless_none(top_k, self.top_k),
            unless_none(top_p, self.top_p),
            unless_none(min_p, self.min_p),
            unless_none(typical, self.typical),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """A token and log p(token) under the model itself: before any change."""

    token: int
    logprob: float


def choose(
    logits: Tensor,
    history: Tokens,
    sampling: Sampling,
    step: int,
    *,
    prompt_length: int,
    extra: Sequence[Change] = (),
    lane: int = 0,
) -> Choice:
    """The token of generation step `step`: token ~ softmax(changes(logits)), logprob = log
    softmax(logits)[token]."""
    row = one_row(logits)
    changed = usable(apply(extra, row, history=history), "the extra changes") if extra else row
    penalties = sampling.penalties(prompt_length)
    changed = (
        usable(apply(penalties, changed, history=history), "bias and n-gram")
        if penalties
        else changed
    )
    if sampling.greedy:
        token = int(
            changed.numpy(force=True).argmax()
        )  # the first of equals, the only one that the filters would keep
    else:
        token = draw(
            apply(sampling.filters(), changed, history=history),
            uniform(sampling.seed, step, lane=lane),
        )
    return Choice(token, log_probability(row, torch.tensor([token]))[0])


def apply(changes: Sequence[Change], logits: Tensor, *, history: Tokens) -> Tensor:
    """changeₙ(… change₁(logits))."""
    for change in changes:
        logits = change(logits, history)
    return logits


def alternatives(logits: Tensor, count: int) -> list[tuple[int, float]]:
    """The `count` most probable possible tokens with their log-probabilities, in the stable
    order."""
    row = one_row(logits)
    best = ranked(top_k(max(1, whole("alternatives", count)))(row, ()))[:count]
    return list(zip(best.tolist(), log_probability(row, best), strict=True))


def temperature(t: float) -> Change:
    """x′ = (x − max x) / t. 0, and anything below 1e-5, is greedy: only the most probable token is
    left."""
    t = real("temperature", t, expected="0 (greedy) or a finite number above it", low=0.0)
    if t < GREEDY_BELOW:
        return lambda logits, history: keep(
            logits, logits.argmax(keepdim=True)
        )  # the first of equals
    return unchanged if t == 1.0 else lambda logits, history: relative(logits).div_(t).float()


def top_k(k: int) -> Change:
    """Keep the first k tokens of the stable order: exactly k, also among ties."""
    k = whole("top_k", k, least=1)

    def change(logits: Tensor, history: Tokens) -> Tensor:
        if k >= len(logits):
            return logits
        smallest = float(torch.topk(logits, k, sorted=False).values.min())
        above = places(logits, np.greater, smallest)
        tied = places(logits, np.equal, smallest)
        return keep(logits, torch.cat([above, tied[: k - len(above)]]))

    return change


def top_p(p: float) -> Change:
    """Keep the shortest prefix of the stable order with p₁ + … + pᵢ ≥ p, and at least one token
    (Holtzman et al. 2020)."""
    p = real("top_p", p, expected="a number from 0 to 1", low=0.0, high=1.0)

    def change(logits: Tensor, history: Tokens) -> Tensor:
        ids = ranked(logits) if few(logits) else None
        x = logits if ids is None else logits[ids]
        nucleus = reaching(p, x, weights=relative(x).exp_())
        return keep(logits, nucleus if ids is None else ids[nucleus])

    return unchanged if p == 1.0 else change


def min_p(p: float) -> Change:
    """Keep pᵢ ≥ p · max p, that is x − max x ≥ log p (Nguyen et al. 2024)."""
    p = real("min_p", p, expected="a number from 0 to 1", low=0.0, high=1.0)
    return (
        unchanged
        if p == 0.0
        else lambda logits, history: keep(
            logits, places(relative(logits), np.greater_equal, math.log(p))
        )
    )


def typical(mass: float) -> Change:
    """Keep the shortest prefix that reaches `mass`, the smallest |−log pᵢ − H| first, ties by id; H
    = −Σ p log p (Meister et al. 2022)."""
    mass = real(
        "typical", mass, expected="a number above 0, at most 1", low=math.ulp(0.0), high=1.0
    )

    def change(logits: Tensor, history: Tokens) -> Tensor:
        logprob = log_probabilities(logits)
        possible = places(logprob, np.greater, -INFINITY)
        surprise = -logprob[possible]
        weights = (-surprise).exp()
        oddness = (surprise - (surprise * weights).sum()).abs()
        return keep(logits, possible[reaching(mass, -oddness, weights=weights)])

    return unchanged if mass == 1.0 else change


def repetition_penalty(r: float) -> Change:
    """For each token so far, prompt included: x′ = x · r if x < 0 else x / r (Keskar et al.
    2019)."""
    r = real(
        "repetition_penalty",
        r,
        expected="a finite number above 0",
        low=torch.finfo(torch.float32).tiny,
    )

    def change(logits: Tensor, history: Tokens) -> Tensor:
        seen = id_tensor(counts(history, logits), logits)
        x = logits[seen]
        return logits.index_copy(0, seen, bounded(x, torch.where(x < 0, x * r, x / r)))

    return unchanged if r == 1.0 else change


def presence_penalty(x: float, *, start: int) -> Change:
    """logit − x for each token of `history[start:]`: the generated ones, as OpenAI defines it."""
    x = real("presence_penalty", x, expected="a finite number")
    start = whole("prompt_length", start)
    return (
        unchanged
        if x == 0.0
        else lambda logits, history: added(
            logits, dict.fromkeys(counts(history[start:], logits), -x)
        )
    )


def frequency_penalty(x: float, *, start: int) -> Change:
    """logit − x · (how often the token is in `history[start:]`): the generated ones, as OpenAI
    defines it."""
    x = real("frequency_penalty", x, expected="a finite number")
    start = whole("prompt_length", start)

    def change(logits: Tensor, history: Tokens) -> Tensor:
        return added(
            logits, {token: -x * count for token, count in counts(history[start:], logits).items()}
        )

    return unchanged if x == 0.0 else change


def logit_bias(bias: Mapping[int, float]) -> Change:
    """logit + bias[token]. To forbid a token whatever its logit, use `banned`."""
    if not isinstance(bias, Mapping):
        raise InputError(
            f"logit_bias is {shown(bias)}",
            expected="a mapping of token ids to numbers",
            fix="logit_bias={50: -100.0}",
        )
    ids = checked_ids("logit_bias", bias)
    amounts = {
        token: real(f"logit_bias[{token}]", bias[token], expected="a finite number")
        for token in ids
    }
    return (
        (lambda logits, history: added(inside("logit_bias", ids, logits), amounts))
        if ids
        else unchanged
    )


def no_repeat_ngram(n: int) -> Change:
    """Forbid each token that would complete an n-gram already in the history."""
    n = whole("no_repeat_ngram", n, least=1)

    def change(logits: Tensor, history: Tokens) -> Tensor:
        tokens = list(history)
        latest = tokens[len(tokens) - n + 1 :] if len(tokens) >= n else None
        repeats = [
            tokens[at] for at in range(n - 1, len(tokens)) if tokens[at - n + 1 : at] == latest
        ]
        return logits.index_fill(0, id_tensor(counts(repeats, logits), logits), -INFINITY)

    return change


def banned(ids: Iterable[int]) -> Change:
    """−inf for `ids`."""
    ids = checked_ids("banned", ids)
    return (
        (
            lambda logits, history: inside("banned", ids, logits).index_fill(
                0, id_tensor(ids, logits), -INFINITY
            )
        )
        if ids
        else unchanged
    )


def allowed(ids: Iterable[int]) -> Change:
    """−inf for all tokens except `ids`."""
    ids = checked_ids("allowed", ids)
    if not ids:
        raise InputError(
            "allowed names no token",
            expected="at least one",
            fix="leave `allowed` out to allow all",
        )
    return lambda logits, history: keep(inside("allowed", ids, logits), id_tensor(ids, logits))


def unchanged(logits: Tensor, history: Tokens) -> Tensor:
    """x′ = x: returned by a factory for a value that changes nothing."""
    return logits


def effective_changes(*changes: Change) -> tuple[Change, ...]:
    return tuple(change for change in changes if change is not unchanged)


def unless_none(maker: Callable[[Any], Change], value: float | None) -> Change:
    return unchanged if value is None else maker(value)


def keep(logits: Tensor, ids: Tensor) -> Tensor:
    """−inf everywhere except at `ids`."""
    return torch.full_like(logits, -INFINITY).index_copy_(0, ids, logits[ids])


def added(logits: Tensor, amounts: Mapping[int, float]) -> Tensor:
    """logits[token] + amounts[token]."""
    ids = id_tensor(amounts, logits)
    x = logits[ids]
    return logits.index_copy(
        0, ids, bounded(x, (x + x.new_tensor(list(amounts.values()), dtype=torch.float64)).float())
    )


def bounded(before: Tensor, after: Tensor) -> Tensor:
    """Finite values stay finite and ±inf stay unchanged, so that inf · 0 and inf − inf never
    occur."""
    return torch.where(before.isinf(), before, after.clamp(-LARGEST, LARGEST))


def counts(tokens: Sequence[int], logits: Tensor) -> Counter[int]:
    """How often each token occurs. Ids without a logit (an input vocabulary may be wider than the
    output) cannot be chosen anyway."""
    return Counter(token for token in tokens if 0 <= token < len(logits))


def id_tensor(ids: Iterable[int], logits: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=logits.device)


def inside(name: str, ids: Sequence[int], logits: Tensor) -> Tensor:
    """`logits`, if each id has one."""
    if max(ids) >= len(logits):
        raise InputError(
            f"{name} names token {max(ids)}",
            expected=f"ids below the vocabulary size {len(logits)}",
            fix="leave it out",
        )
    return logits


def one_row(logits: Tensor) -> Tensor:
    """`logits` as float32 on the CPU, if it is one row that leaves a choice."""
    if logits.ndim != 1 or not len(logits):
        raise InputError(
            f"logits have shape {tuple(logits.shape)}",
            expected="one row, [vocab]",
            fix="logits[row, -1]",
        )
    return usable(logits.detach().to("cpu", torch.float32), "the model")


def usable(logits: Tensor, whose: str) -> Tensor:
    """`logits`, if none is NaN and a token is possible. Otherwise only this request fails."""
    largest = float(logits.numpy(force=True).max())  # NaN if any is; NumPy wakes no threads for it
    if math.isnan(largest):
        raise InputError(
            f"{whose} returned {int(logits.isnan().sum())} NaN logits",
            expected="numbers",
            fix="run the model in float32",
        )
    if largest == -INFINITY:
        raise InputError(
            f"every token is impossible after {whose}",
            expected="at least one possible token",
            fix="ban or restrict less",
        )
    return logits


def checked_ids(name: str, ids: Iterable[int]) -> tuple[int, ...]:
    """`ids` without duplicates, if each could be a token."""
    return tuple(dict.fromkeys(whole(f"a token of {name}", token) for token in ids))


def real(
    name: str, value: float, *, expected: str, low: float = -LARGEST, high: float = LARGEST
) -> float:
    """`value`, if it is a number with low ≤ value ≤ high. NaN is not."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:
        raise InputError(
            f"{name} is {shown(value)}", expected=expected, fix="leave it out for the default"
        )
    return float(value)
