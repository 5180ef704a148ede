"""RoPE taken apart: every score is a sum over frequency pairs, each content × rotation.

    q_m · k_n · scale  =  Σ_p amplitude_p · cos(phase_p + (m − n) ω_p)  +  rest

Pair p of a head is (x_p, x_{p + pairs}), a point in a plane. Before it is rotated, a query's has a
length |q_p| and an angle, a key's too:
    amplitude_p = |q_p| |k_p| · scale            what the two tokens say, wherever they stand
    phase_p     = angle of q_p − angle of k_p
    (m − n) ω_p                                  where they stand, whatever they say; a whole turn
                                                 every 2π / ω_p tokens
`rest` is the part past the rotated numbers of a head (GPT-NeoX), which no position touches.
Soft-cap and mask come afterwards.

A pair's share of the scores is the covariance of its part with the whole, over the keys that a row
may see, summed over rows and divided by the variance of the whole; all pairs and the rest sum to 1.
A share below 0 says that the pair flattens what the others tell apart.

Angles are taken back from the q and k that the kernel got. nGPT puts its learned s_qk on after the
rotation: there the sum is as exact, but once s_qk differs within a pair, a token's amplitude and
angle depend a little on where it stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.config import Rotary
from sightline.core.positions import rotary_frequencies
from sightline.errors import InputError
from sightline.lens.trace.layer import Look, Site, checked
from sightline.lens.trace.trace import Trace

PerPair = Float[Tensor, "query key"]


@dataclass(frozen=True, slots=True)
class RotaryParts:
    """One head's q and k as points in the planes that RoPE turns. Frequency pairs count from 0, the
    fastest."""

    site: Site
    head: int
    scale: float
    frequencies: Float[Tensor, " pairs"]  # ω_p, radians per token, after scaling for long contexts
    query_amplitude: Float[Tensor, "query pairs"]
    query_phase: Float[Tensor, "query pairs"]  # before rotation, from −π to π
    key_amplitude: Float[Tensor, "key pairs"]
    key_phase: Float[Tensor, "key pairs"]
    query_at: Int[Tensor, " query"]
    key_at: Int[Tensor, " key"]
    allowed: Bool[Tensor, "query key"]
    rest: PerPair  # q·k · scale of what is not rotated; zeros where all is
    shares: Float[Tensor, " pairs"]
    rest_share: float

    @property
    def pairs(self) -> int:
        return len(self.frequencies)

    @property
    def wavelengths(self) -> Float[Tensor, " pairs"]:
        """Tokens to a whole turn: 2π / ω_p."""
        return 2 * math.pi / self.frequencies

    @property
    def distance(self) -> Int[Tensor, "query key"]:
        """m − n: how far before the query a key stands."""
        return self.query_at[:, None] - self.key_at

    def amplitude(self, pair: int) -> PerPair:
        """|q_p| |k_p| · scale: the most that this pair can add to a score."""
        pair = checked("pair", pair, self.pairs)
        return self.query_amplitude[:, None, pair] * self.key_amplitude[:, pair] * self.scale

    def phase(self, pair: int) -> PerPair:
        """The angle from k_p to q_p before rotation."""
        pair = checked("pair", pair, self.pairs)
        return self.query_phase[:, None, pair] - self.key_phase[:, pair]

    def turn(self, pair: int) -> PerPair:
        """(m − n) ω_p"""
        return self.distance * self.frequencies[checked("pair", pair, self.pairs)]

    def scores_of(self, pair: int, *, turned: bool = True) -> PerPair:
        """What a pair adds to the scores; without its turn, what it would add if both tokens stood
        in one place."""
        angle = self.phase(pair) + self.turn(pair) if turned else self.phase(pair)
        return self.amplitude(pair) * angle.cos()

    def scores(self, *, turned: bool = True) -> PerPair:
        """All pairs and the rest: q·k · scale, before soft-cap and mask; without the turns, content
        alone."""
        found = self.rest.clone()
        for pair in range(self.pairs):
            found += self.scores_of(pair, turned=turned)
        return found


def rotation_of(trace: Trace, layer: int, head: int, *, stack: str | None = None) -> RotaryParts:
    """One head of a trace, pair by pair."""
    look = trace.look(layer, stack=stack)
    name, layer, _ = look.site
    attention = trace.config.stacks[name].block(layer).attention
    if not isinstance(attention.positions, Rotary):
        has = type(attention.positions).__name__
        raise InputError(
            f"layer {layer} of the {name} has no RoPE: its attention has {has}",
            expected="Rotary",
            fix="trace.geometry(…)",
        )
    frequencies, _ = rotary_frequencies(
        attention.positions, attention.positions.dim or attention.head_dim, look.query.device
    )
    return taken_apart(look, checked("head", head, look.heads), frequencies.double())


@torch.no_grad()
def taken_apart(look: Look, head: int, frequencies: Float[Tensor, " pairs"]) -> RotaryParts:
    """One head, in float64."""
    one = look.only(head)
    mask = look.scoring.mask
    pairs = len(frequencies)
    query = one.query[0, 0].double()
    key = one.key[0, 0].double()
    scale = look.scoring.scale
    query_at = mask.query_at[0]
    key_at = mask.key_at[0]
    allowed = mask.allowed()[0, 0]
    shares = covariances(query, key, allowed) if allowed.any() else query.new_zeros(query.shape[1])
    shares = shares / shares.sum()
    query_amplitude, query_phase = unturned(query, query_at, frequencies)
    key_amplitude, key_phase = unturned(key, key_at, frequencies)
    return RotaryParts(
        look.site,
        head,
        scale,
        frequencies,
        query_amplitude,
        query_phase,
        key_amplitude,
        key_phase,
        query_at,
        key_at,
        allowed,
        rest=query[:, 2 * pairs :] @ key[:, 2 * pairs :].T * scale,
        shares=shares[:pairs] + shares[pairs : 2 * pairs],
        rest_share=float(shares[2 * pairs :].sum()),
    )


def unturned(
    x: Float[Tensor, "time head_dim"],
    at: Int[Tensor, " time"],
    frequencies: Float[Tensor, " pairs"],
) -> tuple[Float[Tensor, "time pairs"], Float[Tensor, "time pairs"]]:
    """Length and angle of each pair, its rotation taken back."""
    pairs = len(frequencies)
    a = x[:, :pairs]
    b = x[:, pairs : 2 * pairs]
    angle = torch.atan2(b, a) - at[:, None] * frequencies
    return torch.hypot(a, b), torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def covariances(
    query: Float[Tensor, "query head_dim"],
    key: Float[Tensor, "key head_dim"],
    allowed: Bool[Tensor, "query key"],
) -> Float[Tensor, " head_dim"]:
    """Σ_i cov_j(q_id k_jd, q_i · k_j) of each number d, over the keys that row i may see: q_id Σ_j
    w_ij k_jd, w the centred scores."""
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    scores = (query @ key.T).masked_fill(~allowed, 0.0)
    centred = (scores - scores.sum(-1, keepdim=True) / count).masked_fill(~allowed, 0.0) / count
    return (query * (centred @ key)).sum(0)
