"""The Fourier spectrum of a table of vectors indexed by the numbers modulo p.

E_a = mean + Σ_k (u_k cos(2πka/p) + v_k sin(2πka/p)),  k = 1 … (p−1)/2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor

Table = Float[Tensor, "prime width"]


def spectrum(table: Table) -> Float[Tensor, " frequencies"]:
    """power_k = |Σ_a e^(−2πi·ka/p) E_a|² for k = 1 … (p−1)/2, as shares of their sum."""
    power = torch.fft.rfft(table.double(), dim=0).abs().square().sum(1)[1:]
    return power / power.sum()


def strongest(table: Table, many: int) -> list[int]:
    """The frequencies with the most power."""
    return [int(k) + 1 for k in spectrum(table).argsort(descending=True)[:many]]


def waves(table: Table, keep: Sequence[int]) -> Table:
    """The table with its mean and these frequencies only."""
    mask = torch.zeros(len(table) // 2 + 1, 1, dtype=torch.float64)
    mask[[0, *keep]] = 1
    return torch.fft.irfft(torch.fft.rfft(table.double(), dim=0) * mask, n=len(table), dim=0).to(
        table.dtype
    )


def top_share(shares: Sequence[float], many: int) -> float:
    """The share of power in the strongest `many` frequencies."""
    return sum(sorted(shares)[-many:])


def noise_share(prime: int, width: int, many: int, *, random: Generator, draws: int = 100) -> float:
    """The mean top share of random tables: the strongest frequencies of noise exceed its average
    too."""
    return (
        sum(
            top_share(spectrum(torch.randn(prime, width, generator=random)).tolist(), many)
            for _ in range(draws)
        )
        / draws
    )
