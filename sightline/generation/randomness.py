"""A documented stream of random numbers, and a draw from logits: (seed, lane, step) alone
determines the draw.

    block = Philox4x64-10(key = (seed, lane), counter = (step + 1, 0, 0, 0))
    u     = (⌊block[0] / 2^12⌋ + 1/2) / 2^52

Philox is from Salmon et al. 2011, "as easy as 1, 2, 3"; 2^−53 ≤ u ≤ 1 − 2^−53, exact in float64.

There is no state to advance, so batch neighbours, order and process cannot change a draw. `lane`
separates streams of one seed: the second completion of the same request, or a beam. (NumPy advances
the counter before its first block: hence step + 1.) A token is drawn by inverse CDF over the stable
order of tokens: probability descending, then id ascending. Sorting 50,000 tokens takes ten times as
long as everything else, so only the slice that decides is sorted (`start`), and all of them where
rounding could decide (`ranked`).
"""

from __future__ import annotations

import bisect
import math
import reprlib
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError

SEEDS = 2**64
FEW = 1024  # up to this many tokens are sorted at once
SLICES, DEEPEST = (
    1024,
    60.0,
)  # e^−60 of the largest weight: anything below adds nothing and is one slice
# A mass this close below its target has reached it: ten tokens of 0.1 reach 0.7 with seven, not
# eight.
ROUNDING = 1e-9
IMPOSSIBLE = (
    -9999.0
)  # the lowest log-probability that is returned, as in OpenAI's API: JSON has no −inf


def uniform(seed: int, step: int, *, lane: int = 0) -> float:
    """u(seed, lane, step) in the open interval (0, 1): never exactly 0 or 1."""
    key = np.array([whole("seed", seed), whole("lane", lane)], dtype=np.uint64)
    counter = np.array([whole("step", step), 0, 0, 0], dtype=np.uint64)
    return open_interval(int(np.random.Philox(key=key, counter=counter).random_raw()))


def open_interval(bits: int) -> float:
    """(⌊bits / 2^12⌋ + 1/2) / 2^52: with 52 bits the half is still exact; with 53 it would round up
    to 1."""
    return ((bits >> 12) + 0.5) * 2.0**-52


def whole(name: str, value: int, *, least: int = 0) -> int:
    """`value`, if it is an integer, `least` or more, that fits 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value < SEEDS:
        raise InputError(
            f"{name} is {shown(value)}",
            expected=f"an integer from {least} to 2^64 − 1",
            fix="leave it out for the default",
        )
    return int(value)


def shown(value: object) -> str:
    """A short form on one line."""
    return " ".join(reprlib.repr(value).split())


def draw(logits: Tensor, u: float) -> int:
    """The token that u selects."""
    ids = None if few(logits) else edge(logits, u, weights=relative(logits).exp_())
    return int(draws(logits, torch.tensor([u], dtype=torch.float64)) if ids is None else ids[-1])


def draws(logits: Tensor, u: Tensor) -> Tensor:
    """Inverse CDF: the first token in the stable order with p₁ + … + pᵢ > u. A token of probability
    0 adds nothing, so it is never drawn."""
    order = ranked(logits)
    weights = relative(logits[order]).exp()
    share = weights.cumsum(0)
    indices = torch.searchsorted(share, u * share[-1], right=True)
    return order[indices.clamp(max=(weights > 0).sum() - 1)]


def ranked(logits: Tensor) -> Tensor:
    """The ids of all possible tokens in the stable order: probability descending, then id
    ascending."""
    possible = places(logits, np.greater, -math.inf)
    return possible[torch.sort(logits[possible], descending=True, stable=True).indices]


def few(logits: Tensor) -> bool:
    """Whether there are so few possible tokens that sorting them all is fastest."""
    return len(logits) <= FEW or int(np.count_nonzero(logits.numpy(force=True) > -math.inf)) <= FEW


def places(x: Tensor, compare: np.ufunc, value: float) -> Tensor:
    """The indices at which `x` compares true with a value, ascending. NumPy finds a few among many
    five times as fast as torch."""
    return torch.from_numpy(np.flatnonzero(compare(x.numpy(force=True), value))).to(x.device)


def reaching(mass: float, key: Tensor, *, weights: Tensor) -> Tensor:
    """The shortest prefix of the order by `key` whose share of the total weight is `mass` or more,
    and at least one token."""
    ids = None if len(key) <= FEW else start(key, mass - ROUNDING, weights=weights)
    if ids is not None:
        return ids
    order = torch.sort(key, descending=True, stable=True).indices
    share = weights[order].cumsum(0) / weights[order].sum()
    return order[: int((share < mass - ROUNDING).sum()) + 1]


def start(key: Tensor, share: float, *, weights: Tensor) -> Tensor | None:
    """The shortest prefix of the order by `key` (descending, then id ascending) with `share` of the
    total weight, or None where rounding could decide."""
    ids = edge(key, share, weights=weights)
    return None if ids is None else torch.cat([places(key, np.greater, float(key[ids[0]])), ids])


def edge(key: Tensor, share: float, *, weights: Tensor) -> Tensor | None:
    """The end of that prefix: from a largest key of some slice to the token that reaches the share.

    Equal slices of the key's range are summed, and only the one in which the share is reached is
    sorted. None where sums in another order, each off by up to n · 2^−53 of the total, could reach
    it elsewhere: then all must be sorted and added up in that order.
    """
    total = float(weights.sum())
    target = share * total
    doubt = len(key) * 2.0**-50 * total
    slices = sliced(key)
    sums = torch.bincount(slices, weights=weights, minlength=SLICES).cumsum(0)
    slice_index = int(torch.searchsorted(sums, target))
    inside = places(slices, np.equal, slice_index)
    inside = inside[torch.sort(key[inside], descending=True, stable=True).indices]
    before = float(sums[slice_index - 1]) if slice_index else 0.0
    reached = [before, *(before + weights[inside].cumsum(0)).tolist()]
    last = bisect.bisect_left(reached, target)
    certain = (
        0 < last < len(reached)
        and target - reached[last - 1] > doubt
        and reached[last] - target > doubt
    )
    return inside[:last] if certain else None


def sliced(key: Tensor) -> Tensor:
    """The number of each key's slice: 0 for the largest, and never smaller for a smaller key."""
    depth = (key.max().clamp(max=torch.finfo(key.dtype).max) - key).clamp_(0.0, DEEPEST)
    return depth.mul_((SLICES - 1) / max(float(depth.max()), 1e-9)).long()


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax(x) in float64."""
    return torch.log_softmax(relative(logits), 0)


def log_probability(logits: Tensor, tokens: Tensor) -> list[float]:
    """log softmax(x) at some tokens, at least −9999. For a large vocabulary in float32 the
    exponentials are float32 too and their sum float64: there are thousands of them at every
    step."""
    if logits.dtype == torch.float32 and len(logits) > FEW:
        row = logits.numpy(force=True)
        largest = row.max()
        if np.isfinite(largest):
            total = np.exp(row - largest).sum(dtype=np.float64)
            values = (
                row[tokens.numpy(force=True)].astype(np.float64)
                - np.float64(largest)
                - np.log(total)
            )
            return np.maximum(values, IMPOSSIBLE).tolist()
    x = relative(logits)
    chosen = x[tokens]
    return (chosen - x.exp_().sum().log()).clamp(min=IMPOSSIBLE).tolist()


def relative(logits: Tensor) -> Tensor:
    """x − max x in float64, at most 0. With a +inf, the +inf are 0 and the others −inf; without any
    possible token all stay −inf."""
    x = logits.to(torch.float64, copy=True)
    largest = float(x.numpy(force=True).max()) if len(x) else -math.inf
    if math.isinf(largest):
        return torch.where(x == math.inf, 0.0, -math.inf).to(x)
    return x.sub_(largest)
