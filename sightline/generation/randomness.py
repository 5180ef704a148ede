"""A documented stream of random numbers, and a draw from logits: nothing but (seed, lane, step) decides a token.

    block = Philox4x64-10(key = (seed, lane), counter = (step + 1, 0, 0, 0))        Salmon et al. 2011, "as easy as 1, 2, 3"
    u     = (⌊block[0] / 2^12⌋ + 1/2) / 2^52                                         2^−53 ≤ u ≤ 1 − 2^−53, exact in float64

There is no state to advance, so batch neighbours, order and process cannot change a draw. `lane` separates streams of one seed:
the second completion of the same request, or a beam. (NumPy advances the counter before its first block: hence step + 1.)
A token is drawn by inverse CDF over the stable order of tokens: probability descending, then id ascending.
"""

from __future__ import annotations

import math
import reprlib
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError

SEEDS = 2**64


def uniform(seed: int, step: int, *, lane: int = 0) -> float:
    """u(seed, lane, step) in the open interval (0, 1): never exactly 0 or 1."""
    key = np.array([whole("seed", seed), whole("lane", lane)], dtype=np.uint64)
    counter = np.array([whole("step", step), 0, 0, 0], dtype=np.uint64)
    return open_interval(int(np.random.Philox(key=key, counter=counter).random_raw()))


def open_interval(bits: int) -> float:
    """(⌊bits / 2^12⌋ + 1/2) / 2^52: with 52 bits the half is still exact; with 53 it would round up to 1."""
    return ((bits >> 12) + 0.5) * 2.0**-52


def whole(name: str, value: int, *, least: int = 0) -> int:
    """`value`, if it is a whole number, `least` or more, that fits 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value < SEEDS:
        raise InputError(
            f"{name} is {shown(value)}", expected=f"a whole number from {least} to 2^64 − 1", fix="leave it out for the default"
        )
    return int(value)


def shown(value: object) -> str:
    """A short form on one line."""
    return " ".join(reprlib.repr(value).split())


def draw(logits: Tensor, u: float) -> int:
    """The token that u stands for."""
    return int(draws(logits, torch.tensor([u], dtype=torch.float64)))


def draws(logits: Tensor, u: Tensor) -> Tensor:
    """Inverse CDF: the first token in the stable order with p₁ + … + pᵢ > u. A token of probability 0 adds nothing, so it never is."""
    order = ranked(logits)
    weights = relative(logits[order]).exp()
    share = weights.cumsum(0)
    found = torch.searchsorted(share, u * share[-1], right=True)
    return order[found.clamp(max=(weights > 0).sum() - 1)]


def ranked(logits: Tensor) -> Tensor:
    """The ids of all possible tokens in the stable order: probability descending, then id ascending."""
    possible = torch.nonzero(logits > -math.inf).flatten()
    return possible[torch.sort(logits[possible], descending=True, stable=True).indices]


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax(x) in float64."""
    return torch.log_softmax(relative(logits), 0)


def relative(logits: Tensor) -> Tensor:
    """x − max x in float64, at most 0. With a +inf, the +inf are 0 and the others −inf; without any possible token all stay −inf."""
    x = logits.double()
    largest = x.max() if len(x) else x.new_tensor(-math.inf)
    if largest.isinf():
        return torch.where(x == math.inf, 0.0, -math.inf).to(x)
    return x - largest
